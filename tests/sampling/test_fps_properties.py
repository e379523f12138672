# SPDX-License-Identifier: Apache-2.0
"""What furthest point sampling promises, checked without any second implementation of it."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from fps_cases import CLOUDS, samples
from helpers import lattice
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("name", [*CLOUDS, "large"])
def test_a_prefix_of_an_order_is_the_order_of_the_prefix(device, name):
    points = lattice(9000, side=30) if name == "large" else CLOUDS[name]
    order, dist2 = samples(device, points, 64)
    for s in (1, 2, 17, 64):
        prefix = points[:, order[0, :s]]
        idx, inner = samples(device, prefix, s)
        assert idx[0].tolist() == list(range(s))
        np.testing.assert_array_equal(inner[0], dist2[0, :s])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(*[st.integers(-20, 20)] * 3), min_size=1, max_size=14),
    tie=st.sampled_from(["lowest", "mmcv"]),
)
def test_integer_clouds_equal_exact_arithmetic(rows, tie):
    """Small integers have exact distances, so plain Python is a third opinion."""

    def distance(a, b):
        return sum(Fraction(x - y) ** 2 for x, y in zip(a, b, strict=True))

    def code(i):
        return int(f"{i % 1024:010b}"[::-1], 2) if tie == "mmcv" else i

    expected = [0]
    while len(expected) < len(rows):
        left = [i for i in range(len(rows)) if i not in expected]
        nearest = {i: min(distance(rows[i], rows[j]) for j in expected) for i in left}
        expected.append(min(left, key=lambda i: (-nearest[i], code(i))))
    points = torch.tensor([rows], dtype=torch.float32)
    idx, _ = samples("cpu", points, len(rows), tie=tie)
    assert idx[0].tolist() == expected
