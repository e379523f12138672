# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view rasters of a 360-degree sweep."""

from pathlib import Path
from typing import Dict, List

import torch

import torchvox
from benchmarks.timing import measure, scan

RANGE = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
SIZE = [1024, 1024]


def run(device: str, data: Path) -> List[Dict[str, object]]:
    sweep = scan(data, "lidar/hdl64_360.bin", 4)
    if sweep is None:
        return []
    points = sweep.to(device)
    ops = torch.ops.torchvox
    cases = {
        "bev_max_height 111k 1024^2 uint8": lambda: ops.bev_max_height(
            points, RANGE, SIZE, out_dtype=torch.uint8
        ),
        "bev_max_height 111k 1024^2 float32": lambda: ops.bev_max_height(points, RANGE, SIZE),
        "bev_max_height_with_index 111k 1024^2 uint8": lambda: ops.bev_max_height_with_index(
            points, RANGE, SIZE, out_dtype=torch.uint8
        ),
        "bev_rasterize 111k complex_yolo": lambda: ops.bev_rasterize(
            points, **torchvox.bev_preset("complex_yolo")
        ),
    }
    return [measure(name, call, device) for name, call in cases.items()]
