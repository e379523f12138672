# SPDX-License-Identifier: Apache-2.0
"""The ops and their reference against values worked out by hand, so that neither is a guess."""

import math

import pytest
import torch
from voxel_cases import UNIT_GRID, check_op, check_voxelize, cloud_at

# Cells (x, y, z): A = (1, 2, 3), B = (0, 0, 0), C = (3, 0, 1).
A0, A1, A2 = (1.25, 2.5, 3.75, 10.0), (1.75, 2.0, 3.0, 20.0), (1.0, 2.75, 3.5, 60.0)
B0, B1 = (0.0, 0.0, 0.0, -1.0), (0.5, 0.25, 0.75, 3.0)
C0 = (3.5, 0.5, 1.5, 7.0)
OUTSIDE, NOT_FINITE = (4.0, 0.0, 0.0, 0.0), (math.nan, 0.0, 0.0, 0.0)

CLOUD = cloud_at(A0, B0, OUTSIDE, A1, C0, NOT_FINITE, A2, B1)


def test_first_come_voxels_with_both_caps(device):
    features, indices, num_points, point_voxel, counts = check_voxelize(
        device, CLOUD, *UNIT_GRID, 2, 2
    )
    zero = (0.0, 0.0, 0.0, 0.0)
    assert features.tolist() == [[list(A0), list(A1)], [list(B0), list(B1)]]
    assert indices.tolist() == [[0, 3, 2, 1], [0, 0, 0, 0]]
    assert num_points.tolist() == [2, 2]
    assert point_voxel.tolist() == [0, 1, -1, 0, -1, -1, 0, 1]  # C is past the voxel cap
    assert counts.tolist() == [[2, 3, 4, 1, 1, 1, 1, 0]] * 2
    *_, rows, slots, totals = check_op("voxel_map", device, CLOUD, *UNIT_GRID, 2, 2)
    assert slots.tolist() == [0, 0, -1, 1, -1, -1, -1, 1]
    assert torch.equal(rows, point_voxel) and torch.equal(totals, counts)
    features, indices, num_points, *_ = check_voxelize(device, CLOUD, *UNIT_GRID, 2, 4)
    assert features[2].tolist() == [list(C0), list(zero)]
    assert features[3].tolist() == [list(zero), list(zero)]
    assert indices.tolist()[2:] == [[0, 1, 0, 3], [-1, -1, -1, -1]]
    assert num_points.tolist() == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("order", "cells"),
    [
        ("first", [[0, 3, 2, 1], [0, 0, 0, 0], [0, 1, 0, 3]]),
        ("zyx", [[0, 0, 0, 0], [0, 1, 0, 3], [0, 3, 2, 1]]),
        ("xyz", [[0, 0, 0, 0], [0, 3, 2, 1], [0, 1, 0, 3]]),
    ],
)
def test_orders(device, order, cells):
    indices = check_voxelize(device, CLOUD, *UNIT_GRID, 1, -1, order=order)[1]
    assert indices.tolist() == cells + [[-1] * 4] * 5
    capped = check_voxelize(device, CLOUD, *UNIT_GRID, 1, 2, order=order)
    assert capped[1].tolist() == cells[:2]
