# SPDX-License-Identifier: Apache-2.0
"""Start points, start sets, per-cloud lengths and counts of furthest_point_sample."""

import pytest
import torch
from fps_cases import assert_as_reference
from helpers import cube

INF = float("inf")


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"start": 0}, [0] * 3),
        ({"start": 99}, [99] * 3),
        ({"start": 100}, [0] * 3),  # no point: the first candidate
        ({"start": 20, "lengths": torch.tensor([20, 0, 21])}, [0, -1, 20]),
        ({"start_idx": torch.tensor([7, 0, 42])}, [7, 0, 42]),
        ({"start_idx": torch.tensor([7, 0, 42], dtype=torch.int32)}, [7, 0, 42]),
        ({"start_idx": torch.tensor([8, 9, 1]), "start": 3}, [8, 9, 1]),
        ({"start_idx": torch.tensor([100, 2**31 - 1, -1])}, [0] * 3),
        ({"start_idx": torch.tensor([-(2**31), 2**32 + 5, -(2**40)])}, [0] * 3),  # none wraps
    ],
    ids=str,
)
def test_the_first_sample_is_the_start(device, options, first):
    idx, dist2 = assert_as_reference(device, cube(100, batch=3), 10, **options)
    assert idx[:, 0].tolist() == first
    assert dist2[:, 0].tolist() == [INF if i >= 0 else 0 for i in first]
    assert torch.isfinite(dist2[:, 1:]).all()
