# SPDX-License-Identifier: Apache-2.0
"""Gradients of the BEV rasters: to the top point's height, to intensities, and nowhere else."""

import pytest
import torch
from bev_cases import CHANNELS, RANGE, SIZE, call, cloud, ops, polluted
from helpers import assert_same_bits

from torchvox.reference import bev as reference

DIFFERENTIABLE = ["height_max", "height_norm", "height_mean", "intensity_top", "intensity_mean"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def noise(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_ties_give_the_gradient_to_the_lowest_row(device):
    points = torch.full((3, 3), 0.5, device=device, requires_grad=True)
    ops.bev_max_height(points, [0.0, 0, 0, 1, 1, 1], [1, 1])[0].sum().backward()
    assert points.grad.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_integer_heights_are_not_differentiable(device, dtype):
    points = cloud(50).to(device).requires_grad_()
    for op in (ops.bev_max_height, ops.bev_max_height_with_index):
        assert not any(o.requires_grad for o in op(points, RANGE, SIZE, out_dtype=dtype))


def leaf_on(device, values):
    return values.detach().clone().to(device).requires_grad_()


def rasterize_backward(device, points, channels, grad, features=None, **options):
    points = leaf_on(device, points)
    if features is not None:
        features = leaf_on(device, features)
    image, _ = ops.bev_rasterize(points, RANGE, SIZE, channels, features=features, **options)
    image.backward(grad.to(device))
    return points.grad, None if features is None else features.grad


FEATURES = noise((1500, 1), 1)
CALLS = {
    **{"-".join(c): (c, None) for c in ([[c] for c in CHANNELS] + [CHANNELS, DIFFERENTIABLE * 2])},
    "features": (DIFFERENTIABLE, FEATURES[:, 0]),
    "a column of features": (DIFFERENTIABLE, FEATURES),
}


@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CALLS)
def test_raster_gradients_equal_the_reference(device, name, dtype):
    channels, features = CALLS[name]
    if features is None:
        points = polluted(1500).to(dtype)
    else:
        points, features = polluted(1500), features.to(dtype)
    grad = noise(call("cpu", "bev_rasterize", points, RANGE, SIZE, channels)[0].shape)
    to_points, to_features = reference.bev_rasterize_backward(
        grad, points, RANGE, SIZE, channels, features=features
    )
    actual = rasterize_backward(device, points, channels, grad, features)
    assert_same_bits(actual[0], to_points)
    assert to_points.any() == any(c in DIFFERENTIABLE for c in channels)
    if features is not None:
        assert_same_bits(actual[1], to_features)
        assert (to_points[:, 3] == 0).all() and (to_features != 0).any()
