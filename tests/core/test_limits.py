# SPDX-License-Identifier: Apache-2.0
"""Sizes that no index or grid can hold are refused before anything is allocated, by number."""

import re

import pytest
import torch

import torchvox  # noqa: F401  (registers the ops)

ops = torch.ops.torchvox
CROWD = 1 << 30  # queries of each of two clouds
EVERYWHERE = ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu)]

each_device = pytest.mark.parametrize("device", EVERYWHERE)


def rows(device, *shape, dtype=torch.float32):
    """All alike, in the memory of one."""
    return torch.zeros((), dtype=dtype, device=device).expand(*shape)


def offsets(device):
    none = torch.zeros(3, dtype=torch.int32, device=device)
    return {"batch_offsets": none, "query_batch_offsets": none}


# Of padded clouds, and where they take offsets of packed ones.
SEARCHES = {
    "ball_query": lambda p, q, **o: ops.ball_query(p, q, 1.0, 1, **o),
    "query_and_group": lambda p, q: ops.query_and_group(p, q, None, [1.0], [1]),
    "knn": lambda p, q, **o: ops.knn(p, q, 1, **o),
    "three_nn": lambda p, q, **o: ops.three_nn(q, p, **o),
}


@each_device
@pytest.mark.parametrize("op", SEARCHES)
def test_more_queries_than_a_grid_has_blocks_are_refused(op, device):
    words = f"{op}: the queries of all clouds must be fewer than 2^31, got {2 * CROWD}"
    with pytest.raises(ValueError, match=re.escape(words)):
        SEARCHES[op](rows(device, 2, 1, 3), rows(device, 2, CROWD, 3))
    if op != "query_and_group":
        with pytest.raises(ValueError, match=re.escape(words)):
            SEARCHES[op](rows(device, 1, 3), rows(device, 2 * CROWD, 3), **offsets(device))


# Calls of one cloud whose slots are 2^31 or more, by the argument whose gradient lists them.
SLOTS = {
    "gather_points": lambda p, q, i: ops.gather_points(p, i[..., 0]),
    "group_points": lambda p, q, i: ops.group_points(p, i),
    "three_interpolate": lambda p, q, i: ops.three_interpolate(p, i, rows(p.device, 1, CROWD, 3)),
    "three_interpolate, packed": lambda p, q, i: ops.three_interpolate(
        p[0], i[0], rows(p.device, CROWD, 3), **offsets(p.device)
    ),
    "ball_query": lambda p, q, i: ops.ball_query(p, q, 1.0, 3),
    "ball_query, packed": lambda p, q, i: ops.ball_query(p[0], q[0], 1.0, 3, **offsets(p.device)),
    "group_points, packed": lambda p, q, i: ops.group_points(p[0], i[0], **offsets(p.device)),
    "knn": lambda p, q, i: ops.knn(p, q, 3),
    "knn, packed": lambda p, q, i: ops.knn(p[0], q[0], 3, **offsets(p.device)),
    "three_nn": lambda p, q, i: ops.three_nn(q, p),
    "three_nn, packed": lambda p, q, i: ops.three_nn(q[0], p[0], **offsets(p.device)),
    "query_and_group": lambda p, q, i: ops.query_and_group(p, q, None, [1.0, 2.0], [1, 2]),
    "interpolate_features": lambda p, q, i: ops.interpolate_features(q, p, p),
}


@each_device
@pytest.mark.parametrize("op", SLOTS)
def test_a_forward_whose_gradient_has_too_many_slots_is_refused(op, device):
    points = torch.zeros(1, 2, 3, device=device, requires_grad=True)
    queries = 3 * CROWD if op == "gather_points" else CROWD
    query, idx = rows(device, 1, queries, 3), rows(device, 1, queries, 3, dtype=torch.int32)
    words = (
        f"a gradient takes fewer than 2^31 slots a cloud, queries times neighbors, got {3 * CROWD}"
    )
    with pytest.raises(ValueError, match=re.escape(words)):
        SLOTS[op](points, query, idx)
    with torch.no_grad():  # nothing limits them
        assert SLOTS[op](*(t.to("meta") for t in (points, query, idx))) is not None


def test_a_backward_over_too_many_slots_is_refused_on_meta_tensors():
    grad, idx = rows("meta", 1, CROWD, 2, 3), rows("meta", 1, CROWD, 2, dtype=torch.int32)
    points, query = rows("meta", 1, 2, 3), rows("meta", 1, CROWD, 3)
    calls = [
        lambda: ops._group_points_backward(grad, idx, 2),
        lambda: ops._gather_points_backward(grad.flatten(1, 2), idx.flatten(1), 2),
        lambda: ops._neighbor_distance_backward(grad[..., 0], points, query, idx),
        lambda: ops._query_and_group_backward(grad, points, query, idx, 0, [1.0], [2]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="a gradient takes fewer than 2\\^31 slots a cloud"):
            call()
