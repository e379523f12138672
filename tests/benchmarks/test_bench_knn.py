# SPDX-License-Identifier: Apache-2.0
"""How results of other implementations to find nearest neighbors are judged."""

import pytest
import torch

from benchmarks.neighbors_knn import KnnCase, all_distances, compare
from benchmarks.suite import WrongResult


@pytest.fixture
def case():
    points = torch.tensor([[[1.0, 0, 0], [-1, 0, 0], [0, 2, 0], [0, 0, 3]]])
    return KnnCase(points, torch.zeros(1, 1, 3), "by hand", 3)


def verdict(case, idx):
    return compare(case, torch.tensor([[idx]]), case.torchvox())


def test_equal_neighbors_pass(case):
    assert verdict(case, [0, 1, 2]) == "same neighbors"


def test_neighbors_at_one_distance_may_change_places(case):
    assert verdict(case, [1, 0, 2]).startswith("33.33 % of the neighbors in the same place")


@pytest.mark.parametrize(
    ("idx", "words"),
    [
        ([0, 1, 3], "a neighbor is farther away"),
        ([0, 0, 1], "a point is named twice"),
        ([0, 1, 4], "outside the cloud"),
        ([0, 1, -1], "outside the cloud"),
    ],
)
def test_other_neighbors_are_wrong(case, idx, words):
    with pytest.raises(WrongResult, match=words):
        verdict(case, idx)


@pytest.mark.parametrize("op", ["knn", "three_nn"])
def test_the_baseline_way_finds_the_same(op):
    case = KnnCase(torch.rand(2, 50, 3), torch.rand(2, 9, 3), "cube", 3, op)
    assert compare(case, all_distances(case), case.torchvox()) == "same neighbors"
