# SPDX-License-Identifier: Apache-2.0
"""Gradients of voxelize and voxel_scatter have the bits of the reference; tests/core compares them
with formulas and differences."""

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import REDUCTIONS, UNIT_GRID, cloud_at

from torchvox import reference

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
