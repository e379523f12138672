# SPDX-License-Identifier: Apache-2.0
"""The pillar net of tianweiy/CenterPoint (det3d), rewritten in plain torch from its published
behavior: same parameters by the same names, boxes in its convention but for the order of the last
columns (x, y, z of the center, w, l, h, angle clockwise from -y, vx, vy; there the angle is last).
"""

from typing import Dict, List, Sequence

from torch import Tensor, nn

from .boxes import Boxes
from .centers import CenterRules, center_boxes
from .pillars import (
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

RULES = CenterRules(every_class=False)


class PointPillars(nn.Module):
    """Points [N, C] of one cloud to boxes. tasks: how many classes each has."""

    WIDTHS = (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2))

    def __init__(
        self,
        columns: int,
        grid: Grid,
        tasks: Sequence[int],
        backbone_neck: BackboneNeck = NUSCENES_CONV_BACKBONE_NECK,
        filters: Sequence[int] = (64, 64),
        rules: CenterRules = RULES,
        shared: int = 64,
        velocity: bool = True,
    ) -> None:
        super().__init__()
        self.grid, self.backbone_neck, self.rules = grid, backbone_neck, rules
        self.reader, self.neck, self.bbox_head = nn.Module(), nn.Module(), nn.Module()
        self.reader.pfn_layers = pillar_layers(columns + 5, filters)
        self.neck.blocks = backbone_neck.blocks(filters[-1], zero_pad=True)
        self.neck.deblocks = backbone_neck.deblocks()

        def layer(a: int, b: int) -> List[nn.Module]:
            return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

        def branch(out: int) -> nn.Sequential:
            return nn.Sequential(*layer(shared, shared), nn.Conv2d(shared, out, 3, padding=1))

        self.bbox_head.shared_conv = nn.Sequential(*layer(sum(backbone_neck.up_widths), shared))
        self.bbox_head.tasks = nn.ModuleList()
        for classes in tasks:
            parts = self.WIDTHS if velocity else self.WIDTHS[:-1]
            names = (*parts, ("hm", classes))
            self.bbox_head.tasks.append(nn.ModuleDict({name: branch(out) for name, out in names}))

    def features(self, points: Tensor) -> Tensor:
        pillars = pillars_of(points, self.grid)
        rows = decorated(pillars, self.grid, axes=2)
        features = encoded(self.reader.pfn_layers, pillars, rows, self.grid.max_points)
        return through(self.neck.blocks, self.neck.deblocks, canvas(features, pillars, self.grid))

    def maps(self, points: Tensor) -> List[Dict[str, Tensor]]:
        seen = self.bbox_head.shared_conv(self.features(points))
        return [{name: one(seen) for name, one in task.items()} for task in self.bbox_head.tasks]

    def detect(self, points: Tensor) -> Boxes:
        tasks = [
            {**maps, "sin": maps["rot"][:, :1], "cos": maps["rot"][:, 1:]}
            for maps in self.maps(points)
        ]
        return center_boxes(tasks, self.grid, self.backbone_neck.stride, self.rules, clockwise=True)
