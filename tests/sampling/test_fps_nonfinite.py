# SPDX-License-Identifier: Apache-2.0
"""skip_origin of furthest_point_sample, at the floats around its limit."""

import numpy as np
import torch
from fps_cases import assert_as_reference


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
