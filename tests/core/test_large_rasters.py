# SPDX-License-Identifier: Apache-2.0
"""bev and voxel ops beyond 2^31 elements."""

import torch
from large import BOX, LAST, MANY, many_points, marks

import torchvox

pytestmark = marks


def test_bev_max_height():
    height, counts = torchvox.bev_max_height(many_points(), **BOX)
    assert height[0, LAST[1], LAST[0]] == 7.0
    assert counts.tolist() == [[32 * 64 + 1, MANY, 0, 0]] * 2


def test_bev_max_height_with_index():
    _, top_index, counts = torchvox.bev_max_height_with_index(many_points(), **BOX)
    assert top_index[0, LAST[1], LAST[0]] == MANY - 1
    assert top_index[0, :, :32].flatten().tolist() == list(range(32 * 64))  # ties: lowest index
    assert counts[0].tolist() == [32 * 64 + 1, MANY, 0, 0]


def test__bev_max_height_backward():
    points = many_points()
    top_index = torchvox.bev_max_height_with_index(points, **BOX).top_index
    grad = torch.ones(1, 64, 64, device="cuda")
    grad_points = torch.ops.torchvox._bev_max_height_backward(grad, top_index, points, **BOX)
    assert grad_points[-1].tolist() == [0, 0, 1] + [0] * 6
    assert grad_points.sum(dtype=torch.float64) == 32 * 64 + 1


def test_bev_rasterize():
    channels = ["height_max", "intensity_top", "intensity_mean", "count"]
    image, counts = torchvox.bev_rasterize(many_points(), **BOX, channels=channels)
    assert image[0, :, LAST[1], LAST[0]].tolist() == [7.0, 5.0, 5.0, 1.0]
    assert image[0, 3].sum(dtype=torch.float64) == MANY
    assert counts[0].tolist() == [32 * 64 + 1, MANY, 0, 0]


def test__bev_rasterize_backward():
    channels = ["height_max", "intensity_top"]
    grad = torch.ones(1, 2, 64, 64, device="cuda")
    grad_points, _ = torch.ops.torchvox._bev_rasterize_backward(
        grad, many_points(), **BOX, channels=channels
    )
    assert grad_points[-1].tolist() == [0, 0, 1, 1] + [0] * 5
    assert grad_points.sum(dtype=torch.float64) == 2 * (32 * 64 + 1)


def test_voxel_csr():
    rows = torch.arange(MANY, device="cuda", dtype=torch.int32) % 7 - 1
    offsets, perm = torchvox.voxel_csr(rows, MANY)
    dropped = int((rows < 0).sum())
    assert offsets[-1] == MANY - dropped and offsets[6] == MANY - dropped
    assert (perm[-dropped:] == -1).all()
    assert perm[0] == 1 and perm[1] == 8


def test_voxel_scatter():
    feats = many_points()
    rows = torch.arange(MANY, device="cuda", dtype=torch.int32) % 1000
    rows[-1] = 1000
    out, _ = torchvox.voxel_scatter(feats, rows, 1001, "sum")
    assert out[1000, 2] == 7.0
    assert out[:1000, 2].sum(dtype=torch.float64) == MANY - 1
    out, arg = torchvox.voxel_scatter(feats, rows, 1001, "max")
    assert arg[1000].tolist() == [MANY - 1] * 9


def test__voxel_scatter_backward():
    rows = torch.arange(MANY, device="cuda", dtype=torch.int32)
    offsets = torch.arange(MANY + 1, device="cuda", dtype=torch.int32)
    arg = torch.zeros(0, device="cuda", dtype=torch.int32)
    grad = torch.zeros(MANY, 9, device="cuda")
    grad[-1] = 3.0
    out = torch.ops.torchvox._voxel_scatter_backward(grad, rows, offsets, arg, "sum")
    assert (out[-1] == 3.0).all()
    assert out.sum(dtype=torch.float64) == 27


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
    points = many_points()
    features, indices, _, _, counts = torchvox.voxelize(
        points, **GRID, max_points=-1, max_voxels=4096, reduce="max"
    )
    assert counts[0].tolist() == [2049, 2049, MANY, 0, 0, 0, 0, 0]
    assert features[2048, :4].tolist() == [LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 5.0]
    capacity = MANY // 8  # features of 2.16e9 elements
    features, indices, *_ = torchvox.voxelize(
        points[-5000:], **GRID, max_points=8, max_voxels=capacity
    )
    assert features.numel() > 1 << 31
    assert (features[-1000:] == 0).all() and (indices[-1000:] == -1).all()


def test__voxelize_train():
    features, *_, arg = torch.ops.torchvox._voxelize_train(
        many_points(), **GRID, max_points=-1, max_voxels=4096, reduce="max"
    )
    assert features[2048, 2] == 7.0
    assert arg[2048, 2] == MANY - 1


def test__voxelize_backward():
    rows = torch.arange(MANY, device="cuda", dtype=torch.int32)
    ones = torch.ones_like(rows)
    arg = torch.zeros(0, device="cuda", dtype=torch.int32)
    grad = torch.zeros(MANY, 9, device="cuda")
    grad[-1] = 3.0
    out = torch.ops.torchvox._voxelize_backward(
        grad, rows, torch.zeros_like(rows), ones, arg, "mean", torch.float32
    )
    assert (out[-1] == 3.0).all()
    assert out.sum(dtype=torch.float64) == 27
