# SPDX-License-Identifier: Apache-2.0
"""The ops, their gradients and their reference against values worked out by hand."""

import math

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import REDUCTIONS, UNIT_GRID, check_op, check_voxelize, cloud_at

from torchvox import reference

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


each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS)


def random_like(shape, dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def check_gradient(device, cloud, *args, **kwargs) -> torch.Tensor:
    """The op's gradient against the reference's, bit for bit."""
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    points = cloud.to(device, copy=True).requires_grad_()
    features = torch.ops.torchvox.voxelize(points, *args, **moved)[0]
    grad = random_like(features.shape, features.dtype)
    features.backward(grad.to(device))
    expected = reference.voxelize_backward(grad, cloud, *args, **kwargs)
    assert_same_bits(points.grad.cpu(), expected, "points.grad")
    return expected


@each_reduction
def test_points_that_are_not_stored_get_exactly_zero(device, reduce):
    stored, over, past_voxels = (0.5, 0.5, 0.5, 1.0), (0.6, 0.5, 0.5, 9.0), (1.5, 0.5, 0.5, 9.0)
    outside, bad = (9.0, 0.5, 0.5, 9.0), (float("nan"), 0.5, 0.5, 9.0)
    cloud = cloud_at(stored, over, past_voxels, outside, bad)
    grad = check_gradient(device, cloud, *UNIT_GRID, 1, 1, reduce=reduce)
    assert_same_bits(grad[1:], torch.zeros(4, 4))
    assert (grad[0] != 0).all()


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_send_the_gradient_to_the_lowest_point_and_nan_to_the_first_nan(device, reduce):
    place, nan = (0.5, 0.5, 0.5), float("nan")
    cloud = cloud_at((*place, 0.0), (*place, -0.0), (*place, 0.0))
    grad = check_gradient(device, cloud, *UNIT_GRID, -1, 1, reduce=reduce)
    assert (grad[0] != 0).all() and (grad[1:] == 0).all()
    cloud = cloud_at((*place, 9.0), (*place, nan), (*place, nan))
    grad = check_gradient(device, cloud, *UNIT_GRID, -1, 1, reduce=reduce)
    assert (grad[:, 3] != 0).tolist() == [False, True, False]
