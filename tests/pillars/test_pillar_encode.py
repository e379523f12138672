# SPDX-License-Identifier: Apache-2.0
"""pillar_encode: who wins a channel, what is shown, and that no map can break it."""

import math

import pytest
import torch
from helpers import assert_same_bits, forced
from op_infos.op_info import cloud, generator
from op_infos.pillars import ENCODE_SAMPLE_INPUTS, GRID, MAP, encode_call, mapped

import torchvox
import torchvox.reference

train = torch.ops.torchvox._pillar_encode_train


def one_pillar(features: list[float], weight: float = 1.0, bias: float = 0.0, **options) -> dict:
    """Points at one place, a layer that sees only their feature."""
    points = torch.tensor([[0.5, 0.5, 0.0, f] for f in features])
    layer = torch.zeros(1, 10)
    layer[0, 3] = weight
    call = mapped(points, 5) | {"weight": layer, "bias": torch.tensor([bias])}
    call = {**call, **GRID, "max_points": 5, "batch_size": 2, **options}
    # Both samples of `mapped` would share the points: here all are of the first.
    found = torchvox.voxel_map(points, **GRID, max_points=5, max_voxels=4)
    return call | {name: getattr(found, name) for name in MAP}


def result(call: dict) -> tuple[float, int]:
    canvas, _, arg = train(**call)
    return canvas[0, 0, 3, 4].item(), arg[0, 0].item()


@pytest.mark.parametrize(
    ("features", "options", "expected"),
    [
        ([1.0, 3.0, 2.0], {}, (3.0, 1)),
        ([1.0, 3.0, 2.0], {"weight": -1.0, "bias": 5.0}, (5.0, -1)),
        ([1.0, 3.0, 2.0], {"weight": -1.0, "bias": 5.0, "pad_semantics": "none"}, (4.0, 0)),
        ([1.0, 3.0, 3.0], {}, (3.0, 1)),  # the first of equal points
        ([0.0, -1.0], {"bias": 2.0}, (2.0, 0)),  # an empty slot is not strictly better
        ([-0.5, -1.0], {"bias": 2.0}, (2.0, -1)),
        ([-1.0, -2.0, -1.5, -1.0, -3.0], {"bias": 2.0}, (1.0, 0)),  # no empty slot
        ([-1.0, 0.0], {"pad_semantics": "none"}, (0.0, -2)),  # what the ReLU cuts has no winner
        ([4.0, math.nan, 9.0, math.nan], {}, (math.nan, 1)),  # the first NaN
        ([1.0, 1.0, 1.0, 1.0, 2.0, 9.0], {}, (2.0, 4)),  # of the stored points
    ],
)
def test_who_wins_a_channel(features, options, expected):
    assert result(one_pillar(features, **options)) == pytest.approx(expected, abs=0, nan_ok=True)


def test_the_mean_is_that_of_the_stored_points():
    points = torch.tensor([[0.25 * i, 0.5, 0.1 * i, 1.0] for i in range(4)])
    found = torchvox.voxel_map(points, **GRID, max_points=3, max_voxels=4)
    maps = {name: getattr(found, name) for name in MAP}
    layer = {"weight": torch.zeros(1, 10), "bias": torch.zeros(1)}
    _, mean, _ = train(points, **maps, **layer, **GRID, max_points=3, batch_size=1)
    voxels = torchvox.voxelize(points, **GRID, max_points=3, max_voxels=4, reduce="mean")
    assert_same_bits(mean, voxels.features[:, :3])


