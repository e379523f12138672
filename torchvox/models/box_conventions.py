# SPDX-License-Identifier: Apache-2.0
"""Boxes in the conventions of other detection programs.

Ours: x, y, z of the center, length, width, height, yaw counter-clockwise from +x, and after them,
where there are nine columns, vx and vy; LiDAR frame, x forward, y left, z up; meters, radians.
"""

import math
from dataclasses import dataclass
from typing import Dict

import torch
from torch import Tensor

from torchvox._util.errors import expect


@dataclass(frozen=True)
class BoxConvention:
    """bottom: z is that of the lower side. clockwise: sizes are w, l, h, and the angle turns
    clockwise from -y: yaw = -angle - pi/2. angle_last: velocities stand before the angle."""

    source: str
    bottom: bool = False
    clockwise: bool = False
    angle_last: bool = False


CONVENTIONS: Dict[str, BoxConvention] = {
    "torchvox": BoxConvention("torchvox"),
    "openpcdet": BoxConvention("open-mmlab/OpenPCDet"),
    "mmdet3d": BoxConvention("open-mmlab/mmdetection3d from 1.0", bottom=True),
    "mmdet3d_0": BoxConvention("open-mmlab/mmdetection3d before 1.0", bottom=True, clockwise=True),
    "zhulf0804": BoxConvention("zhulf0804/PointPillars", bottom=True, clockwise=True),
    "det3d": BoxConvention("tianweiy/CenterPoint (det3d)", clockwise=True, angle_last=True),
}


def boxes_from(boxes: Tensor, convention: str) -> Tensor:
    """boxes [..., 7 or 9] of a convention (a key of CONVENTIONS) as ours.

    Angles are not wrapped: they come back as they were, up to rounding, from `boxes_to`.
    Differentiable. Raises ValueError for another name or number of columns.
    """
    rules = _rules(boxes, convention)
    if rules.angle_last:
        boxes = torch.cat([boxes[..., :6], boxes[..., -1:], boxes[..., 6:-1]], -1)
    z = boxes[..., 2:3] + boxes[..., 5:6] / 2 if rules.bottom else boxes[..., 2:3]
    return _assembled(boxes, z, rules.clockwise)


def boxes_to(boxes: Tensor, convention: str) -> Tensor:
    """Our boxes [..., 7 or 9] in another convention: the inverse of `boxes_from`."""
    rules = _rules(boxes, convention)
    z = boxes[..., 2:3] - boxes[..., 5:6] / 2 if rules.bottom else boxes[..., 2:3]
    turned = _assembled(boxes, z, rules.clockwise)
    if rules.angle_last:
        turned = torch.cat([turned[..., :6], turned[..., 7:], turned[..., 6:7]], -1)
    return turned


def _assembled(boxes: Tensor, z: Tensor, clockwise: bool) -> Tensor:
    """With another z, and where clockwise, in the other sense: the same step either way."""
    sizes, yaw = boxes[..., 3:6], boxes[..., 6:7]
    if clockwise:
        sizes = boxes[..., [4, 3, 5]]
        yaw = -yaw - math.pi / 2
    return torch.cat([boxes[..., :2], z, sizes, yaw, boxes[..., 7:]], -1)


def _rules(boxes: Tensor, convention: str) -> BoxConvention:
    names, shape = sorted(CONVENTIONS), list(boxes.shape)
    expect(convention in names, f"convention must be one of {names}", convention)
    expect(shape[-1:] in ([7], [9]), "boxes must be [..., 7] or [..., 9]", shape)
    return CONVENTIONS[convention]
