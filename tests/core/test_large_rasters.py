# SPDX-License-Identifier: Apache-2.0
"""bev and voxel ops beyond 2^31 elements."""

import torch
from large import BOX, LAST, MANY, many_points, marks

import torchvox

pytestmark = marks


def test_bev_max_height():
    points = many_points()
    height, counts = torchvox.bev_max_height(points, **BOX)
    assert height[0, LAST[1], LAST[0]] == 7.0
    assert counts.tolist() == [[32 * 64 + 1, MANY, 0, 0]] * 2
    _, top_index, counts = torchvox.bev_max_height_with_index(points, **BOX)
    assert top_index[0, LAST[1], LAST[0]] == MANY - 1
    assert top_index[0, :, :32].flatten().tolist() == list(range(32 * 64))  # ties: lowest index
    assert counts[0].tolist() == [32 * 64 + 1, MANY, 0, 0]
    grad = torch.ones(1, 64, 64)
    grad_points = torch.ops.torchvox._bev_max_height_backward(grad, top_index, points, **BOX)
    assert grad_points[-1].tolist() == [0, 0, 1] + [0] * 6
    assert grad_points.sum(dtype=torch.float64) == 32 * 64 + 1


def test_bev_rasterize():
    channels = ["height_max", "intensity_top", "intensity_mean", "count"]
    image, counts = torchvox.bev_rasterize(many_points(), **BOX, channels=channels)
    assert image[0, :, LAST[1], LAST[0]].tolist() == [7.0, 5.0, 5.0, 1.0]
    assert image[0, 3].sum(dtype=torch.float64) == MANY
    assert counts[0].tolist() == [32 * 64 + 1, MANY, 0, 0]
    grad_points, _ = torch.ops.torchvox._bev_rasterize_backward(
        torch.ones(1, 2, 64, 64), many_points(), **BOX, channels=channels[:2]
    )
    assert grad_points[-1].tolist() == [0, 0, 1, 1] + [0] * 5
    assert grad_points.sum(dtype=torch.float64) == 2 * (32 * 64 + 1)


def test_voxel_csr():
    rows = torch.arange(MANY, dtype=torch.int32) % 7 - 1
    offsets, perm = torchvox.voxel_csr(rows, MANY)
    dropped = int((rows < 0).sum())
    assert offsets[-1] == MANY - dropped and offsets[6] == MANY - dropped
    assert (perm[-dropped:] == -1).all()
    assert perm[0] == 1 and perm[1] == 8


NO_ARG = {"dtype": torch.int32}


def last_row_of_threes() -> torch.Tensor:
    grad = torch.zeros(MANY, 9)
    grad[-1] = 3.0
    return grad


def test_voxel_scatter():
    rows = torch.arange(MANY, dtype=torch.int32) % 1000
    rows[-1] = 1000
    out, _ = torchvox.voxel_scatter(many_points(), rows, 1001, "sum")
    assert out[1000, 2] == 7.0
    assert out[:1000, 2].sum(dtype=torch.float64) == MANY - 1
    out, arg = torchvox.voxel_scatter(many_points(), rows, 1001, "max")
    assert arg[1000].tolist() == [MANY - 1] * 9
    offsets, arg = torch.arange(MANY + 1, dtype=torch.int32), torch.zeros(0, **NO_ARG)
    out = torch.ops.torchvox._voxel_scatter_backward(
        last_row_of_threes(), offsets[:-1], offsets, arg, "sum"
    )
    assert (out[-1] == 3.0).all() and out.sum(dtype=torch.float64) == 27


GRID = {"voxel_size": [1.0, 1.0, 8.0], "point_cloud_range": BOX["point_cloud_range"]}


def test_voxel_map():
    indices, num_points, point_voxel, point_slot, counts = torchvox.voxel_map(
        many_points(), **GRID, max_points=-1, max_voxels=4096
    )
    assert counts[0].tolist() == [2049, 2049, MANY, 0, 0, 0, 0, 0]
    assert indices[2048].tolist() == [0, 0, LAST[1], LAST[0]]
    assert point_voxel[-1] == 2048 and point_slot[-1] == 0
    assert num_points.sum(dtype=torch.int64) == MANY


def test_voxelize():
    points, options = many_points(), {"max_points": -1, "max_voxels": 4096, "reduce": "max"}
    features, _, _, _, counts = torchvox.voxelize(points, **GRID, **options)
    assert counts[0].tolist() == [2049, 2049, MANY, 0, 0, 0, 0, 0]
    assert features[2048, :4].tolist() == [LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 5.0]
    features, *_, arg = torch.ops.torchvox._voxelize_train(points, **GRID, **options)
    assert features[2048, 2] == 7.0 and arg[2048, 2] == MANY - 1
    capacity = MANY // 8  # features of 2.16e9 elements
    features, indices, *_ = torchvox.voxelize(
        points[-5000:], **GRID, max_points=8, max_voxels=capacity
    )
    assert features.numel() > 1 << 31
    assert (features[-1000:] == 0).all() and (indices[-1000:] == -1).all()
    rows = torch.arange(MANY, dtype=torch.int32)
    del features, points
    out = torch.ops.torchvox._voxelize_backward(
        last_row_of_threes(), rows, rows * 0, torch.ones_like(rows), torch.zeros(0, **NO_ARG),
        "mean", torch.float32,
    )  # fmt: skip
    assert (out[-1] == 3.0).all() and out.sum(dtype=torch.float64) == 27
