# SPDX-License-Identifier: Apache-2.0
"""The pillar detectors of open-mmlab/mmdetection3d, rewritten in plain torch from their published
behavior: same parameters by the same names, boxes in its convention (x, y of the center, z of the
bottom, l, w, h, counter-clockwise yaw (, vx, vy)); `clockwise` for that of releases before 1.0 (w,
l, h, angle clockwise from -y).
"""

from dataclasses import dataclass
from typing import Dict, List, Sequence

import torch
from torch import Tensor, nn

from .boxes import (
    PI,
    AnchorClass,
    Boxes,
    anchors,
    both_ends,
    cell_centers,
    limit_period,
    per_class,
    residual,
)
from .centers import CENTER_RULES, CenterRules, center_boxes
from .pillars import (
    KITTI_BACKBONE_NECK,
    NUSCENES_CONV_BACKBONE_NECK,
    BackboneNeck,
    Grid,
    canvas,
    decorated,
    encoded,
    pillar_layers,
    pillars_of,
    through,
)

ROTATIONS = (0.0, 1.57)
Maps = Dict[str, Tensor]


@dataclass(frozen=True)
class Rules:
    """Boxes with the best class score first, then each class by itself, then the best of all.
    dir_offset: the angle that the two directions are told apart at."""

    score: float = 0.1
    iou: float = 0.01
    pre: int = 100
    post: int = 50
    dir_offset: float = -PI / 2
    dir_limit: float = 0.0


RULES = Rules()


class Detector(nn.Module):
    """Points [N, C] of one cloud to the map that the head sees. prefix: "pts_" in detectors that
    could see images too. axes: of the offset to the pillar center, 2 before release 0.13."""

    def __init__(
        self,
        columns: int,
        grid: Grid,
        backbone_neck: BackboneNeck,
        filters: Sequence[int],
        prefix: str,
        legacy: bool,
        axes: int,
    ) -> None:
        super().__init__()
        self.grid, self.backbone_neck, self.prefix = grid, backbone_neck, prefix
        self.legacy, self.axes = legacy, axes
        encoder, backbone, neck = nn.Module(), nn.Module(), nn.Module()
        encoder.pfn_layers = pillar_layers(columns + 3 + axes, filters)
        backbone.blocks = backbone_neck.blocks(filters[-1], zero_pad=False)
        neck.deblocks = backbone_neck.deblocks()
        self.add_module(f"{prefix}voxel_encoder", encoder)
        self.add_module(f"{prefix}backbone", backbone)
        self.add_module(f"{prefix}neck", neck)
        self.add_module(f"{prefix}bbox_head", nn.Module())

    def part(self, name: str) -> nn.Module:
        return getattr(self, self.prefix + name)

    def features(self, points: Tensor) -> Tensor:
        pillars = pillars_of(points, self.grid)
        rows = decorated(pillars, self.grid, self.axes, self.legacy)
        layers = self.part("voxel_encoder").pfn_layers
        features = encoded(layers, pillars, rows, self.grid.max_points)
        image = canvas(features, pillars, self.grid)
        return through(self.part("backbone").blocks, self.part("neck").deblocks, image)


class VoxelNet(Detector):
    """The anchor detector of KITTI. aligned: anchors at cell centers. area: x0, y0, x1, y1 of the
    anchors where they do not span the range of the points."""

    def __init__(
        self,
        columns: int,
        grid: Grid,
        classes: Sequence[AnchorClass],
        backbone_neck: BackboneNeck = KITTI_BACKBONE_NECK,
        filters: Sequence[int] = (64,),
        rules: Rules = RULES,
        aligned: bool = True,
        legacy: bool = True,
        axes: int = 3,
        area: Sequence[float] = (),
        clockwise: bool = False,
    ) -> None:
        super().__init__(columns, grid, backbone_neck, filters, "", legacy, axes)
        self.classes, self.rules, self.aligned = tuple(classes), rules, aligned
        self.area, self.clockwise = tuple(area), clockwise
        channels, per_cell = sum(backbone_neck.up_widths), len(classes) * len(ROTATIONS)
        self.bbox_head.conv_cls = nn.Conv2d(channels, per_cell * len(classes), 1)
        self.bbox_head.conv_reg = nn.Conv2d(channels, per_cell * 7, 1)
        self.bbox_head.conv_dir_cls = nn.Conv2d(channels, per_cell * 2, 1)

    def maps(self, points: Tensor) -> Maps:
        seen, head = self.features(points), self.bbox_head
        found = {"cls": head.conv_cls(seen), "box": head.conv_reg(seen)}
        return {**found, "dir": head.conv_dir_cls(seen)}

    def detect(self, points: Tensor) -> Boxes:
        maps = {k: v[0].permute(1, 2, 0) for k, v in self.maps(points).items()}
        ny, nx = maps["cls"].shape[:2]
        limits = self.grid.point_cloud_range
        x0, y0, x1, y1 = self.area or (limits[0], limits[1], limits[3], limits[4])
        spread = cell_centers if self.aligned else both_ends
        cells = anchors(spread(x0, x1, nx), spread(y0, y1, ny), self.classes, ROTATIONS)
        rules = self.rules
        scores = maps["cls"].reshape(-1, len(self.classes)).sigmoid()
        best = scores.max(1)[0].argsort(descending=True, stable=True)[: rules.pre]
        codes = maps["box"].reshape(-1, 7)[best]
        boxes = residual(codes, cells.flatten(0, -2)[best], bottom=True)
        bins = maps["dir"].reshape(-1, 2)[best].argmax(1)
        # Their order, suppression before the direction, comes to the same: half a turn leaves
        # overlaps as they are.
        turned = limit_period(boxes[:, 6] - rules.dir_offset, rules.dir_limit, PI)
        boxes[:, 6] = turned + rules.dir_offset + PI * bins
        return per_class(boxes, scores[best], rules.score, rules.iou, rules.post, self.clockwise)


class ConvModule(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class CenterPoint(Detector):
    """CenterPoint over pillars. tasks: how many classes each has."""

    WIDTHS = (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2))

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
        super().__init__(columns, grid, backbone_neck, filters, "pts_", legacy, axes)
        self.rules, self.clockwise = rules, clockwise
        head = self.pts_bbox_head
        head.shared_conv = ConvModule(sum(backbone_neck.up_widths), shared)
        head.task_heads = nn.ModuleList()

        def branch(out: int) -> nn.Sequential:
            return nn.Sequential(ConvModule(shared, shared), nn.Conv2d(shared, out, 3, padding=1))

        for classes in tasks:
            parts = self.WIDTHS if velocity else self.WIDTHS[:-1]
            names = (*parts, ("heatmap", classes))
            head.task_heads.append(nn.ModuleDict({name: branch(out) for name, out in names}))

    def maps(self, points: Tensor) -> List[Maps]:
        seen = self.pts_bbox_head.shared_conv(self.features(points))
        tasks = self.pts_bbox_head.task_heads
        return [{name: one(seen) for name, one in task.items()} for task in tasks]

    def detect(self, points: Tensor) -> Boxes:
        tasks = []
        for maps in self.maps(points):
            sin, cos = maps["rot"][:, :1], maps["rot"][:, 1:]
            tasks.append({**maps, "hm": maps["heatmap"], "sin": sin, "cos": cos})
        found = center_boxes(
            tasks, self.grid, self.backbone_neck.stride, self.rules, self.clockwise
        )
        found.boxes[:, 2] -= found.boxes[:, 5] / 2
        return found
