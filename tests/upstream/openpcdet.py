# SPDX-License-Identifier: Apache-2.0
"""The pillar detectors of open-mmlab/OpenPCDet, rewritten in plain torch from their published
behavior: same parameters by the same names, boxes in its convention (x, y, z of the center, l, w,
h, counter-clockwise yaw (, vx, vy)), labels from 0 in the order of the class names.
"""

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from .boxes import (
    PI,
    AnchorClass,
    Boxes,
    anchors,
    best_first,
    both_ends,
    cell_centers,
    joined,
    limit_period,
    rectangles,
    residual,
    suppressed,
)
from .centers import CENTER_RULES, CenterRules, center_boxes
from .pillars import (
    KITTI_BACKBONE_NECK,
    NUSCENES_BACKBONE_NECK,
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
class AnchorRules:
    """Selection, greedy: the best `pre`, then the best `post` that do not overlap."""

    score: float = 0.1
    iou: float = 0.01
    pre: int = 4096
    post: int = 500
    dir_offset: float = 0.78539
    dir_limit: float = 0.0


SINGLE = AnchorRules()
MULTI = AnchorRules(iou=0.2, pre=1000, post=83)


class Detector(nn.Module):
    """Points [N, C] of one cloud to the map that the heads see. dynamic: pillars without caps and
    without rows of padding. aligned: anchors at cell centers, not from end to end of the range."""

    aligned = False

    def __init__(
        self,
        columns: int,
        grid: Grid,
        backbone_neck: BackboneNeck,
        filters: Sequence[int],
        dynamic: bool,
    ) -> None:
        super().__init__()
        self.grid, self.backbone_neck, self.dynamic = grid, backbone_neck, dynamic
        self.register_buffer("global_step", torch.zeros(1, dtype=torch.long))
        self.vfe = nn.Module()
        self.vfe.pfn_layers = pillar_layers(columns + 6, filters)
        self.backbone_2d = nn.Module()
        self.backbone_2d.blocks = backbone_neck.blocks(filters[-1], zero_pad=True)
        self.backbone_2d.deblocks = backbone_neck.deblocks()
        self.dense_head = nn.Module()

    def features(self, points: Tensor) -> Tensor:
        pillars = pillars_of(points, self.grid)
        padded_to = 0 if self.dynamic else self.grid.max_points
        rows = decorated(pillars, self.grid)
        image = canvas(encoded(self.vfe.pfn_layers, pillars, rows, padded_to), pillars, self.grid)
        return through(self.backbone_2d.blocks, self.backbone_2d.deblocks, image)

    def anchors(self, classes: Sequence[AnchorClass], size: Tuple[int, int]) -> Tensor:
        x0, y0, _, x1, y1, _ = self.grid.point_cloud_range
        spread = cell_centers if self.aligned else both_ends
        return anchors(spread(x0, x1, size[1]), spread(y0, y1, size[0]), classes, ROTATIONS)


class SingleHead(Detector):
    """PointPillar with AnchorHeadSingle: one map of class scores, codes and directions."""

    def __init__(
        self,
        columns: int,
        grid: Grid,
        classes: Sequence[AnchorClass],
        backbone_neck: BackboneNeck = KITTI_BACKBONE_NECK,
        filters: Sequence[int] = (64,),
        rules: AnchorRules = SINGLE,
        aligned: bool = False,
    ) -> None:
        super().__init__(columns, grid, backbone_neck, filters, dynamic=False)
        self.aligned = aligned
        self.classes, self.rules = tuple(classes), rules
        channels, per_cell = sum(backbone_neck.up_widths), len(classes) * len(ROTATIONS)
        self.dense_head.conv_cls = nn.Conv2d(channels, per_cell * len(classes), 1)
        self.dense_head.conv_box = nn.Conv2d(channels, per_cell * 7, 1)
        self.dense_head.conv_dir_cls = nn.Conv2d(channels, per_cell * 2, 1)

    def maps(self, points: Tensor) -> Maps:
        seen, head = self.features(points), self.dense_head
        found = {"cls": head.conv_cls(seen), "box": head.conv_box(seen)}
        return {**found, "dir": head.conv_dir_cls(seen)}

    def detect(self, points: Tensor) -> Boxes:
        maps = {k: v[0].permute(1, 2, 0) for k, v in self.maps(points).items()}  # [H, W, channels]
        cells = self.anchors(self.classes, maps["cls"].shape[:2]).flatten(0, -2)
        boxes = residual(maps["box"].reshape(-1, 7), cells, bottom=False)
        bins = maps["dir"].reshape(-1, 2).argmax(1)
        rules = self.rules
        turned = limit_period(boxes[:, 6] - rules.dir_offset, rules.dir_limit, PI)
        boxes[:, 6] = turned + rules.dir_offset + PI * bins
        scores, labels = maps["cls"].reshape(-1, len(self.classes)).sigmoid().max(1)
        rows = (scores >= rules.score).nonzero()[:, 0]
        rows = rows[scores[rows].argsort(descending=True, stable=True)][: rules.pre]
        kept = suppressed(rectangles(boxes[rows], clockwise=False), scores[rows], rules.iou)
        return best_first(Boxes(boxes, scores, labels), rows[kept[: rules.post]])


class Branches(nn.Module):
    """A head of the multi-head net: classes and codes from small branches of 3x3 convolutions."""

    PARTS = (("reg", 2), ("height", 1), ("size", 3), ("angle", 2), ("velo", 2))

    def __init__(self, channels: int, per_cell: int, labels: Sequence[int], width: int) -> None:
        super().__init__()
        self.register_buffer("head_label_indices", torch.tensor(labels) + 1)

        def branch(out: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(channels, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, out, 3, padding=1),
            )

        self.conv_cls = branch(per_cell * len(labels))
        self.conv_box = nn.ModuleDict({f"conv_{n}": branch(per_cell * c) for n, c in self.PARTS})

    def forward(self, seen: Tensor) -> Tuple[Tensor, Tensor]:
        # Branch after branch along the channels; what follows reads ten of these channels for an
        # anchor wherever the branches end. Trained so, it has to be read so.
        codes = [self.conv_box[f"conv_{name}"](seen) for name, _ in self.PARTS]
        return self.conv_cls(seen), torch.cat(codes, 1)


class MultiHead(Detector):
    """PointPillar with AnchorHeadMulti. heads: indices of the classes that each head takes."""

    def __init__(
        self,
        columns: int,
        grid: Grid,
        classes: Sequence[AnchorClass],
        heads: Sequence[Sequence[int]],
        backbone_neck: BackboneNeck = NUSCENES_BACKBONE_NECK,
        filters: Sequence[int] = (64,),
        rules: AnchorRules = MULTI,
        shared: int = 64,
        aligned: bool = False,
    ) -> None:
        super().__init__(columns, grid, backbone_neck, filters, dynamic=False)
        self.aligned = aligned
        self.classes, self.heads, self.rules = tuple(classes), heads, rules
        self.dense_head.shared_conv = nn.Sequential(
            nn.Conv2d(sum(backbone_neck.up_widths), shared, 3, padding=1, bias=False),
            nn.BatchNorm2d(shared, eps=1e-3, momentum=0.01),
            nn.ReLU(),
        )
        self.dense_head.rpn_heads = nn.ModuleList(
            Branches(shared, len(labels) * len(ROTATIONS), labels, shared) for labels in heads
        )

    def maps(self, points: Tensor) -> Maps:
        seen = self.dense_head.shared_conv(self.features(points))
        maps: Maps = {}
        for at, head in enumerate(self.dense_head.rpn_heads):
            maps[f"cls.{at}"], maps[f"box.{at}"] = head(seen)
        return maps

    def detect(self, points: Tensor) -> Boxes:
        maps, parts = self.maps(points), []
        for at, labels in enumerate(self.heads):
            classes = [self.classes[label] for label in labels]
            cls, box = maps[f"cls.{at}"][0], maps[f"box.{at}"][0]
            per_cell, size = len(labels) * len(ROTATIONS), cls.shape[1:]

            def rows(image: Tensor, per_cell: int = per_cell) -> Tensor:
                table = image.reshape(per_cell, -1, *image.shape[1:])
                return table.permute(2, 3, 0, 1).flatten(0, 2)  # (y, x, anchor), columns

            boxes = self.decode(rows(box), self.anchors(classes, size).flatten(0, -2))
            scores = rows(cls).sigmoid()
            for column, label in enumerate(labels):
                parts.append(self.selected(boxes, scores[:, column], label))
        return joined(parts, 9)

    def decode(self, codes: Tensor, cells: Tensor) -> Tensor:
        """Codes of 10: an angle as differences of cosine and sine, two velocities."""
        boxes = residual(codes[:, :7], cells, bottom=False)
        cos = codes[:, 6] + torch.cos(cells[:, 6])
        sin = codes[:, 7] + torch.sin(cells[:, 6])
        yaw = torch.atan2(sin, cos)[:, None]
        return torch.cat([boxes[:, :6], yaw, codes[:, 8:10]], 1)

    def selected(self, boxes: Tensor, scores: Tensor, label: int) -> Boxes:
        rules = self.rules
        rows = (scores >= rules.score).nonzero()[:, 0]
        rows = rows[scores[rows].argsort(descending=True, stable=True)][: rules.pre]
        kept = suppressed(rectangles(boxes[rows], clockwise=False), scores[rows], rules.iou)
        rows = rows[kept[: rules.post]]
        return Boxes(boxes[rows], scores[rows], torch.full((len(rows),), label))


class CenterPoint(Detector):
    """CenterPoint with CenterHead over pillars. tasks: how many classes each has."""

    ORDER = ("center", "center_z", "dim", "rot", "vel")
    WIDTHS = (2, 1, 3, 2, 2)

    def __init__(
        self,
        columns: int,
        grid: Grid,
        tasks: Sequence[int],
        backbone_neck: BackboneNeck = NUSCENES_BACKBONE_NECK,
        filters: Sequence[int] = (64, 64),
        rules: CenterRules = CENTER_RULES,
        shared: int = 64,
        dynamic: bool = True,
        bias: bool = True,
        velocity: bool = True,
    ) -> None:
        super().__init__(columns, grid, backbone_neck, filters, dynamic)
        self.rules = rules

        def layer(a: int, b: int) -> nn.Sequential:
            conv = nn.Conv2d(a, b, 3, padding=1, bias=bias)
            return nn.Sequential(conv, nn.BatchNorm2d(b), nn.ReLU())

        def branch(out: int) -> nn.Sequential:
            return nn.Sequential(layer(shared, shared), nn.Conv2d(shared, out, 3, padding=1))

        head = self.dense_head
        head.shared_conv = layer(sum(backbone_neck.up_widths), shared)
        head.heads_list = nn.ModuleList()
        for classes in tasks:
            parts = list(zip(self.ORDER, self.WIDTHS, strict=True))
            names = (*(parts if velocity else parts[:-1]), ("hm", classes))
            head.heads_list.append(nn.ModuleDict({name: branch(out) for name, out in names}))

    def maps(self, points: Tensor) -> List[Maps]:
        seen = self.dense_head.shared_conv(self.features(points))
        return [{name: one(seen) for name, one in t.items()} for t in self.dense_head.heads_list]

    def detect(self, points: Tensor) -> Boxes:
        tasks = []
        for maps in self.maps(points):
            # The angle is (cos, sin) here.
            ours = ("center", "center_z", "dim", "vel", "hm")
            known = ("reg", "height", "dim", "vel", "hm")
            task = {k: maps[name] for k, name in zip(known, ours, strict=True) if name in maps}
            tasks.append({**task, "cos": maps["rot"][:, :1], "sin": maps["rot"][:, 1:]})
        return center_boxes(
            tasks, self.grid, self.backbone_neck.stride, self.rules, clockwise=False
        )
