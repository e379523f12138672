# SPDX-License-Identifier: Apache-2.0
"""torchvox.furthest_point_sample: named outputs, nested levels, random starts."""

import pytest
import torch
from fps_cases import ops
from helpers import cube

import torchvox


def same(a, b):
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def test_a_list_of_sizes_gives_one_prefix_per_level(device):
    points = cube(200, batch=2).to(device)
    levels = torchvox.furthest_point_sample(points, [64, 16, 4])
    assert [level.idx.shape for level in levels] == [(2, 64), (2, 16), (2, 4)]
    for size, level in zip([64, 16, 4], levels, strict=True):
        assert same(level, ops.furthest_point_sample(points, size))


def test_each_level_is_the_sampling_of_the_level_before(device):
    points = cube(200, batch=2).to(device)
    levels = torchvox.furthest_point_sample(points, [64, 16])
    first = torchvox.gather_points(points, levels[0].idx)
    inner = torchvox.furthest_point_sample(first, 16).idx
    assert (inner.cpu() == torch.arange(16)).all()


def test_random_starts_follow_the_generator(device):
    points = cube(500, batch=8).to(device)

    def draw(seed):
        generator = torch.Generator(device=points.device).manual_seed(seed)
        return torchvox.furthest_point_sample(points, 5, start="random", generator=generator)

    first = draw(1)
    assert same(first, draw(1))
    assert not torch.equal(first.idx[:, 0], draw(2).idx[:, 0])
    assert len(set(first.idx[:, 0].tolist())) > 1
    assert same(first, ops.furthest_point_sample(points, 5, start_idx=first.idx[:, 0]))


def test_random_starts_stay_inside_the_lengths(device):
    points = cube(500, batch=64).to(device)
    lengths = torch.full((64,), 3, device=device)
    starts = torchvox.furthest_point_sample(points, 1, start="random", lengths=lengths).idx
    assert set(starts.flatten().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("num_samples", ["x", 2.5, [4, 2.5], [[4]], ["x"]])
def test_what_is_no_size_is_refused(num_samples):
    with pytest.raises(TypeError, match="furthest_point_sample: num_samples must be an int or"):
        torchvox.furthest_point_sample(cube(10), num_samples)


def test_a_list_of_sizes_is_of_the_own_convention_alone():
    words = r"^furthest_point_sample: convention must be 'torchvox' with a list .*, got 'mmcv'"
    with pytest.raises(ValueError, match=words):
        torchvox.furthest_point_sample(cube(10), [4, 2], convention="mmcv")


@pytest.mark.parametrize("wrong", [{"points": "x"}, {"lengths": 3}])
def test_random_starts_name_what_is_no_tensor(wrong):
    with pytest.raises(TypeError, match=f"^furthest_point_sample: {next(iter(wrong))} must be"):
        torchvox.furthest_point_sample(
            **{"points": cube(10), "num_samples": 2, "start": "random", **wrong}
        )


@pytest.mark.parametrize("start", ["first", ""])
def test_an_unknown_start_word_is_refused(device, start):
    with pytest.raises(ValueError, match=r"start\b.*random"):
        torchvox.furthest_point_sample(cube(10).to(device), 2, start=start)


def test_gathered_samples_carry_the_gradient(device):
    points = cube(30).to(device).requires_grad_()
    idx, _ = torch.ops.torchvox.furthest_point_sample(points, 5)
    torch.ops.torchvox.gather_points(points, idx).sum().backward()
    expected = torch.zeros(30, 3)
    expected[idx[0].cpu().long()] = 1
    assert torch.equal(points.grad[0].cpu(), expected)
