# SPDX-License-Identifier: Apache-2.0
"""Clouds, grids and the one comparison that the tests of the voxel ops share."""

from __future__ import annotations

import numpy as np
import torch
from helpers import check_op

import torchvox  # noqa: F401  (registers the ops)

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
REDUCTIONS = ("none", "mean", "max", "min", "sum")
ORDERS = ("first", "zyx", "xyz")
BOUNDS = ("grid", "range")

# 40 x 40 x 20 cells of 0.2 m: small enough for a dense table, big enough for chains in a hash.
VOXEL_SIZE = [0.2, 0.2, 0.2]
RANGE = [-4.0, -4.0, -2.0, 4.0, 4.0, 2.0]
GRID = (VOXEL_SIZE, RANGE)

# One-meter cells in a cube of four: cells can be read off the coordinates.
UNIT_GRID = ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 4.0, 4.0, 4.0])

# Columns of counts.
KEPT, FOUND, STORED, OVER_POINTS, OVER_VOXELS, OUT_OF_RANGE, NON_FINITE, ZERO = range(8)


def check_voxelize(device: str, *args, **kwargs) -> tuple[torch.Tensor, ...]:
    """As `check_op`, and counts that are consistent."""
    outputs = check_op("voxelize", device, *args, **kwargs)
    _, indices, num_points, point_voxel, counts = outputs
    assert torch.equal(counts[0], counts[1:].sum(dim=0).int())
    assert torch.all(counts[:, ZERO] == 0)
    kept = int(counts[0, KEPT])
    assert torch.all(indices[:kept] >= 0)
    assert torch.all(indices[kept:] == -1)
    assert int(num_points.sum()) == int(counts[0, STORED])
    in_a_row = int((point_voxel >= 0).sum())
    assert in_a_row == int(counts[0, STORED] + counts[0, OVER_POINTS])
    return outputs


def street_cloud(n: int, num_features: int = 4, seed: int = 0, dtype=torch.float32):
    """Clustered points in millimeters, a few per cent out of RANGE, a few not finite.

    Sensor data are quantized, so many of these points lie exactly on voxel faces.
    """
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-4, 4, (max(n // 40, 1), 3)) * (1, 1, 0.5)
    xyz = centers[rng.integers(len(centers), size=n)] + rng.normal(0, 0.25, (n, 3))
    xyz = np.round(xyz * 1000) / 1000
    on_faces = rng.random(n) < 0.2
    xyz[on_faces] = np.round(xyz[on_faces] * 5) / 5
    features = rng.normal(0, 1, (n, num_features - 3))
    cloud = np.concatenate([xyz, features], axis=1)
    bad = np.flatnonzero(rng.random(n) < 0.02)
    cloud[bad, rng.integers(3, size=len(bad))] = rng.choice([np.nan, np.inf, -np.inf], len(bad))
    return torch.from_numpy(cloud).to(dtype)


def cloud_at(*xyz: tuple[float, ...], dtype=torch.float32) -> torch.Tensor:
    """A cloud written down in a test: one tuple per point."""
    return torch.tensor(xyz, dtype=dtype).reshape(len(xyz), -1)


def cloud_on_x(xs, y: float, z: float, dtype=torch.float32) -> torch.Tensor:
    """Points whose x values are given and whose y and z are all the same."""
    x = torch.as_tensor(np.asarray(xs, np.float64)).to(dtype)
    return torch.stack([x, torch.full_like(x, y), torch.full_like(x, z)], dim=1)
