# SPDX-License-Identifier: Apache-2.0
"""Sampling, neighbor and grouping ops beyond 2^31 elements."""

import torch
from large import MANY, many_points, marks

import torchvox

pytestmark = marks


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


def test_segment_reduce():
    offsets = torch.tensor([0, MANY - 1, MANY], device="cuda")
    out, arg = torchvox.segment_reduce(many_points(), offsets, "max")
    assert out[:, 2].tolist() == [1.0, 7.0] and arg[:, 2].tolist() == [0, MANY - 1]
    out = torch.ops.torchvox._segment_reduce_backward(out, offsets, arg, MANY, "max")
    assert out[-1].tolist()[:4] == [63.5, 62.5, 7.0, 5.0] and out[0, 2] == 1.0
    index = torch.full((MANY,), 2, dtype=torch.int32, device="cuda")
    wide = torch.arange(27.0, device="cuda").reshape(3, 9)
    many = torch.arange(MANY + 1, device="cuda")
    assert (torchvox.segment_reduce(wide, many, index=index)[0][-1000:] == wide[2]).all()


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


def test_group_points_of_packed_clouds():
    batch_offsets = torch.tensor([0, 5, MANY], device="cuda")
    query_batch_offsets = torch.tensor([0, 1, 2], device="cuda")
    idx = torch.tensor([[4, 5], [MANY - 1, 4]], dtype=torch.int32, device="cuda")
    out = torchvox.group_points(
        many_points(), idx, batch_offsets=batch_offsets, query_batch_offsets=query_batch_offsets
    )
    assert out[..., 2].tolist() == [[1.0, 0.0], [7.0, 0.0]]


def test_neighbor_rows():
    idx = torch.full((1, MANY, 9), 3, dtype=torch.int32, device="cuda")
    count = torch.full((1, MANY), 9, dtype=torch.int32, device="cuda")
    count[0, -1] = 2
    rows = torchvox.neighbor_rows(idx, 4, count=count)
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


def test_three_interpolate_of_packed_clouds():
    batch_offsets = torch.tensor([0, 5, MANY], device="cuda")
    query_batch_offsets = torch.tensor([0, 1, 2], device="cuda")
    idx = torch.tensor([[4, 5, -1], [MANY - 1, 4, 5]], dtype=torch.int32, device="cuda")
    weight = torch.ones(2, 3, device="cuda")
    out = torchvox.three_interpolate(
        many_points(),
        idx,
        weight,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
    )
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


def test_interpolate_features():
    points = torch.zeros(1, 1, 3, device="cuda")
    query = torch.zeros(1, MANY, 3, device="cuda")
    features = torch.full((1, 1, 9), 5.0, device="cuda")
    out = torchvox.interpolate_features(query, points, features)
    assert (out[0, -1000:] == 5.0).all() and (out[0, :1000] == 5.0).all()


