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


def test_random_starts_follow_the_generator_and_stay_inside_the_lengths(device):
    points = cube(500, batch=8).to(device)

    def draw(seed):
        generator = torch.Generator(device=points.device).manual_seed(seed)
        return torchvox.furthest_point_sample(points, 5, start="random", generator=generator)

    first = draw(1)
    assert same(first, draw(1))
    assert not torch.equal(first.idx[:, 0], draw(2).idx[:, 0])
    assert len(set(first.idx[:, 0].tolist())) > 1
    assert same(first, ops.furthest_point_sample(points, 5, start_idx=first.idx[:, 0]))
    lengths = torch.full((64,), 3, device=device)
    starts = torchvox.furthest_point_sample(
        points[:1].expand(64, -1, -1), 1, start="random", lengths=lengths
    ).idx
    assert set(starts.flatten().tolist()) == {0, 1, 2}


SIZES, SIZES_WORDS = ("x", 2.5, [4, 2.5], [[4]], ["x"]), "num_samples must be an int or"
OWN_LIST = {"num_samples": [4, 2], "convention": "mmcv"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        *(({"num_samples": size}, TypeError, SIZES_WORDS) for size in SIZES),
        (OWN_LIST, ValueError, "convention must be 'torchvox' with a list .*, got 'mmcv'"),
        ({"start": "random", "points": "x"}, TypeError, "points must be"),
        ({"start": "random", "lengths": 3}, TypeError, "lengths must be"),
        ({"start": "first"}, ValueError, r".*start\b.*random"),
    ],
)
def test_wrong_arguments_are_refused_by_name(options, error, words):
    with pytest.raises(error, match=f"^furthest_point_sample: {words}"):
        torchvox.furthest_point_sample(**{"points": cube(10), "num_samples": 2, **options})
