# SPDX-License-Identifier: Apache-2.0
"""The pillar detectors of open-mmlab/mmdetection3d, rewritten in plain torch from their published
behavior: same parameters by the same names, boxes in its convention (x, y of the center, z of the
bottom, l, w, h, counter-clockwise yaw (, vx, vy)); `clockwise` for that of releases before 1.0 (w,
l, h, angle clockwise from -y).
"""

from typing import Sequence

import torch
from torch import Tensor, nn

from .boxes import (
    PI,
    AnchorClass,
    AnchorRules,
    Boxes,
    anchor_boxes,
    anchor_head,
    anchors,
    per_class,
)
from .centers import CENTER_RULES, CenterNet, CenterRules, Maps
from .pillars import (
    KITTI_BACKBONE_NECK,
    NUSCENES_CONV_BACKBONE_NECK,
    BackboneNeck,
    Grid,
    PillarNet,
)

NAMES = ("voxel_encoder", "backbone", "neck", "bbox_head")
RULES = AnchorRules(pre=100, post=50, dir_offset=-PI / 2)


class VoxelNet(PillarNet):
    """The anchor detector of KITTI. aligned: anchors at cell centers. area: x0, y0, x1, y1 of the
    anchors where they do not span the range of the points. axes: of the offset to the pillar
    center, 2 before release 0.13."""

    def __init__(
        self,
        columns: int,
        grid: Grid,
        classes: Sequence[AnchorClass],
        backbone_neck: BackboneNeck = KITTI_BACKBONE_NECK,
        filters: Sequence[int] = (64,),
        rules: AnchorRules = RULES,
        aligned: bool = True,
        legacy: bool = True,
        axes: int = 3,
        area: Sequence[float] = (),
        clockwise: bool = False,
    ) -> None:
        super().__init__(columns, grid, backbone_neck, filters, NAMES, False, axes, legacy)
        self.classes, self.rules, self.aligned = tuple(classes), rules, aligned
        self.area, self.clockwise = tuple(area) or grid.area, clockwise
        anchor_head(self.bbox_head, self.channels, len(classes), "conv_reg")

    def maps(self, points: Tensor) -> Maps:
        seen, head = self.features(points), self.bbox_head
        return [[head.conv_cls(seen)], [head.conv_reg(seen)], [head.conv_dir_cls(seen)]]

    def detect(self, points: Tensor) -> Boxes:
        maps = self.maps(points)
        cells = anchors(self.area, maps[0][0].shape[2:], self.classes, self.aligned)
        # Their order, suppression before the direction, comes to the same: half a turn leaves
        # overlaps as they are.
        boxes, scores = anchor_boxes(maps, cells, self.rules, bottom=True)
        return per_class(boxes, scores, self.rules, self.clockwise)


class ConvModule(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class CenterPoint(CenterNet):
    """CenterPoint over pillars, in a detector that could see images too ("pts_"). tasks: how many
    classes each has."""

    PARTS = ("heatmap", "reg", "height", "dim", "rot", "vel")

    def __init__(
        self,
        columns: int,
        grid: Grid,
        tasks: Sequence[int],
        backbone_neck: BackboneNeck = NUSCENES_CONV_BACKBONE_NECK,
        filters: Sequence[int] = (64,),
        rules: CenterRules = CENTER_RULES,
        shared: int = 64,
        legacy: bool = False,
        axes: int = 3,
        clockwise: bool = False,
        velocity: bool = True,
    ) -> None:
        names = [f"pts_{name}" for name in NAMES]
        super().__init__(columns, grid, backbone_neck, filters, names, False, axes, legacy)
        self.clockwise = clockwise
        self.add_head("task_heads", self.PARTS, ConvModule, tasks, rules, shared, velocity)

    def detect(self, points: Tensor) -> Boxes:
        result = self.boxes(points, sine_first=True, clockwise=self.clockwise)
        result.boxes[:, 2] -= result.boxes[:, 5] / 2
        return result
