# SPDX-License-Identifier: Apache-2.0
"""Gradients of voxelize and voxel_scatter have the bits of the reference; tests/core compares them
with formulas and differences."""

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import FLOAT_DTYPES, GRID, ORDERS, REDUCTIONS, UNIT_GRID, cloud_at, street_cloud

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


HOT = torch.rand(1500, 4, generator=torch.Generator().manual_seed(66)) * 0.9
OFFSETS, VALID = torch.tensor([10, 300, 300, 890]), torch.tensor([100, 5, 400])
BATCH = {"batch_offsets": OFFSETS, "num_valid": VALID}
PLAIN, CENTERED = {"center_relative": False}, {"center_relative": True}
CALLS = {
    **{
        f"{dtype} {sorted(options.items())}": (
            street_cloud(600, 5, seed=63, dtype=dtype), GRID, (4, 200), options
        )
        for dtype in FLOAT_DTYPES
        for options in (PLAIN, CENTERED)
    },
    **{
        f"to {dtype}": (street_cloud(600, seed=64), GRID, (4, -1), {"out_dtype": dtype})
        for dtype in (torch.float16, torch.bfloat16)
    },
    **{
        f"padded, {order}": (street_cloud(900, seed=65), GRID, (3, 60), {**BATCH, "order": order})
        for order in ORDERS
    },
    **{f"{most} of a hot voxel": (HOT, UNIT_GRID, (most, 2), {}) for most in (0, 40, 1200)},
    "out of range": (torch.full((5, 4), 99.0), UNIT_GRID, (2, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@each_reduction
def test_gradients_have_the_bits_of_the_reference(device, reduce, call):
    cloud, grid, caps, options = call
    grad = check_gradient(device, cloud, *grid, *caps, reduce=reduce, **options)
    if "num_valid" in options:
        assert (grad[:10] == 0).all() and (grad[110:300] == 0).all() and (grad[700:] == 0).all()


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


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("reduce", REDUCTIONS[1:])
def test_scatter_gradient_of_every_dtype(device, reduce, dtype):
    generator = torch.Generator().manual_seed(70)
    rows = torch.randint(-1, 40, (500,), generator=generator).int()
    feats = torch.randint(-3, 4, (500, 5), generator=generator).to(dtype)  # many ties
    csr = torch.ops.torchvox.voxel_csr(rows.to(device), 38)
    for lists in ({}, dict(zip(("offsets", "perm"), csr, strict=True))):
        leaf = feats.to(device, copy=True).requires_grad_()
        out, _ = torch.ops.torchvox.voxel_scatter(leaf, rows.to(device), 38, reduce, **lists)
        grad = random_like(out.shape, dtype)
        out.backward(grad.to(device))
        expected = reference.voxel_scatter_backward(grad, feats, rows, 38, reduce)
        assert_same_bits(leaf.grad.cpu(), expected)
        assert (expected[(rows < 0) | (rows >= 38)] == 0).all()
