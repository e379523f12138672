# SPDX-License-Identifier: Apache-2.0
"""Clouds shared by the tests of searches, and the comparison of ops with their definition."""

from functools import partial

import torch
from helpers import check_op, cube, lattice

import torchvox  # noqa: F401  (registers the ops)

NAN, INF = float("nan"), float("inf")

check_ball_query = partial(check_op, "ball_query")
check_knn = partial(check_op, "knn")


def spoilt(n, seed=0, batch=1):
    """A cube with rows that are not finite, far away, or negative zeros."""
    points = cube(n, seed=seed, batch=batch)
    values = torch.tensor([NAN, INF, -INF, 1e30, -1e30, -0.0])
    for k, value in enumerate(values):
        points[:, k :: 17 + k, k % 3] = value
    return points


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


def queries_of(points, count=12, seed=0):
    """[B, count, D]: points of the clouds, places between them, and one far outside."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, max(points.size(1), 1), (count,), generator=rng)
    query = points[:, rows].clone()
    step = points.double().std().to(points.dtype) if points.numel() > 1 else 0.0
    query[:, 1::2] += step * torch.rand(query[:, 1::2].shape, generator=rng).to(points.dtype)
    query[:, -1] = points.amax() * 3
    return query
