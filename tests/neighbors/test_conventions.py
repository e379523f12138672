# SPDX-License-Identifier: Apache-2.0
"""A convention is the op with the options that its table names."""

import pytest
import torch
from helpers import assert_same_bits, lattice

import torchvox
from torchvox import reference
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


@pytest.mark.parametrize(
    ("op", "convention"), [(op, name) for op, (table, _) in CALLS.items() for name in table]
)
def test_a_convention_sets_the_options_of_its_table(op, convention):
    table, call = CALLS[op]
    options = {k: v(0.7) if callable(v) else v for k, v in table[convention].items()}
    actual = getattr(torchvox, op)(*call, convention=convention)
    assert_same_bits(tuple(actual), getattr(reference, op)(*call, **options))


def test_fill_goes_before_the_convention():
    for fill in ("first", "pad"):
        got = torchvox.ball_query(POINTS, QUERY, 0.7, 5, fill=fill, convention="pytorch3d")
        assert (got.idx.min() < 0).item() == (fill == "pad")


def test_the_conventions_differ():
    """On the points about the radius: closed or open, squared in float32 or in double."""

    def hits(op, convention):
        radius = 0.7 if op == "ball_query" else [0.7]
        k = 40 if op == "ball_query" else [40]
        call = (NEAR, ORIGIN, radius, k) if op == "ball_query" else (NEAR, ORIGIN, None, radius, k)
        return int(getattr(torchvox, op)(*call, convention=convention).count)

    assert hits("ball_query", "pytorch3d") != hits("ball_query", "torch_cluster")
    assert hits("query_and_group", "torchvox") < hits("query_and_group", "yanx27")


@pytest.mark.parametrize("op", CALLS)
def test_an_unknown_convention_is_refused_by_name(op):
    words = f"{op}: convention must be one of 'torchvox', .*, got 'mmdet'"
    with pytest.raises(ValueError, match=words):
        getattr(torchvox, op)(*CALLS[op][1], convention="mmdet")
