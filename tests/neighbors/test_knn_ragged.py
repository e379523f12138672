# SPDX-License-Identifier: Apache-2.0
"""knn_ragged and three_nn: clouds of different sizes in one call, hostile offsets."""

import pytest
import torch
from helpers import assert_same_bits, cube, lattice
from knn_cases import INF, assert_ragged_as_reference, ops

import torchvox
from torchvox import reference

POINTS, QUERY = lattice(400, seed=1)[0], lattice(60, seed=2)[0] + 0.25
OFFSETS, QUERY_OFFSETS = torch.tensor([0, 3, 3, 250, 400]), torch.tensor([0, 10, 20, 50, 60])


@pytest.mark.parametrize("k", [1, 5, 40, 300])
@pytest.mark.parametrize("local_index", [False, True])
def test_clouds_of_different_sizes(device, local_index, k):
    assert_ragged_as_reference(
        device, POINTS, QUERY, OFFSETS, QUERY_OFFSETS, k, local_index=local_index
    )


@pytest.mark.parametrize("options", [{"norm": 1}, {"dist_order": "loop"}])
def test_options(device, options):
    assert_ragged_as_reference(
        device, POINTS, QUERY, OFFSETS.int(), QUERY_OFFSETS.int(), 7, **options
    )


def test_a_ragged_call_equals_one_call_per_cloud(device):
    points, query = cube(3000, seed=3)[0], cube(90, seed=4)[0]
    batch_offsets, query_batch_offsets = (
        torch.tensor([0, 2500, 2600, 3000]),
        torch.tensor([0, 40, 70, 90]),
    )
    got = ops.knn_ragged(
        *(t.to(device) for t in (points, query, batch_offsets, query_batch_offsets)), 9
    )
    for b in range(3):
        rows = slice(query_batch_offsets[b], query_batch_offsets[b + 1])
        dist2, idx = ops.knn(
            points[None, batch_offsets[b] : batch_offsets[b + 1]], query[None, rows], 9
        )
        assert_same_bits(got[0][rows].cpu(), dist2[0])
        assert_same_bits(got[1][rows].cpu(), (idx[0] + batch_offsets[b]).int())


def test_queries_and_points_outside_every_cloud_are_alone(device):
    batch_offsets, query_batch_offsets = torch.tensor([50, 60, 80]), torch.tensor([5, 6, 30])
    dist2, idx = assert_ragged_as_reference(
        device, POINTS, QUERY, batch_offsets, query_batch_offsets, 2
    )
    assert (idx[:5] == -1).all() and (dist2[30:] == INF).all()
    assert ((idx[5:30] >= 50) & (idx[5:30] < 80)).all()


@pytest.mark.parametrize(
    ("batch_offsets", "query_batch_offsets"),
    [
        ([-5, 100, 4000], [-9, 3, 1 << 40]),
        ([0, 0, 0], [0, 30, 60]),
        ([0, 400, 400], [0, 60, 60]),
        ([0], [0]),
    ],
)
def test_offsets_are_clamped(device, batch_offsets, query_batch_offsets):
    assert_ragged_as_reference(
        device, POINTS, QUERY, torch.tensor(batch_offsets), torch.tensor(query_batch_offsets), 3
    )


@pytest.mark.parametrize("k", [3, 200])
def test_offsets_in_disorder_stay_in_bounds(device, k):
    batch_offsets, query_batch_offsets = (
        torch.tensor([300, 20, 390, -7, 100]),
        torch.tensor([40, 2, 55, 12, 60]),
    )
    tensors = [t.to(device) for t in (POINTS, QUERY, batch_offsets, query_batch_offsets)]
    _, idx = ops.knn_ragged(*tensors, k)
    assert ((idx >= -1) & (idx < 400)).all()


@pytest.mark.parametrize(
    "query_batch_offsets", [[40, 2, 55, 12, 60], [-9, 70, 20, 20, 55], [60, 0, 0, 0, 60]]
)
def test_knn_and_ball_query_agree_about_the_owner_of_a_query(device, query_batch_offsets):
    """Also where offsets are in disorder: one definition serves both."""
    tensors = [t.to(device) for t in (POINTS, QUERY, OFFSETS, torch.tensor(query_batch_offsets))]
    _, nearest = ops.knn_ragged(*tensors, 1)
    _, hits, count = ops.ball_query_ragged(*tensors, radius=1e3, k=400, fill="pad")
    assert ((nearest[:, 0] >= 0) == (count > 0)).all()
    assert ((hits == nearest) | (nearest < 0)).any(1).all()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 900])
def test_three_nn(device, n):
    points, query = cube(n, seed=n, batch=2), cube(33, seed=5, batch=2)
    got = torchvox.three_nn(query.to(device), points.to(device))
    assert_same_bits(tuple(got), reference.three_nn(query, points))
    assert (got.idx[..., n:] == -1).all() and (got.dist2[..., n:] == INF).all()
    ragged = torchvox.three_nn_ragged(
        query[0].to(device),
        points[0].to(device),
        torch.tensor([0, 33], device=device),
        torch.tensor([0, n], device=device),
    )
    assert_same_bits(tuple(ragged), (got.dist2[0], got.idx[0]))
