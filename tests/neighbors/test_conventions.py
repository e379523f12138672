# SPDX-License-Identifier: Apache-2.0
"""A convention is the op with the options that its table names."""

import pytest
import torch
from helpers import lattice

import torchvox
from torchvox.ops.neighbors import BALL_QUERY_CONVENTIONS, GROUP_CONVENTIONS, KNN_CONVENTIONS

POINTS, QUERY = lattice(300, seed=1), lattice(40, seed=2)
POINTS[0, ::7] *= 0.7  # distances that either order rounds otherwise
ORIGIN, NEAR = torch.zeros(1, 1, 3), torch.zeros(1, 32, 3)
NEAR[0, :, 0] = 0.7 + torch.arange(-16, 16) * 2**-24
CALLS = {
    "ball_query": (BALL_QUERY_CONVENTIONS, (POINTS, QUERY, 0.7, 5)),
    "query_and_group": (GROUP_CONVENTIONS, (POINTS, QUERY, None, [0.7], [5])),
    "knn": (KNN_CONVENTIONS, (POINTS, QUERY, 5)),
    "three_nn": (KNN_CONVENTIONS, (QUERY, POINTS)),
}


def test_fill_goes_before_the_convention():
    for fill in ("first", "pad"):
        got = torchvox.ball_query(POINTS, QUERY, 0.7, 5, fill=fill, convention="pytorch3d")
        assert (got.idx.min() < 0).item() == (fill == "pad")


def test_the_conventions_differ():
    """On the points about the radius: closed or open, squared in float32 or in double."""
    count = {
        name: int(torchvox.ball_query(NEAR, ORIGIN, 0.7, 40, convention=name).count)
        for name in ("pytorch3d", "torch_cluster")
    }
    assert count["pytorch3d"] != count["torch_cluster"]
    grouped = [
        int(torchvox.query_and_group(NEAR, ORIGIN, None, [0.7], [40], convention=name).count)
        for name in ("torchvox", "yanx27")
    ]
    assert grouped[0] < grouped[1]


@pytest.mark.parametrize("op", CALLS)
def test_an_unknown_convention_is_refused_by_name(op):
    """Conventions of all domains are looked up by one function."""
    words = f"{op}: convention must be one of 'torchvox', .*, got 'mmdet'"
    with pytest.raises(ValueError, match=words):
        getattr(torchvox, op)(*CALLS[op][1], convention="mmdet")
