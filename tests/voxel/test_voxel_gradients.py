# SPDX-License-Identifier: Apache-2.0
"""Gradients of voxelize and voxel_scatter."""

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import (
    FLOAT_DTYPES,
    GRID,
    ORDERS,
    REDUCTIONS,
    UNIT_GRID,
    cloud_at,
    run_op,
    street_cloud,
)

from torchvox import reference


def features_of(points, *args, **kwargs):
    return torch.ops.torchvox.voxelize(points, *args, **kwargs)[0]


def smooth_cloud(n: int = 14) -> torch.Tensor:
    """float64 points well inside their cells, with distinct values in every column."""
    generator = torch.Generator().manual_seed(62)
    cells = torch.randint(0, 2, (n, 3), generator=generator)
    inside = 0.2 + 0.6 * torch.rand(n, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return torch.cat([cells + inside, values], dim=1)


@pytest.mark.one_of("max_points", "max_voxels")
@pytest.mark.parametrize("center_relative", [False, True])
@pytest.mark.parametrize(("max_points", "max_voxels"), [(14, -1), (2, -1), (2, 3), (0, 2)])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradcheck(device, reduce, max_points, max_voxels, center_relative):
    points = smooth_cloud().to(device).requires_grad_()

    def features(p):
        return features_of(
            p, *UNIT_GRID, max_points, max_voxels, reduce=reduce, center_relative=center_relative
        )

    assert torch.autograd.gradcheck(features, (points,))


def random_like(shape, dtype, seed=0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_gradient(device, cloud, *args, **kwargs) -> torch.Tensor:
    """The op's gradient against the reference's, bit for bit."""
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    points = cloud.to(device, copy=True).requires_grad_()
    features = features_of(points, *args, **moved)
    grad = random_like(features.shape, features.dtype)
    features.backward(grad.to(device))
    expected = reference.voxelize_backward(grad, cloud, *args, **kwargs)
    assert_same_bits(points.grad.cpu(), expected, "points.grad")
    return expected


@pytest.mark.one_of("center_relative")
@pytest.mark.parametrize("center_relative", [False, True])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradient_of_every_dtype(device, reduce, dtype, center_relative):
    cloud = street_cloud(600, 5, seed=63, dtype=dtype)
    check_gradient(device, cloud, *GRID, 4, 200, reduce=reduce, center_relative=center_relative)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradient_through_a_half_output(device, reduce, out_dtype):
    cloud = street_cloud(600, seed=64)
    grad = check_gradient(device, cloud, *GRID, 4, -1, reduce=reduce, out_dtype=out_dtype)
    assert grad.dtype == torch.float32


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradient_of_a_batch_with_padding(device, reduce, order):
    cloud = street_cloud(900, seed=65)
    offsets, valid = torch.tensor([10, 300, 300, 890]), torch.tensor([100, 5, 400])
    grad = check_gradient(
        device, cloud, *GRID, 3, 60, reduce=reduce, order=order,
        batch_offsets=offsets, num_valid=valid,
    )  # fmt: skip
    assert (grad[:10] == 0).all() and (grad[110:300] == 0).all() and (grad[700:] == 0).all()


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_hot_voxel_gradient(device, reduce):
    cloud = torch.rand(1500, 4, generator=torch.Generator().manual_seed(66)) * 0.9
    for max_points in (40, 1200):
        check_gradient(device, cloud, *UNIT_GRID, max_points, 2, reduce=reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_points_that_are_not_stored_get_exactly_zero(device, reduce):
    stored, over, past_voxels = (0.5, 0.5, 0.5, 1.0), (0.6, 0.5, 0.5, 9.0), (1.5, 0.5, 0.5, 9.0)
    outside, bad = (9.0, 0.5, 0.5, 9.0), (float("nan"), 0.5, 0.5, 9.0)
    cloud = cloud_at(stored, over, past_voxels, outside, bad)
    grad = check_gradient(device, cloud, *UNIT_GRID, 1, 1, reduce=reduce)
    assert_same_bits(grad[1:], torch.zeros(4, 4))
    assert (grad[0] != 0).all()


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_send_the_gradient_to_the_lowest_point(device, reduce):
    cloud = cloud_at((0.5, 0.5, 0.5, 0.0), (0.5, 0.5, 0.5, -0.0), (0.5, 0.5, 0.5, 0.0))
    grad = check_gradient(device, cloud, *UNIT_GRID, -1, 1, reduce=reduce)
    assert (grad[0] != 0).all() and (grad[1:] == 0).all()


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradient_of_nan_goes_to_the_first_nan(device, reduce):
    nan = float("nan")
    cloud = cloud_at((0.5, 0.5, 0.5, 9.0), (0.5, 0.5, 0.5, nan), (0.5, 0.5, 0.5, nan))
    grad = check_gradient(device, cloud, *UNIT_GRID, -1, 1, reduce=reduce)
    assert (grad[:, 3] != 0).tolist() == [False, True, False]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_expanded_incoming_gradient(device, reduce):
    """sum() sends back an expanded scalar: strides of zero."""
    points = street_cloud(400, seed=67).to(device).requires_grad_()
    features = features_of(points, *GRID, 3, 100, reduce=reduce)
    features.sum().backward()
    expected = reference.voxelize_backward(
        torch.ones(features.shape), points.detach().cpu(), *GRID, 3, 100, reduce=reduce
    )
    assert_same_bits(points.grad.cpu(), expected)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("n", [0, 5])
def test_gradient_without_voxels(device, n, reduce):
    points = torch.full((n, 4), 99.0, device=device, requires_grad=True)
    features_of(points, *UNIT_GRID, 2, 3, reduce=reduce).sum().backward()
    assert_same_bits(points.grad.cpu(), torch.zeros(n, 4))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_needing_a_gradient_changes_no_output(device, reduce):
    cloud = street_cloud(700, seed=68)
    plain = run_op("voxelize", device, cloud, *GRID, 3, 100, reduce=reduce)
    training = run_op(
        "voxelize", device, cloud.clone().requires_grad_(), *GRID, 3, 100, reduce=reduce
    )
    assert_same_bits(training, plain)


def test_only_features_require_grad(device):
    points = street_cloud(50).to(device).requires_grad_()
    voxels = torch.ops.torchvox.voxelize(points, *GRID, 3, 10)
    assert [o.requires_grad for o in voxels] == [True, False, False, False, False]
    assert not any(o.requires_grad for o in torch.ops.torchvox.voxel_map(points, *GRID, 3, 10))
    rows = torch.zeros(50, dtype=torch.int32, device=device)
    out, arg = torch.ops.torchvox.voxel_scatter(points, rows, 1, "max")
    assert out.requires_grad and not arg.requires_grad


def test_second_derivatives_raise(device):
    points = smooth_cloud().to(device).requires_grad_()
    features = features_of(points, *UNIT_GRID, 2, -1, reduce="mean")
    with pytest.raises(RuntimeError, match="no second derivative"):
        (grad,) = torch.autograd.grad((features**2).sum(), points, create_graph=True)
        grad.sum().backward()


@pytest.mark.parametrize("reduce", ["mean", "max", "min", "sum"])
def test_scatter_gradcheck(device, reduce):
    rows = torch.tensor([0, 2, -1, 2, 0, 9, 0], dtype=torch.int32, device=device)
    feats = torch.randn(7, 3, generator=torch.Generator().manual_seed(69), dtype=torch.float64)
    feats = feats.to(device).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda f: torch.ops.torchvox.voxel_scatter(f, rows, 4, reduce)[0], (feats,)
    )


@pytest.mark.parametrize("with_map", [False, True])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("reduce", ["mean", "max", "min", "sum"])
def test_scatter_gradient_of_every_dtype(device, reduce, dtype, with_map):
    generator = torch.Generator().manual_seed(70)
    rows = torch.randint(-1, 40, (500,), generator=generator).int()
    feats = torch.randint(-3, 4, (500, 5), generator=generator).to(dtype)  # many ties
    leaf = feats.to(device, copy=True).requires_grad_()
    csr = {}
    if with_map:
        offsets, perm = torch.ops.torchvox.voxel_csr(rows.to(device), 38)
        csr = {"offsets": offsets, "perm": perm}
    out, _ = torch.ops.torchvox.voxel_scatter(leaf, rows.to(device), 38, reduce, **csr)
    grad = random_like(out.shape, dtype)
    out.backward(grad.to(device))
    expected = reference.voxel_scatter_backward(grad, feats, rows, 38, reduce)
    assert_same_bits(leaf.grad.cpu(), expected)
    assert (expected[(rows < 0) | (rows >= 38)] == 0).all()
