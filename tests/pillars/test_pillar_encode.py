# SPDX-License-Identifier: Apache-2.0
"""pillar_encode: who wins a channel, and that no map can break it; pillar_scatter."""

import math

import pytest
import torch
from op_infos.op_info import cloud, generator
from op_infos.pillars import GRID, MAP

import torchvox
import torchvox.reference

train = torch.ops.torchvox._pillar_encode_train


def one_pillar(features: list[float], weight: float = 1.0, bias: float = 0.0, **options) -> dict:
    """Points at one place, a layer that sees only their feature."""
    points = torch.tensor([[0.5, 0.5, 0.0, f] for f in features])
    layer = torch.zeros(1, 10)
    layer[0, 3] = weight
    voxels = torchvox.voxel_map(points, **GRID, max_points=5, max_voxels=4)
    call = {"points": points, "weight": layer, "bias": torch.tensor([bias]), "batch_size": 2}
    return {**call, **{k: getattr(voxels, k) for k in MAP}, **GRID, "max_points": 5, **options}


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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_points", [-1, 0, 3, 1000])
def test_wrong_maps_stay_inside_the_tensors(seed, max_points, device):
    """Values are unspecified; sizes and the cells without a row are not."""
    g, n, rows = generator(seed), 50, 12

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        values = torch.randint(low, high, shape, generator=g, dtype=torch.int32)
        values[::7] = torch.tensor(-(2**31) if seed % 2 else 2**31 - 1, dtype=torch.int32)
        return values.to(device)

    call = {
        "points": cloud(n).to(device),
        "indices": integers(-2, 9, rows, 4),
        "num_points": integers(-3, 60, rows),
        "point_voxel": integers(-2, rows + 3, n),
        "point_slot": integers(-2, 60, n),
    }
    options = {**GRID, "max_points": max_points}
    layer = {"weight": torch.ones(5, 10, device=device), "bias": torch.ones(5, device=device)}
    canvas, mean, arg = train(**call, **layer, **options, batch_size=2)
    assert ((arg >= -2) & (arg < n)).all() and mean.shape == (rows, 3)
    empty = torch.ones(2, 6, 8, dtype=torch.bool)
    for b, _, y, x in call["indices"].tolist():
        if 0 <= b < 2 and 0 <= y < 6 and 0 <= x < 8:
            empty[b, y, x] = False
    assert (canvas.cpu().permute(0, 2, 3, 1)[empty] == 0).all()
    torchvox.pillar_moments(**call, **options)
    for winners in (arg, torch.full_like(arg, 2**31 - 1)):
        grads = torch.ops.torchvox._pillar_encode_backward(
            torch.ones_like(canvas), mean, winners, call["points"], call["indices"], **GRID,
            dtype=torch.float32,
        )  # fmt: skip
    assert all((grad == 0).all() for grad in grads)  # a winner outside the points is ignored


def test_rows_go_to_their_cells_and_all_else_is_zero(device):
    indices = torch.tensor([[1, 0, 2, 3], [-1, -1, -1, -1], [0, 7, 0, 1]], dtype=torch.int32)
    feats = torch.arange(1.0, 7.0).view(3, 2)
    canvas = torchvox.pillar_scatter(feats.to(device), indices.to(device), 2, [4, 3])
    assert canvas.is_contiguous(memory_format=torch.channels_last)
    want = torch.zeros(2, 2, 3, 4)
    want[1, :, 2, 3] = feats[0]
    want[0, :, 0, 1] = feats[2]  # z is ignored
    assert torch.equal(canvas.cpu(), want)


def test_of_rows_with_one_cell_the_lowest_is_shown_and_has_the_gradient(device):
    indices = torch.zeros(3, 4, dtype=torch.int32)
    indices[0] = -1
    feats = torch.tensor([[5.0], [7.0], [9.0]], device=device, requires_grad=True)
    canvas = torchvox.pillar_scatter(feats, indices.to(device), 1, [2, 2])
    assert canvas[0, 0].tolist() == [[7.0, 0.0], [0.0, 0.0]]
    canvas.sum().backward()
    assert feats.grad.tolist() == [[0.0], [1.0], [0.0]]


@pytest.mark.parametrize("cell", [[2, 0, 0, 0], [0, 0, 6, 0], [0, 0, 0, 8], [0, 0, -1, 3]])
def test_rows_outside_the_canvas_are_skipped(cell, device):
    feats = torch.ones(1, 3, device=device)
    indices = torch.tensor([cell], dtype=torch.int32, device=device)
    assert (torchvox.pillar_scatter(feats, indices, 2, [8, 6]) == 0).all()


def test_a_canvas_without_channels_needs_no_memory(device):
    """However many cells it has: their table once wrapped around 2^64 bytes."""
    feats = torch.zeros(1, 0, device=device, requires_grad=True)
    indices = torch.zeros(1, 4, dtype=torch.int32, device=device)
    canvas = torchvox.pillar_scatter(feats, indices, 4, [2**30, 2**30])
    assert canvas.shape == (4, 0, 2**30, 2**30)
    (grad,) = torch.autograd.grad(canvas.sum(), feats)
    assert grad.shape == feats.shape
