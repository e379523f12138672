# SPDX-License-Identifier: Apache-2.0
"""The boxes that an anchor head starts from."""

from typing import Sequence

import torch
from torch import Tensor

from torchvox.models.detection.config import AnchorConfig


def anchor_boxes(
    anchors: Sequence[AnchorConfig], size: Sequence[int], area: Sequence[float], grid: str
) -> Tensor:
    """[ny, nx, A, 7] float32 (x, y, z center, l, w, h, yaw), A by class and then by rotation.

    size: (nx, ny) of the map. area: (x0, y0, x1, y1) that it covers.
    """
    if grid not in ("ends", "centers"):
        raise ValueError(f"grid must be ends or centers, got {grid!r}")
    shapes = torch.tensor(
        [
            [anchor.bottom + anchor.size[2] / 2, *anchor.size, yaw]
            for anchor in anchors
            for yaw in anchor.rotations
        ],
        dtype=torch.float64,
    )
    boxes = torch.empty(size[1], size[0], len(shapes), 7)
    if boxes.is_meta:  # the shape of a network that is not made
        return boxes
    axes = []
    for count, low, high in zip(size, area[:2], area[2:], strict=True):
        if grid == "ends":
            places = torch.linspace(low, high, count, dtype=torch.float64)
        else:
            step = (high - low) / count
            places = low + step * (torch.arange(count, dtype=torch.float64) + 0.5)
        axes.append(places)
    boxes[..., 0] = axes[0][None, :, None]
    boxes[..., 1] = axes[1][:, None, None]
    boxes[..., 2:] = shapes
    return boxes