def test__neighbor_distance_backward():
    points = torch.zeros(1, 3 * MANY, 3, device="cuda")
    points[0, -1] = 1.0
    query = torch.zeros(1, 2, 3, device="cuda")
    idx = torch.tensor([[[0, 3 * MANY - 1], [-1, 3 * MANY]]], dtype=torch.int32, device="cuda")
    grad = torch.full((1, 2, 2), 0.5, device="cuda")
    backward = torch.ops.torchvox._neighbor_distance_backward
    grad_points, grad_query = backward(grad, points, query, idx)
    assert grad_points[0, -1].tolist() == [1.0] * 3
    assert grad_points.sum(dtype=torch.float64) == 3
    assert grad_query.tolist() == [[[-1.0] * 3, [0.0] * 3]]
    query = torch.zeros(2, MANY // 2, 3, device="cuda")  # a cloud takes fewer than 2^31 slots
    points = torch.ones(2, 2, 3, device="cuda")
    idx = torch.ones(2, MANY // 2, 9, dtype=torch.int32, device="cuda")
    grad = torch.full((2, MANY // 2, 9), 0.5, device="cuda")
    assert idx.numel() > 1 << 31
    grad_points, grad_query = backward(grad, points, query, idx)
    assert (grad_query == -9.0).all() and (grad_points[:, 0] == 0).all()
    # Whole numbers below 2^24 up to one chunk; the sum of the chunks rounds.
    expected = torch.full((2, 3), 9.0 * (MANY // 2), device="cuda")
    torch.testing.assert_close(grad_points[:, 1], expected)


def far_point_last() -> torch.Tensor:
    """[3 * MANY, 3]: points at the origin, and the last one a meter away."""
    points = torch.zeros(3 * MANY, 3, device="cuda")
    points[-1, 0] = 1.0
    return points


def test_furthest_point_sample():
    idx, dist2 = torchvox.furthest_point_sample(far_point_last()[None], 3)
    assert idx.tolist() == [[0, 3 * MANY - 1, 1]]
    assert dist2.tolist() == [[float("inf"), 1.0, 0.0]]


def test_furthest_point_sample_ragged():
    batch_offsets = torch.tensor([0, 5, 3 * MANY], device="cuda")
    out_offsets = torch.tensor([0, 1, 3], device="cuda")
    idx, dist2 = torchvox.furthest_point_sample_ragged(
        far_point_last(), batch_offsets, out_offsets, 4
    )
    assert idx.tolist() == [0, 5, 3 * MANY - 1, -1]
    assert dist2.tolist() == [float("inf"), float("inf"), 1.0, 0.0]


def test_furthest_point_sample_with_dist():
    distances = torch.zeros(1, 50_000, 50_000, device="cuda")  # 2.5e9 elements
    distances[0, 0, -1], distances[0, -1] = 1.0, 1.0
    distances[0, 0, 7], distances[0, -1, 7] = 0.5, 0.5
    assert torchvox.furthest_point_sample_with_dist(distances, 3).tolist() == [[0, 49_999, 49_999]]
    distances[0, -1, -1] = 0.0
    assert torchvox.furthest_point_sample_with_dist(distances, 3).tolist() == [[0, 49_999, 7]]


ORIGIN = torch.zeros(1, 1, 3)


def test_knn():
    dist2, idx = torchvox.knn(far_point_last()[None], ORIGIN.cuda() + 0.9, 1)
    assert idx.tolist() == [[[3 * MANY - 1]]]
    query = torch.zeros(1, MANY, 3, device="cuda")
    query[0, -1] = 2.0
    dist2, idx = torchvox.knn(torch.eye(3, device="cuda")[None], query, 9)  # 2.16e9 slots
    assert (idx[0, -1000:, :3] == torch.arange(3, device="cuda")).all()
    assert (dist2[0, -2:, 0].tolist(), idx[0, -1, 3:].tolist()) == ([1.0, 9.0], [-1] * 6)


def test_knn_of_packed_clouds():
    batch_offsets = torch.tensor([0, 5, 3 * MANY], device="cuda")
    query_batch_offsets = torch.tensor([0, 1, 2], device="cuda")
    query = ORIGIN[0].expand(2, 3).cuda() + 0.9
    _, idx = torchvox.knn(
        far_point_last(),
        query,
        2,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
    )
    assert idx.tolist() == [[0, 1], [3 * MANY - 1, 5]]


def test_three_nn():
    _, idx = torchvox.three_nn(ORIGIN.cuda() + 0.9, far_point_last()[None])
    assert idx.tolist() == [[[3 * MANY - 1, 0, 1]]]


def test_three_nn_of_packed_clouds():
    batch_offsets = torch.tensor([0, 5, 3 * MANY], device="cuda")
    query_batch_offsets = torch.tensor([0, 0, 1], device="cuda")
    _, idx = torchvox.three_nn(
        ORIGIN[0].cuda() + 0.9,
        far_point_last(),
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
    )
    assert idx.tolist() == [[3 * MANY - 1, 5, 6]]


def test_ball_query():
    query = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], device="cuda")
    dist2, idx, count = torchvox.ball_query(far_point_last()[None], query, 0.5, 2)
    assert idx.tolist() == [[[3 * MANY - 1] * 2, [0, 1]]] and count.tolist() == [[1, 2]]
    points, query = torch.zeros(1, 40, 3, device="cuda"), torch.zeros(1, MANY, 3, device="cuda")
    dist2, idx, count = torchvox.ball_query(points, query, 0.5, 10)  # 2.4e9 slots
    assert idx.numel() > 1 << 31 and (idx[0, -1000:] == torch.arange(10, device="cuda")).all()
    assert (count == 10).all() and (dist2[0, -1000:] == 0).all()


def test_radius_neighbors():
    query = torch.tensor([[1.0, 0.0, 0.0], [9.0, 0.0, 0.0]], device="cuda")
    out = torchvox.radius_neighbors(far_point_last(), query, 0.5, 2)
    assert out.index.tolist() == [3 * MANY - 1, -1] and out.offsets.tolist() == [0, 1, 1]
    points, query = torch.zeros(10, 3, device="cuda"), torch.zeros(MANY, 3, device="cuda")
    out = torchvox.radius_neighbors(points, query, 0.5, 10 * MANY - 3, return_dist2=False)
    assert out.count == 10 * MANY > 1 << 31  # 2.4e9 entries
    assert out.offsets[-2:].tolist() == [10 * MANY - 10, 10 * MANY - 3]
    assert (out.index[-1007:].view(-1, 1007)[0, :1000] == torch.arange(10).repeat(100).cuda()).all()


def test_ball_query_of_packed_clouds():
    query = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], device="cuda")
    batch_offsets, query_batch_offsets = (
        torch.tensor(p, device="cuda") for p in ([5, 3 * MANY], [0, 2])
    )
    _, idx, count = torchvox.ball_query(
        far_point_last(),
        query,
        0.5,
        2,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
    )
    assert idx.tolist() == [[3 * MANY - 1] * 2, [5, 6]] and count.tolist() == [1, 2]


def test_query_and_group():
    query = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]], device="cuda")
    points = far_point_last()[None]
    grouped, idx, _ = torchvox.query_and_group(points, query, points, [0.5], [2])
    assert idx.tolist() == [[[3 * MANY - 1] * 2, [0, 1]]]
    assert grouped[0, 0].tolist() == [[0, 0, 0, 1, 0, 0]] * 2
    points, query = (
        torch.zeros(1, 40, 3, device="cuda"),
        torch.zeros(1, MANY // 4, 3, device="cuda"),
    )
    points[0, 1] = 0.25
    grouped = torchvox.query_and_group(points, query, points, [0.5], [8])[0]  # 2.9e9 elements
    assert grouped.numel() > 1 << 31 and (grouped[0, -1000:, 1] == 0.25).all()


def test_group_mlp_max():
    n, channels = 1 << 24, 130  # 2.2e9 features
    points = torch.zeros(1, n, 3, device="cuda")
    features = torch.zeros(1, n, channels, dtype=torch.bfloat16, device="cuda")
    features[0, -1] = torch.arange(channels)
    idx = torch.tensor([[[n - 1, n - 2]]], dtype=torch.int32, device="cuda")
    count = torch.tensor([[2]], dtype=torch.int32, device="cuda")
    for dtype in (torch.bfloat16, torch.float32):
        weights = torch.eye(channels, dtype=dtype, device="cuda")
        rows = torchvox.group_mlp_max(
            points, points[:, :1], features.to(dtype), idx, count, [weights], [weights[0] * 0],
            use_xyz=False,
        )  # fmt: skip
        assert rows.tolist() == [[list(range(channels))]]


def test__query_and_group_backward():
    points, query = (
        torch.zeros(1, 40, 3, device="cuda"),
        torch.zeros(1, MANY // 4, 3, device="cuda"),
    )
    idx = torch.full((1, MANY // 4, 8), 7, dtype=torch.int32, device="cuda")
    grad = torch.ones(1, 1, 1, 5, device="cuda").expand(1, MANY // 4, 8, 5)
    grads = torch.ops.torchvox._query_and_group_backward(grad, points, query, idx, 2, [0.5], [8])
    grad_points, grad_query, grad_features = grads
    assert (grad_query == -8).all()
    assert (grad_points[0, 7] == 2 * MANY).all() and grad_points.abs().sum() == 6 * MANY
    assert (grad_features[0, 7] == 2 * MANY).all()
