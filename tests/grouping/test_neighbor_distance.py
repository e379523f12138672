# SPDX-License-Identifier: Apache-2.0
"""The gradient of distances to neighbors, which ball_query, knn and three_nn share."""

import pytest
import torch
from helpers import assert_same_bits, to
from op_infos import grouping

from torchvox import reference


def random_call(m: int, n: int, k: int, dims: int = 3) -> dict:
    g = torch.Generator().manual_seed(dims)
    return {
        "grad_dist2": torch.randn(2, m, k, generator=g),
        "points": torch.randn(2, n, dims, generator=g),
        "query": torch.randn(2, m, dims, generator=g),
        "idx": grouping.neighbors(m, n, k=k),
    }


# Slots past the count and indices outside pass nothing on.
BY_HAND = {
    "grad_dist2": torch.ones(1, 3, 3), "points": torch.ones(1, 2, 3), "query": torch.zeros(1, 3, 3),
    "idx": torch.tensor([[[0, 0, 0], [1, -1, 2], [1, 1, 1]]]),
    "count": torch.tensor([[1, 3, 0]], dtype=torch.int32),
}  # fmt: skip
CALLS = {
    "by hand": lambda: BY_HAND,
    **{
        name: make
        for name, make in grouping.DISTANCE_SAMPLE_INPUTS.items()
        if not name.endswith("only")
    },
    "float64, norm 1": lambda: {**grouping.DISTANCE_SAMPLE_INPUTS["float64"](), "norm": 1},
    "no points": lambda: random_call(4, 0, 3),
    "no queries": lambda: random_call(0, 5, 3),
    **{f"{d} axes": lambda d=d: random_call(9, 20, 4, d) for d in (1, 2, 7)},
    # Lists that are summed in runs of 256.
    **{f"{k} slots": lambda k=k: random_call(3, 1, k) for k in (255, 256, 257, 700)},
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_equal_the_reference(device, name):
    call = CALLS[name]()
    expected = reference.neighbor_distance_backward(**call)
    there = {k: to(device, v) for k, v in call.items()}
    actual = torch.ops.torchvox._neighbor_distance_backward(**there)
    assert_same_bits(actual, expected)
    for i, other in enumerate(("for_query", "for_points")):  # one alone, the other empty
        alone = torch.ops.torchvox._neighbor_distance_backward(**there, **{other: False})
        assert_same_bits(alone[i], expected[i])
        assert alone[1 - i].shape == (0,)
    if call is BY_HAND:
        assert actual[0][0, :, 0].tolist() == [2, 2]
        assert actual[1][0, :, 0].tolist() == [-2, -2, 0]
