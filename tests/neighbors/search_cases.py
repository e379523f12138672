# SPDX-License-Identifier: Apache-2.0
"""Clouds shared by the tests of searches, and the comparison of ops with their definition."""

from functools import partial

import torch
from helpers import check_op, cube

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


def queries_of(points, count=12, seed=0):
    """[B, count, D]: points of the clouds, places between them, and one far outside."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, max(points.size(1), 1), (count,), generator=rng)
    query = points[:, rows].clone()
    step = points.double().std().to(points.dtype) if points.numel() > 1 else 0.0
    query[:, 1::2] += step * torch.rand(query[:, 1::2].shape, generator=rng).to(points.dtype)
    query[:, -1] = points.amax() * 3
    return query
