# SPDX-License-Identifier: Apache-2.0
"""Furthest point sampling of unit cubes and of a real sweep."""

from pathlib import Path
from typing import Dict, List

import torch

import torchvox  # noqa: F401
from benchmarks.timing import measure, scan


def run(device: str, data: Path) -> List[Dict[str, object]]:
    generator = torch.Generator().manual_seed(0)

    def cube(clouds: int, points: int) -> torch.Tensor:
        return torch.rand(clouds, points, 3, generator=generator).to(device)

    cases = [
        ("32 x 1024 -> 512", cube(32, 1024), 512),
        ("32 x 4096 -> 1024", cube(32, 4096), 1024),
        ("1 x 16384 -> 4096", cube(1, 16384), 4096),
        ("1 x 65536 -> 16384", cube(1, 65536), 16384),
    ]
    sweep = scan(data, "lidar/hdl64_360.bin", 4)
    kitti = scan(data, "lidar/kitti_000008.bin", 4)
    if sweep is not None and kitti is not None:
        cases.append(("17k KITTI -> 4096", kitti[None, :, :3].to(device), 4096))
        cases.append(("111k sweep -> 16384", sweep[None, :, :3].to(device), 16384))
    return [
        measure(
            f"furthest_point_sample {name}",
            lambda p=points, n=samples: torch.ops.torchvox.furthest_point_sample(p, n),
            device,
        )
        for name, points, samples in cases
    ]
