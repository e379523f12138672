# SPDX-License-Identifier: Apache-2.0
"""Clouds and comparisons shared by the tests of k nearest neighbors."""

import torch
from helpers import assert_same_bits, cube, lattice

from torchvox import reference

ops = torch.ops.torchvox
INF = float("inf")


def to(device, options):
    return {k: v.to(device) if torch.is_tensor(v) else v for k, v in options.items()}


def spiked():
    cloud = cube(200, seed=3)
    cloud[0, 17] = 1e30  # squares overflow
    cloud[0, 90:92] = -1e30
    return cloud


CLOUDS = {
    "cube": cube(300),
    "lattice": lattice(300),
    "duplicates": cube(40, seed=1).repeat(1, 6, 1),
    "all equal": torch.full((1, 200, 3), 0.3),
    "collinear": torch.arange(100.0).reshape(1, 100, 1) * torch.tensor([0.1, 0.2, 0.3]),
    "regular lattice": torch.cartesian_prod(*[torch.arange(6.0)] * 3)[None],
    "overflow": cube(100, seed=2, scale=3e38) - 1.5e38,
    "spiked": spiked(),
    "far from the origin": cube(150, seed=4) + 1e6,
    "denormal": cube(100, seed=5, scale=1e-38),
    "squares underflow": cube(100, seed=6, scale=1e-22),
    "negative zero": lattice(64, side=2, seed=7) * -0.0,
    "sorted along an axis": cube(2000, seed=8).sort(1).values,
}


def some_queries(points, count=12, seed=0):
    """[B, count, D]: points of the clouds, places between them, and one far outside."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, max(points.size(1), 1), (count,), generator=rng)
    query = points[:, rows].clone()
    step = points.double().std().to(points.dtype) if points.numel() > 1 else 0.0
    query[:, 1::2] += step * torch.rand(query[:, 1::2].shape, generator=rng).to(points.dtype)
    query[:, -1] = points.amax() * 3
    return query


def assert_as_reference(device, points, query, k, **options):
    """The op on `device` gives the bits of the reference; returns them."""
    expected = reference.knn(points, query, k, **options)
    got = ops.knn(points.to(device), query.to(device), k, **to(device, options))
    assert_same_bits(tuple(got), expected, "knn")
    return expected


def brute(points, query, k):
    """Of one cloud, in torch, in the pn2 rounding: dist2 [M, k] and idx [M, k] of distinct order.

    A float32 product is exact in float64, and the sum of one product and one float32, rounded to
    float64 and then to float32, is an fma but for rare double roundings; where those matter the
    reference decides.
    """
    d = (points[None].double() - query[:, None].double()).float().double()
    dx, dy, dz = d.unbind(-1)
    first = (dy * dy).float().double()
    d2 = (dz * dz + (dx * dx + first).float().double()).float()
    order = d2.sort(dim=1, stable=True)
    return order.values[:, :k], order.indices[:, :k].int()
