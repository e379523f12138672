# SPDX-License-Identifier: Apache-2.0
"""three_interpolate, its weights, their gradients, and all at once: interpolate_features."""

import math

import pytest
import torch
from helpers import assert_same_bits, to
from op_infos import grouping, interpolation

from torchvox import reference

ops = torch.ops.torchvox
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def case(c, dtype=torch.float32, weight=torch.float32, channels_first=False, n=20):
    features = grouping.features_of(n, 1, c).to(dtype)
    return {
        "features": features.mT.contiguous() if channels_first else features,
        "idx": grouping.neighbors(11, n, 2),
        "weight": interpolation.weights_of(2, 11, 3).to(weight),
        "channels_first": channels_first,
    }


def often(rows: int) -> dict:
    """Points that many queries took."""
    g = torch.Generator().manual_seed(rows)
    return {
        "features": torch.randn(2, rows, 4, generator=g),
        "idx": torch.randint(-1, rows, (2, 700, 3), generator=g),
        "weight": torch.rand(2, 700, 3, generator=g),
    }


CASES = {
    **{
        f"{c} channels of {dtype}, {weight}, {'first' if channels_first else 'last'}": case(
            c, dtype, weight, channels_first
        )
        for channels_first in (False, True)
        for dtype in FLOATS
        for weight in {torch.float32: 0, dtype: 0}
        for c in (0, 1, 3, 8, 33, 70)
    },
    **{f"{rows} rows": often(rows) for rows in (1, 3)},
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_gradients_equal_the_reference(device, name):
    call = CASES[name]
    expected = reference.three_interpolate(**call)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(expected)
    gradients = reference.three_interpolate_backward(grad, **call)
    there = {k: to(device, v) for k, v in call.items()}
    assert_same_bits(ops.three_interpolate(**there), expected)
    assert_same_bits(ops._three_interpolate_backward(grad.to(device), **there), gradients)


def test_an_index_outside_reads_zeros_and_gives_its_weight_no_gradient(device):
    features = torch.full((1, 2, 4), 3.0, device=device, requires_grad=True)
    weight = torch.tensor([[[1.0, 2.0, 4.0]]], device=device, requires_grad=True)
    idx = torch.tensor([[[1, -1, 2]]], device=device)
    out = ops.three_interpolate(features, idx, weight)
    assert out.tolist() == [[[3.0] * 4]]
    out.sum().backward()
    assert features.grad[0, :, 0].tolist() == [0, 1]
    assert weight.grad.tolist() == [[[12, 0, 0]]]


@pytest.mark.parametrize("options", [{}, {"eps": 0.5}, {"weight": "dist2"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_interpolation_weights_equal_the_reference(device, dtype, options):
    dist2 = interpolation.some_distances(300).to(dtype)
    actual = ops.interpolation_weights(dist2.to(device), **options)
    assert_same_bits(actual, reference.interpolation_weights(dist2, **options))
    grad = torch.randn(dist2.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    there = (grad.to(device), dist2.to(device))
    slope = ops._interpolation_weights_backward(*there, **options)
    assert_same_bits(slope, reference.interpolation_weights_backward(grad, dist2, **options))


@pytest.mark.parametrize("weight", ["dist", "dist2"])
def test_the_gradient_of_the_weights_is_exact_where_a_query_all_but_lies_on_a_point(device, weight):
    """One weight is all but 1 there: what cancels in the formula takes float64 to see."""
    g = torch.Generator().manual_seed(1)
    dist2 = 10 ** (torch.rand(3000, 3, generator=g) * 16 - 16)
    dist2[0], dist2[1] = torch.tensor([[0.617772, 0, math.inf], [0.617772, 3.4e-12, math.inf]])
    dist2[2::9, 0] = 0 if weight == "dist2" else 1e-20
    grad = torch.randn(3000, 3, generator=g)
    got = ops._interpolation_weights_backward(grad.to(device), dist2.to(device), weight=weight)
    d2, slope = dist2.double(), grad.double()
    d = d2.sqrt() if weight == "dist" else d2
    u = 1 / (d + 1e-8)
    terms = (slope[:, :, None] - slope[:, None]) * (u / u.sum(1, keepdim=True))[:, None]
    by_dist2 = -u * u / u.sum(1, keepdim=True) / (2 * d if weight == "dist" else 1)
    exact, scale = by_dist2 * terms.sum(2), by_dist2.abs() * terms.abs().sum(2)
    sloped = (d > 0) | (weight == "dist2")
    assert ((got.cpu() - exact).abs() <= 1e-6 * scale)[sloped].all()
    assert (got.cpu()[~sloped] == 0).all()


def test_a_query_on_a_point_takes_its_feature_and_one_point_is_broadcast(device):
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 9]]], device=device)
    features = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]], device=device)
    out = ops.interpolate_features(points, points, features)
    torch.testing.assert_close(out, features)
    one = torch.ones(1, dtype=torch.int32, device=device)
    assert (
        ops.interpolate_features(points, points, features, lengths=one).flatten().tolist()
        == [1] * 4
    )
