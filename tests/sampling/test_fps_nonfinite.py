# SPDX-License-Identifier: Apache-2.0
"""NaN, infinities, signed zeros, near-origin points and overflow in furthest_point_sample."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, samples
from helpers import cube

NAN, INF = float("nan"), float("inf")


def polluted(n=80, seed=0, batch=2):
    points = cube(n, seed=seed, batch=batch)
    for k, value in enumerate([NAN, INF, -INF, NAN]):
        points[:, 3 + 11 * k, k % 3] = value
    return points, [3, 14, 25, 36]


@pytest.mark.parametrize("tie", ["lowest", "mmcv"])
@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_nonfinite_points_are_never_chosen(device, tie, exhausted):
    points, bad = polluted()
    idx, _ = assert_as_reference(device, points, 80, tie=tie, exhausted=exhausted)
    assert not np.isin(idx.numpy(), bad).any()


def test_nonfinite_points_do_not_disturb_the_others(device):
    points, bad = polluted(batch=1)
    keep = [i for i in range(80) if i not in bad]
    idx, dist2 = samples(device, points, 40)
    clean_idx, clean_dist2 = samples(device, points[:, keep], 40)
    np.testing.assert_array_equal(idx[0], np.array(keep)[clean_idx[0]])
    np.testing.assert_array_equal(dist2, clean_dist2)


def test_last_appends_them_in_index_order(device):
    points, bad = polluted()
    idx, dist2 = assert_as_reference(device, points, 82, nonfinite="last")
    assert idx[0, 76:].tolist() == [*bad, -1, -1]
    assert dist2[0, 76:].tolist() == [0] * 6
    assert sorted(idx[0, :80].tolist()) == list(range(80))


def test_last_comes_after_duplicates_and_ignores_the_tie_rule(device):
    points = torch.ones(1, 8, 3)
    points[0, [1, 2, 4]] = NAN
    idx, _ = assert_as_reference(device, points, 8, nonfinite="last", tie="mmcv")
    assert idx[0].tolist() == [0, 6, 5, 3, 7, 1, 2, 4]


@pytest.mark.parametrize("nonfinite", ["skip", "last"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_start_on_a_nonfinite_point_becomes_the_first_candidate(device, value, nonfinite):
    points = cube(20)
    points[0, 4, 1] = value
    idx, dist2 = assert_as_reference(device, points, 20, start=4, nonfinite=nonfinite)
    assert idx[0, 0] == 0 and dist2[0, 0] == INF
    assert idx[0, 19] == (4 if nonfinite == "last" else -1)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_clouds_of_nonfinite_points_only(device, value):
    points = torch.full((2, 5, 3), value)
    idx, dist2 = assert_as_reference(device, points, 7)
    assert (idx == -1).all() and (dist2 == 0).all()
    idx, dist2 = assert_as_reference(device, points, 7, nonfinite="last")
    assert idx[0].tolist() == [0, 1, 2, 3, 4, -1, -1] and (dist2 == 0).all()
    idx, _ = assert_as_reference(device, points, 7, exhausted="repeat")
    assert (idx == 0).all()


def test_zero_signs_do_not_matter(device):
    points = cube(60) - 0.5
    points[0, ::3] = 0.0
    negative = points.clone()
    negative[0, ::3] = -0.0
    for a, b in zip(samples(device, points, 30), samples(device, negative, 30), strict=True):
        np.testing.assert_array_equal(a, b)


def test_distances_that_overflow_are_equal_and_legal(device):
    points = torch.tensor([[[0.0, 0, 0], [1e20, 0, 0], [-1e20, 0, 0], [0, 1e25, 0], [1, 0, 0]]])
    idx, dist2 = assert_as_reference(device, points, 5)
    assert idx[0].tolist() == [0, 1, 2, 3, 4]
    assert dist2[0].tolist() == [INF, INF, INF, INF, 1]


def test_differences_that_overflow_are_legal(device):
    points = torch.tensor([[[3e38, 0, 0], [-3e38, 0, 0], [-3e38, -3e38, 3e38]]])
    _, dist2 = assert_as_reference(device, points, 3)
    assert dist2[0].tolist() == [INF, INF, INF]


# |p|^2 <= 1e-3 in fp32 along one axis: the largest such x, and the float above it.
def edge_of_the_origin():
    x = np.float32(np.sqrt(1e-3))
    while np.float64(np.float32(x * x)) <= 1e-3:
        x = np.nextafter(x, np.float32(1))
    return np.nextafter(x, np.float32(0)), x


def test_skip_origin_at_the_two_floats_around_the_limit(device):
    inside, outside = edge_of_the_origin()
    assert np.float32(inside * inside) < np.float32(1e-3) <= np.float32(outside * outside)
    points = torch.zeros(1, 5, 3)
    points[0, 0, 0] = 4.0
    points[0, 1, 0] = float(inside)
    points[0, 2, 1] = float(outside)
    points[0, 3, 2] = -float(inside)
    idx, _ = assert_as_reference(device, points, 5, skip_origin=True)
    assert idx[0].tolist() == [0, 2, -1, -1, -1]


def test_skip_origin_limit_uses_the_fused_norm(device):
    rng = np.random.default_rng(5)
    direction = rng.normal(size=(20_000, 3))
    shell = direction / np.linalg.norm(direction, axis=1, keepdims=True) * np.sqrt(1e-3)
    points = torch.from_numpy(shell.astype(np.float32))[None]
    points[0, 0] = 1.0
    counts = assert_as_reference(device, points[:, :400], 400, skip_origin=True)[0]
    assert 100 < (counts >= 0).sum() < 300  # about half of the shell lies on each side


def test_skip_origin_of_float64_points_compares_in_float64(device):
    x = float(np.sqrt(np.float64(1e-3)))
    points = torch.zeros(1, 4, 3, dtype=torch.float64)
    points[0, 0, 0] = 4.0
    points[0, 1, 0] = np.nextafter(x, 1) + 1e-12
    points[0, 2, 1] = np.nextafter(x, 0) - 1e-12
    idx, _ = assert_as_reference(device, points, 4, skip_origin=True)
    assert idx[0].tolist() == [0, 1, -1, -1]


def test_skip_origin_emits_a_start_near_the_origin(device):
    points = torch.tensor([[[0.0, 0, 0], [0.001, 0, 0], [1, 0, 0], [2, 0, 0]]])
    idx, _ = assert_as_reference(device, points, 4, skip_origin=True)
    assert idx[0].tolist() == [0, 3, 2, -1]
    idx, _ = assert_as_reference(device, points, 4, skip_origin=True, exhausted="repeat")
    assert idx[0].tolist() == [0, 3, 2, 2]


@pytest.mark.parametrize("exhausted", ["distinct", "repeat"])
def test_a_cloud_without_any_candidate(device, exhausted):
    points = torch.zeros(1, 6, 3)
    idx, dist2 = assert_as_reference(
        device, points, 4, start=2, skip_origin=True, exhausted=exhausted
    )
    rest = 0 if exhausted == "repeat" else -1
    assert idx[0].tolist() == [2, rest, rest, rest]
    assert dist2[0].tolist() == [INF, 0, 0, 0]


def test_skip_origin_and_last_together(device):
    points = torch.zeros(1, 5, 3)
    points[0, 1] = 3.0
    points[0, 3] = NAN
    idx, _ = assert_as_reference(device, points, 5, skip_origin=True, nonfinite="last", start=4)
    assert idx[0].tolist() == [4, 1, 3, -1, -1]
