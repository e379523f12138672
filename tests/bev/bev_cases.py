# SPDX-License-Identifier: Apache-2.0
"""Clouds and comparisons shared by the tests of the BEV rasters."""

import numpy as np
import torch
from helpers import check_op, to

import torchvox  # noqa: F401  (registers the ops)

ops = torch.ops.torchvox
RANGE, SIZE = [-8.0, -6.0, -2.0, 8.0, 6.0, 2.0], [32, 20]
ORIENTATIONS = ["grid", "image", "north_up"]
CHANNELS = [
    "height_max", "height_min", "height_mean", "height_range", "height_norm", "intensity_top",
    "intensity_mean", "intensity_max", "count", "density", "occupancy:5", "slices:3",
]  # fmt: skip


def cloud(n=2000, seed=0, f=4, spread=1.1):
    """[n, f] points, about a quarter outside RANGE; heights on a 0.1 m lattice, so many ties."""
    rng = np.random.default_rng(seed)
    half = np.array([8.0, 6.0, 2.0]) * spread
    xyz = rng.uniform(-half, half, (n, 3))
    xyz[:, 2] = np.round(xyz[:, 2], 1)
    return torch.from_numpy(np.hstack([xyz, rng.random((n, f - 3))]).astype(np.float32))


def polluted(n=2000, seed=0):
    points = cloud(n, seed)
    for k, value in enumerate([float("nan"), float("inf"), -float("inf"), 1e30, -1e30]):
        points[k * 7 :: 97, k % 3] = value
    points[5::50, 2] = -0.0
    return points


def call(device, name, points, *args, **options):
    options = {k: to(device, v) for k, v in options.items()}
    outputs = getattr(ops, name)(points.to(device), *args, **options)
    return [o.cpu() for o in outputs]


def assert_all_as_reference(device, points, point_cloud_range=RANGE, size=SIZE, **options):
    """All three ops; the options are those they share. Returns height, top_index, counts."""
    check_op("bev_max_height", device, points, point_cloud_range, size, **options)
    channels = CHANNELS if points.size(1) > 3 else [c for c in CHANNELS if "intensity" not in c]
    args = (point_cloud_range, size, channels)
    check_op("bev_rasterize", device, points, *args, **options)
    return check_op("bev_max_height_with_index", device, points, point_cloud_range, size, **options)
