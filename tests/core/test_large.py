# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of more than 2^31 elements: every address is 64 bits wide.

Each case puts what it looks for behind element 2^31 and checks counts by sums. A case takes some
seconds and less than 100 GiB on the GPU.
"""

import gc

import pytest
import torch

import torchvox

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MANY = 240_000_000  # rows of 9 columns: 2.16e9 elements, 8.6 GB
BOX = {"point_cloud_range": [0.0, 0.0, 0.0, 64.0, 64.0, 8.0], "size": [64, 64]}
LAST = (63, 62)  # the cell (x, y) of the last point, alone in it


@pytest.fixture(autouse=True)
def memory_of_one_case():
    if torch.cuda.mem_get_info()[0] < 110 << 30:
        pytest.skip("needs 110 GiB of free GPU memory")
    yield
    gc.collect()
    torch.cuda.empty_cache()


def many_points() -> torch.Tensor:
    """[MANY, 9]: points over the cells of columns 0 to 31, and the last one alone in LAST."""
    points = torch.zeros(MANY, 9, device="cuda")
    index = torch.arange(MANY, device="cuda", dtype=torch.int32)
    points[:, 0] = (index % 32).float() + 0.5
    points[:, 1] = (index // 32 % 64).float() + 0.5
    points[:, 2] = 1.0
    points[:, 3] = 2.0
    points[-1, :4] = torch.tensor([LAST[0] + 0.5, LAST[1] + 0.5, 7.0, 5.0])
    return points


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


def test_gather_points():
    features = many_points()[None]
    idx = torch.tensor([[MANY - 1, 0, MANY, -1]], dtype=torch.int32, device="cuda")
    assert torchvox.gather_points(features, idx)[0, :, 2].tolist() == [7.0, 1.0, 0.0, 0.0]
    wide = torch.zeros(1, 3, 9, device="cuda")
    wide[0, 2] = 4.0
    idx = torch.full((1, MANY), 2, dtype=torch.int32, device="cuda")
    assert (torchvox.gather_points(wide, idx)[0, -1000:] == 4.0).all()


def test__gather_points_backward():
    grad = torch.ones(1, MANY, 9, device="cuda")
    idx = (torch.arange(MANY, device="cuda", dtype=torch.int32) % 1000)[None]
    out = torch.ops.torchvox._gather_points_backward(grad, idx, 1000)
    assert (out == MANY / 1000).all()  # whole numbers below 2^24: exact sums
    idx.fill_(-1)
    idx[0, -1] = MANY - 1
    out = torch.ops.torchvox._gather_points_backward(grad, idx, MANY)
    assert (out[0, -1] == 1.0).all()
    assert out.sum(dtype=torch.float64) == 9


def test_group_points():
    features = many_points()[None]
    idx = torch.tensor([[[MANY - 1, 0], [MANY, -1]]], dtype=torch.int32, device="cuda")
    assert torchvox.group_points(features, idx)[..., 2].tolist() == [[[7.0, 1.0], [0.0, 0.0]]]
    wide = torch.zeros(1, 3, 9, device="cuda")
    wide[0, 2] = 4.0
    idx = torch.full((1, MANY // 8, 8), 2, dtype=torch.int32, device="cuda")
    assert (torchvox.group_points(wide, idx)[0, -1000:] == 4.0).all()


def test__group_points_backward():
    grad = torch.ones(1, MANY // 8, 8, 9, device="cuda")
    idx = (torch.arange(MANY, device="cuda", dtype=torch.int32) % 1000).view(1, -1, 8)
    out = torch.ops.torchvox._group_points_backward(grad, idx, 1000)
    assert (out == MANY / 1000).all()  # whole numbers below 2^24: exact sums


def test_group_points_ragged():
    ptr = torch.tensor([0, 5, MANY], device="cuda")
    query_ptr = torch.tensor([0, 1, 2], device="cuda")
    idx = torch.tensor([[4, 5], [MANY - 1, 4]], dtype=torch.int32, device="cuda")
    out = torchvox.group_points_ragged(many_points(), idx, ptr, query_ptr)
    assert out[..., 2].tolist() == [[1.0, 0.0], [7.0, 0.0]]


def test_neighbour_rows():
    idx = torch.full((1, MANY, 9), 3, dtype=torch.int32, device="cuda")
    count = torch.full((1, MANY), 9, dtype=torch.int32, device="cuda")
    count[0, -1] = 2
    rows = torchvox.neighbour_rows(idx, 4, count=count)
    assert rows[0, -1].tolist() == [3, 3] + [-1] * 7
    assert rows.sum(dtype=torch.int64) == 27 * MANY - 7 * 4


def test_three_interpolate():
    features = many_points()[None]
    idx = torch.tensor([[[MANY - 1, 0, MANY]]], dtype=torch.int32, device="cuda")
    weight = torch.tensor([[[2.0, 3.0, 5.0]]], device="cuda")
    assert torchvox.three_interpolate(features, idx, weight)[0, 0, 2] == 2 * 7.0 + 3 * 1.0
    idx = torch.zeros(1, MANY, 3, dtype=torch.int32, device="cuda")
    weight = torch.ones(1, MANY, 3, device="cuda")
    out = torchvox.three_interpolate(torch.ones(1, 1, 9, device="cuda"), idx, weight)
    assert (out[0, -1000:] == 3.0).all()


def test__three_interpolate_backward():
    grad = torch.ones(1, MANY, 9, device="cuda")
    idx = (torch.arange(3 * MANY, device="cuda", dtype=torch.int32) % 1000).view(1, -1, 3)
    weight = torch.ones(1, MANY, 3, device="cuda")
    features = torch.ones(1, 1000, 9, device="cuda")
    grad_features, grad_weight = torch.ops.torchvox._three_interpolate_backward(
        grad, features, idx, weight
    )
    assert (grad_features == 3 * MANY / 1000).all()  # whole numbers below 2^24: exact sums
    assert (grad_weight == 9.0).all()


def test_three_interpolate_ragged():
    ptr = torch.tensor([0, 5, MANY], device="cuda")
    query_ptr = torch.tensor([0, 1, 2], device="cuda")
    idx = torch.tensor([[4, 5, -1], [MANY - 1, 4, 5]], dtype=torch.int32, device="cuda")
    weight = torch.ones(2, 3, device="cuda")
    out = torchvox.three_interpolate_ragged(many_points(), idx, weight, ptr, query_ptr)
    assert out[:, 2].tolist() == [1.0, 8.0]


def test_interpolation_weights():
    dist2 = torch.ones(3 * MANY, 3, device="cuda")
    dist2[-1] = torch.tensor([0.0, float("inf"), float("inf")])
    weight = torchvox.interpolation_weights(dist2)
    assert weight[-1].tolist() == [1.0, 0.0, 0.0]
    assert (weight[:-1] == weight[0, 0]).all()


def test__interpolation_weights_backward():
    dist2 = torch.ones(3 * MANY, 3, device="cuda")
    grad = torch.zeros(3 * MANY, 3, device="cuda")
    grad[-1, 0] = 1.0
    out = torch.ops.torchvox._interpolation_weights_backward(grad, dist2)
    assert out[-1, 0] < 0 and out[-1, 1] > 0
    assert (out[:-1] == 0).all()


def test__neighbour_distance_backward():
    points = torch.zeros(1, 3 * MANY, 3, device="cuda")
    points[0, -1] = 1.0
    query = torch.zeros(1, 2, 3, device="cuda")
    idx = torch.tensor([[[0, 3 * MANY - 1], [-1, 3 * MANY]]], dtype=torch.int32, device="cuda")
    grad = torch.full((1, 2, 2), 0.5, device="cuda")
    backward = torch.ops.torchvox._neighbour_distance_backward
    grad_points, grad_query = backward(grad, points, query, idx)
    assert grad_points[0, -1].tolist() == [1.0] * 3
    assert grad_points.sum(dtype=torch.float64) == 3
    assert grad_query.tolist() == [[[-1.0] * 3, [0.0] * 3]]
    query = torch.zeros(1, MANY, 3, device="cuda")
    points = torch.ones(1, 2, 3, device="cuda")
    idx = torch.ones(1, MANY, 9, dtype=torch.int32, device="cuda")
    grad = torch.full((1, MANY, 9), 0.5, device="cuda")
    grad_points, grad_query = backward(grad, points, query, idx)
    assert (grad_query == -9.0).all()
    # Whole numbers below 2^24 up to one chunk; the sum of the chunks rounds.
    torch.testing.assert_close(grad_points[0, 1], torch.full((3,), 9.0 * MANY, device="cuda"))


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


def far_point_last() -> torch.Tensor:
    """[3 * MANY, 3]: points at the origin, and the last one a metre away."""
    points = torch.zeros(3 * MANY, 3, device="cuda")
    points[-1, 0] = 1.0
    return points


def test_furthest_point_sample():
    idx, dist2 = torchvox.furthest_point_sample(far_point_last()[None], 3)
    assert idx.tolist() == [[0, 3 * MANY - 1, 1]]
    assert dist2.tolist() == [[float("inf"), 1.0, 0.0]]


def test_furthest_point_sample_ragged():
    ptr = torch.tensor([0, 5, 3 * MANY], device="cuda")
    out_ptr = torch.tensor([0, 1, 3], device="cuda")
    idx, dist2 = torchvox.furthest_point_sample_ragged(far_point_last(), ptr, out_ptr, 4)
    assert idx.tolist() == [0, 5, 3 * MANY - 1, -1]
    assert dist2.tolist() == [float("inf"), float("inf"), 1.0, 0.0]


ORIGIN = torch.zeros(1, 1, 3)


def test_knn():
    dist2, idx = torchvox.knn(far_point_last()[None], ORIGIN.cuda() + 0.9, 1)
    assert idx.tolist() == [[[3 * MANY - 1]]]
    query = torch.zeros(1, MANY, 3, device="cuda")
    query[0, -1] = 2.0
    dist2, idx = torchvox.knn(torch.eye(3, device="cuda")[None], query, 9)  # 2.16e9 slots
    assert (idx[0, -1000:, :3] == torch.arange(3, device="cuda")).all()
    assert (dist2[0, -2:, 0].tolist(), idx[0, -1, 3:].tolist()) == ([1.0, 9.0], [-1] * 6)


def test_knn_ragged():
    ptr = torch.tensor([0, 5, 3 * MANY], device="cuda")
    query_ptr = torch.tensor([0, 1, 2], device="cuda")
    query = ORIGIN[0].expand(2, 3).cuda() + 0.9
    _, idx = torchvox.knn_ragged(far_point_last(), query, ptr, query_ptr, 2)
    assert idx.tolist() == [[0, 1], [3 * MANY - 1, 5]]


def test_three_nn():
    _, idx = torchvox.three_nn(ORIGIN.cuda() + 0.9, far_point_last()[None])
    assert idx.tolist() == [[[3 * MANY - 1, 0, 1]]]


def test_three_nn_ragged():
    ptr = torch.tensor([0, 5, 3 * MANY], device="cuda")
    query_ptr = torch.tensor([0, 0, 1], device="cuda")
    _, idx = torchvox.three_nn_ragged(ORIGIN[0].cuda() + 0.9, far_point_last(), query_ptr, ptr)
    assert idx.tolist() == [[3 * MANY - 1, 5, 6]]


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