@pytest.mark.parametrize("pad_semantics", ["reference", "none"])
def test_the_order_of_points_changes_nothing_but_the_rounding_of_means(pad_semantics):
    """Where no cap chooses among them: then the maximum of a pillar is that of a set."""
    points = cloud(500).double()
    order = torch.randperm(500, generator=generator(4))
    grid = {**GRID, "max_points": 200}
    layer = {"weight": torch.randn(9, 10, generator=generator(5), dtype=torch.float64)}
    layer["bias"] = torch.randn(9, generator=generator(6), dtype=torch.float64)

    def canvas(some: torch.Tensor) -> torch.Tensor:
        found = torchvox.voxel_map(some, **grid, max_voxels=-1)
        maps = {name: getattr(found, name) for name in MAP}
        return torchvox.pillar_encode(
            some, **maps, **layer, **grid, batch_size=1, pad_semantics=pad_semantics
        )

    there, here = canvas(points), canvas(points[order])
    assert (there > 0).any()
    assert torch.equal(there == 0, here == 0)
    torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)
    # Columns that do not enter a mean keep their bits.
    layer["weight"][:, [0, 1, 2, 4, 5, 6, 7, 8, 9]] = 0
    assert_same_bits(canvas(points[order]), canvas(points))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_points", [-1, 0, 3, 1000])
def test_maps_that_are_none_stay_inside_the_tensors(seed, max_points, device):
    """Values are unspecified; sizes and the cells without a row are not."""
    g = generator(seed)
    n, rows = 50, 12

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        values = torch.randint(low, high, shape, generator=g, dtype=torch.int32)
        values[::7] = torch.tensor(-(2**31) if seed % 2 else 2**31 - 1, dtype=torch.int32)
        return values

    indices = integers(-2, 9, rows, 4)
    call = {
        "points": cloud(n),
        "indices": indices,
        "num_points": integers(-3, 60, rows),
        "point_voxel": integers(-2, rows + 3, n),
        "point_slot": integers(-2, 60, n),
    }
    call = {k: v.to(device) for k, v in call.items()}
    options = {**GRID, "max_points": max_points}
    layer = {"weight": torch.ones(5, 10, device=device), "bias": torch.ones(5, device=device)}
    canvas, mean, arg = train(**call, **layer, **options, batch_size=2)
    assert ((arg >= -2) & (arg < n)).all() and mean.shape == (rows, 3)
    shown = torch.zeros(2, 6, 8, dtype=torch.bool)
    for b, _, y, x in indices.tolist():
        if 0 <= b < 2 and 0 <= y < 6 and 0 <= x < 8:
            shown[b, y, x] = True
    assert (canvas.cpu().permute(0, 2, 3, 1)[~shown] == 0).all()
    torchvox.pillar_moments(**call, **options)
    torch.ops.torchvox._pillar_encode_backward(
        canvas, mean, arg, call["points"], call["indices"], **GRID, dtype=torch.float32
    )


def test_a_winner_outside_the_points_is_ignored(device):
    call = {k: v.to(device) if torch.is_tensor(v) else v for k, v in encode_call(60).items()}
    canvas, mean, arg = train(**call)
    arg = torch.full_like(arg, 2**31 - 1)
    grad_weight, grad_bias = torch.ops.torchvox._pillar_encode_backward(
        torch.ones_like(canvas),
        mean,
        arg,
        call["points"],
        call["indices"],
        **GRID,
        dtype=torch.float32,
    )
    assert (grad_weight == 0).all() and (grad_bias == 0).all()


each_call = pytest.mark.parametrize("make", ENCODE_SAMPLE_INPUTS.values(), ids=ENCODE_SAMPLE_INPUTS)


@pytest.mark.parametrize("plan", [0, 1, 2])
@each_call
def test_every_instruction_set_has_the_bits_of_the_reference(make, plan):
    expected = train(**make())
    assert_same_bits(expected[0], torchvox.reference.pillar_encode(**make()))
    with forced(pillar_cpu=plan):
        assert_same_bits(train(**make()), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("lists", ["fixed", "packed"])
@pytest.mark.parametrize("common", ["general", "common"])
@each_call
def test_every_plan_has_the_bits_of_the_cpu(make, common, lists):
    call = make()
    on_gpu = {k: v.cuda() if torch.is_tensor(v) else v for k, v in call.items()}
    with forced(pillar_common=common, pillar_lists=lists):
        assert_same_bits(train(**on_gpu), train(**call))
