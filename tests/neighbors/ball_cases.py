# SPDX-License-Identifier: Apache-2.0
"""Clouds and comparisons shared by the tests of the ball query."""

import torch
from helpers import assert_same_bits, cube

import torchvox  # noqa: F401  (registers the ops)
from torchvox import reference

ops = torch.ops.torchvox
NAN, INF = float("nan"), float("inf")


def to(device, value):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def spoilt(n, seed=0, batch=1):
    """A cube with rows that are not finite, far away, or negative zeros."""
    points = cube(n, seed=seed, batch=batch)
    values = torch.tensor([NAN, INF, -INF, 1e30, -1e30, -0.0])
    for k, value in enumerate(values):
        points[:, k :: 17 + k, k % 3] = value
    return points


def assert_as_reference(device, points, query, radius, k, **options):
    """The op on `device` returns the bits of the reference, which are returned."""
    expected = reference.ball_query(points, query, radius, k, **options)
    on_device = {name: to(device, v) for name, v in options.items()}
    actual = ops.ball_query(points.to(device), query.to(device), radius, k, **on_device)
    for name, a, e in zip(("dist2", "idx", "count"), actual, expected, strict=True):
        assert_same_bits(a, e, name)
    return expected


def line(*xs):
    """[1, n, 3]: points on the x axis."""
    points = torch.zeros(1, len(xs), 3)
    points[0, :, 0] = torch.tensor(xs)
    return points


def found(device, points, query, radius, k, **options):
    """dist2, idx and count of one query, as lists."""
    outs = ops.ball_query(points.to(device), query.to(device), radius, k, **options)
    return tuple(out[0, 0].tolist() for out in outs)
