# SPDX-License-Identifier: Apache-2.0
"""The written semantics of knn, by hand."""

import pytest
import torch

from torchvox import reference

INF = float("inf")
LINE = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]]])
ORIGIN = torch.zeros(1, 1, 3)


def test_neighbors_come_nearest_first_with_squared_distances():
    dist2, idx = reference.knn(LINE, torch.tensor([[[3.0, 0, 0]]]), 3)
    assert idx.tolist() == [[[2, 3, 1]]] and dist2.tolist() == [[[1.0, 1.0, 4.0]]]


def test_of_equally_distant_points_the_lower_index_is_kept():
    points = torch.tensor([[[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]]])
    _, idx = reference.knn(points, ORIGIN, 2)
    assert idx.tolist() == [[[0, 1]]]


def test_a_slot_without_a_neighbor_holds_infinity_and_minus_one():
    dist2, idx = reference.knn(LINE, ORIGIN, 6, lengths=torch.tensor([2]))
    assert idx.tolist() == [[[0, 1, -1, -1, -1, -1]]]
    assert dist2.tolist() == [[[0.0, 1.0, INF, INF, INF, INF]]]


def test_a_distance_that_overflows_is_a_neighbor_all_the_same():
    points = torch.tensor([[[3e38, 0, 0], [-3e38, 0, 0], [1.0, 0, 0]]])
    dist2, idx = reference.knn(points, ORIGIN, 4)
    assert idx.tolist() == [[[2, 0, 1, -1]]] and dist2.tolist() == [[[1.0, INF, INF, INF]]]


@pytest.mark.parametrize("bad", [float("nan"), INF, -INF])
def test_points_and_queries_that_are_not_finite_have_no_neighbors(bad):
    points = LINE.clone()
    points[0, 1, 2] = bad
    assert reference.knn(points, ORIGIN, 2)[1].tolist() == [[[0, 2]]]
    query = torch.tensor([[[bad, 0.0, 0.0]]])
    assert reference.knn(LINE, query, 2)[1].tolist() == [[[-1, -1]]]


def test_norm_1_sums_absolute_differences():
    points = torch.tensor([[[1.0, 1, 1], [2.5, 0, 0]]])
    assert reference.knn(points, ORIGIN, 2)[0].tolist() == [[[3.0, 6.25]]]
    dist2, idx = reference.knn(points, ORIGIN, 2, norm=1)
    assert dist2.tolist() == [[[2.5, 3.0]]] and idx.tolist() == [[[1, 0]]]


def test_queries_past_their_number_have_no_neighbors():
    query = torch.zeros(2, 2, 3)
    _, idx = reference.knn(LINE.repeat(2, 1, 1), query, 1, query_lengths=torch.tensor([1, -5]))
    assert idx.tolist() == [[[0], [-1]], [[-1], [-1]]]


def test_packed_clouds_are_searched_by_their_own_queries():
    points, query = LINE[0], torch.tensor([[9.0, 0, 0], [0, 0, 0], [9, 0, 0], [9, 0, 0]])
    offsets = {
        "batch_offsets": torch.tensor([0, 2, 2, 4]),
        "query_batch_offsets": torch.tensor([0, 1, 2, 3]),
    }
    _, idx = reference.knn(points, query, 1, **offsets)
    assert idx.tolist() == [[1], [-1], [3], [-1]]
    _, idx = reference.knn(points, query, 1, **offsets, local_index=True)
    assert idx.tolist() == [[1], [-1], [1], [-1]]
