# SPDX-License-Identifier: Apache-2.0
"""What furthest point sampling promises, checked without any second implementation of it."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from fps_cases import CLOUDS, samples
from helpers import cube, lattice
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvox.reference.sampling import squared_distance


def assert_greedy(points, idx, dist2, dist_order="pn2"):
    """Each sample attains the largest running minimum, and dist2 is that value."""
    points = points.numpy()
    running = np.full(len(points), np.inf, np.float32)
    for j, i in enumerate(idx):
        if j > 0:
            assert dist2[j] == running.max() == running[i]
        running = np.minimum(running, squared_distance(points, points[i], dist_order))


@pytest.mark.parametrize("dist_order", ["pn2", "loop"])
@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
@pytest.mark.parametrize("name", CLOUDS)
def test_every_sample_is_a_furthest_point(device, name, tie, dist_order):
    points = CLOUDS[name]
    idx, dist2 = samples(device, points, 50, tie=tie, dist_order=dist_order)
    assert_greedy(points[0], idx[0], dist2[0], dist_order)


@pytest.mark.parametrize("name", CLOUDS)
def test_distinct_selects_every_point_exactly_once(device, name):
    n = CLOUDS[name].size(1)
    idx, _ = samples(device, CLOUDS[name], n)
    assert sorted(idx[0].tolist()) == list(range(n))


@pytest.mark.parametrize("name", [*CLOUDS, "large"])
def test_a_prefix_of_an_order_is_the_order_of_the_prefix(device, name):
    points = lattice(9000, side=30) if name == "large" else CLOUDS[name]
    order, dist2 = samples(device, points, 64)
    for s in (1, 2, 17, 64):
        prefix = points[:, order[0, :s]]
        idx, inner = samples(device, prefix, s)
        assert idx[0].tolist() == list(range(s))
        np.testing.assert_array_equal(inner[0], dist2[0, :s])


@pytest.mark.parametrize("n", [50, 1024, 9000])
def test_permuting_a_cloud_without_ties_permutes_the_result(device, n):
    points = cube(n, seed=n)
    shuffle = torch.from_numpy(np.random.default_rng(1).permutation(n))
    start = int((shuffle == 0).nonzero())
    idx, dist2 = samples(device, points, 20)
    shuffled, dist2_shuffled = samples(device, points[:, shuffle], 20, start=start)
    np.testing.assert_array_equal(shuffle.numpy()[shuffled], idx)
    np.testing.assert_array_equal(dist2_shuffled, dist2)


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
