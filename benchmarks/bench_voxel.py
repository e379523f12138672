# SPDX-License-Identifier: Apache-2.0
"""Voxelization of real scans: pillars and voxels, and what a half mean costs."""

from pathlib import Path
from typing import Dict, List

import torch

import torchvox  # noqa: F401
from benchmarks.timing import measure, scan

KITTI_PILLARS = ([0.16, 0.16, 4.0], [0.0, -39.68, -3.0, 69.12, 39.68, 1.0])
SWEEP_PILLARS = ([0.16, 0.16, 4.0], [-39.68, -39.68, -3.0, 39.68, 39.68, 1.0])
SWEEP_20CM = ([0.2, 0.2, 0.2], [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0])
SWEEP_75MM = ([0.075, 0.075, 0.2], [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0])


def run(device: str, data: Path) -> List[Dict[str, object]]:
    kitti = scan(data, "lidar/kitti_000008.bin", 4)
    sweep = scan(data, "lidar/hdl64_360.bin", 4)
    if kitti is None or sweep is None:
        return []
    kitti, sweep = kitti.to(device), sweep.to(device)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(9 * sweep.size(0), 4, generator=generator).to(device) * 0.05
    million = sweep.repeat(9, 1) + noise
    half = torch.half
    cases = [
        ("17k KITTI pillars P=32 mean", kitti, KITTI_PILLARS, 32, "mean", None),
        ("111k sweep 0.2 m P=10 mean half", sweep, SWEEP_20CM, 10, "mean", half),
        ("111k sweep 0.2 m P=10 none", sweep, SWEEP_20CM, 10, "none", None),
        ("111k sweep pillars P=32 mean half", sweep, SWEEP_PILLARS, 32, "mean", half),
        ("111k sweep 0.075 m P=10 mean half", sweep, SWEEP_75MM, 10, "mean", half),
        ("1M 0.2 m P=10 mean half", million, SWEEP_20CM, 10, "mean", half),
    ]
    return [
        measure(
            f"voxelize {name}",
            lambda p=points, g=grid, n=cap, r=reduce, d=dtype: torch.ops.torchvox.voxelize(
                p, *g, n, -1, reduce=r, out_dtype=d
            ),
            device,
        )
        for name, points, grid, cap, reduce, dtype in cases
    ]
