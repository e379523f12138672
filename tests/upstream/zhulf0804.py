# SPDX-License-Identifier: Apache-2.0
"""The detector of zhulf0804/PointPillars, rewritten in plain torch from its published behavior:
same parameters by the same names, boxes in its convention (x, y of the center, z of the bottom,
w, l, h, angle clockwise from -y).
"""

from typing import Dict, Sequence

import torch
from torch import Tensor, nn

from .boxes import (
    PI,
    AnchorClass,
    Boxes,
    anchors,
    cell_centers,
    limit_period,
    per_class,
    residual,
)
from .mmdet3d import RULES, Rules
from .pillars import (
    KITTI_BACKBONE_NECK,
    PFN_EPS,
    BackboneNeck,
    Grid,
    canvas,
    decorated,
    pillars_of,
    through,
)

ROTATIONS = (0.0, 1.57)


class PointPillars(nn.Module):
    """Points [N, C] of one cloud to boxes."""

    def __init__(
        self,
        columns: int,
        grid: Grid,
        classes: Sequence[AnchorClass],
        backbone_neck: BackboneNeck = KITTI_BACKBONE_NECK,
        filters: Sequence[int] = (64,),
        rules: Rules = RULES,
    ) -> None:
        super().__init__()
        self.grid, self.classes, self.rules = grid, tuple(classes), rules
        self.pillar_encoder = nn.Module()
        self.pillar_encoder.conv = nn.Conv1d(columns + 5, filters[0], 1, bias=False)
        self.pillar_encoder.bn = nn.BatchNorm1d(filters[0], eps=PFN_EPS, momentum=0.01)
        self.backbone, self.neck, self.head = nn.Module(), nn.Module(), nn.Module()
        self.backbone.multi_blocks = backbone_neck.blocks(filters[0], zero_pad=False)
        self.neck.decoder_blocks = backbone_neck.deblocks()
        channels, per_cell = sum(backbone_neck.up_widths), len(classes) * len(ROTATIONS)
        self.head.conv_cls = nn.Conv2d(channels, per_cell * len(classes), 1)
        self.head.conv_reg = nn.Conv2d(channels, per_cell * 7, 1)
        self.head.conv_dir_cls = nn.Conv2d(channels, per_cell * 2, 1)

    def features(self, points: Tensor) -> Tensor:
        pillars = pillars_of(points, self.grid)
        count, padded_to = len(pillars.cells), self.grid.max_points
        # Offsets to the center along x and y, which take the place of x and y too.
        rows = decorated(pillars, self.grid, axes=2, legacy=True)
        table = torch.zeros(count, padded_to, rows.size(1))
        table[pillars.pillar, pillars.slot] = rows
        encoder = self.pillar_encoder
        features = torch.relu(encoder.bn(encoder.conv(table.transpose(1, 2)))).amax(2)
        image = canvas(features, pillars, self.grid)
        return through(self.backbone.multi_blocks, self.neck.decoder_blocks, image)

    def maps(self, points: Tensor) -> Dict[str, Tensor]:
        seen, head = self.features(points), self.head
        found = {"cls": head.conv_cls(seen), "box": head.conv_reg(seen)}
        return {**found, "dir": head.conv_dir_cls(seen)}

    def detect(self, points: Tensor) -> Boxes:
        maps = {k: v[0].permute(1, 2, 0) for k, v in self.maps(points).items()}
        ny, nx = maps["cls"].shape[:2]
        x0, y0, _, x1, y1, _ = self.grid.point_cloud_range
        x, y = cell_centers(x0, x1, nx), cell_centers(y0, y1, ny)
        cells = anchors(x, y, self.classes, ROTATIONS).flatten(0, -2)
        rules = self.rules
        scores = maps["cls"].reshape(-1, len(self.classes)).sigmoid()
        best = scores.max(1)[0].argsort(descending=True, stable=True)[: rules.pre]
        boxes = residual(maps["box"].reshape(-1, 7)[best], cells[best], bottom=True)
        bins = maps["dir"].reshape(-1, 2)[best].argmax(1)
        boxes[:, 6] = limit_period(boxes[:, 6], 1.0, PI) + PI * (1 - bins)
        return per_class(boxes, scores[best], rules.score, rules.iou, rules.post, clockwise=True)
