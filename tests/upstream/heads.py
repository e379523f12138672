# SPDX-License-Identifier: Apache-2.0
"""What the re-implemented heads of both programs share: anchors, and centers in tasks."""

from dataclasses import dataclass
from typing import Sequence, Tuple

import torch
from torch import nn

from .boxes import ROTATIONS, AnchorRules, Boxes, anchors, decoded, joined, suppressed
from .pillars import KITTI_BACKBONE_NECK, PillarNet

WIDTHS = (2, 1, 3, 2, 2)  # offset, height, size, angle, velocity


class AnchorNet(PillarNet):
    """One map of class scores, codes and directions. aligned: anchors at cell centers, not from end
    to end. area: x0, y0, x1, y1 of the anchors where they do not span the range of the points.

    BOX: name of the convolution of codes. BOTTOM: boxes have the z of their bottom face.
    """

    BOX = "conv_box"
    BOTTOM = False
    RULES = AnchorRules()
    ALIGNED = False

    def __init__(
        self,
        columns,
        grid,
        classes,
        backbone_neck=KITTI_BACKBONE_NECK,
        filters=(64,),
        rules=None,
        aligned=None,
        legacy=None,
        axes=3,
        area=(),
        clockwise=False,
    ):
        super().__init__(columns, grid, backbone_neck, filters, axes, legacy)
        self.classes, self.rules = tuple(classes), rules or self.RULES
        self.aligned = self.ALIGNED if aligned is None else aligned
        self.area, self.clockwise = tuple(area) or grid.area, clockwise
        count, head = len(classes) * len(ROTATIONS), self.parts()[3]
        head.conv_cls = nn.Conv2d(self.channels, count * len(classes), 1)
        head.add_module(self.BOX, nn.Conv2d(self.channels, count * 7, 1))
        head.conv_dir_cls = nn.Conv2d(self.channels, count * 2, 1)

    def maps(self, points):
        seen, head = self.features(points), self.parts()[3]
        return [[getattr(head, name)(seen)] for name in ("conv_cls", self.BOX, "conv_dir_cls")]

    def candidates(self, points):
        """Boxes [n, 7] and scores [n, classes] of all anchors."""
        maps = [kind[0][0].permute(1, 2, 0) for kind in self.maps(points)]  # [H, W, channels]
        cells = anchors(self.area, maps[0].shape[:2], self.classes, self.aligned).flatten(0, -2)
        turn = {"dir_offset": self.rules.dir_offset, "dir_limit": self.rules.dir_limit}
        turn["direction"] = maps[2].reshape(-1, 2)
        boxes = decoded(maps[1].reshape(-1, 7), cells, self.BOTTOM, **turn)
        return boxes, maps[0].reshape(len(boxes), -1).sigmoid()


@dataclass(frozen=True)
class CenterRules:
    """Per task: `top` candidates by score, those above `score` whose center lies in `limits`, the
    best `pre` of them, greedy suppression, the best `post`. nms: threshold, or one per task;
    circle: of the squared distance of centers, not of the overlap."""

    score: float = 0.1
    limits: Sequence[float] = (-61.2, -61.2, -10.0, 61.2, 61.2, 10.0)
    nms: Sequence[float] = (0.2,)
    circle: bool = False
    top: int = 500
    pre: int = 1000
    post: int = 83


CENTER_RULES = CenterRules()


class CenterNet(PillarNet):
    """CenterPoint over pillars. tasks: how many classes each has.

    HEADS: name of the list of tasks. KINDS: of heat map, offset, height, size, angle, velocity.
    BEST_CLASS: a cell gives its best class alone. layer: makes a convolution with batch norm and
    ReLU.
    """

    HEADS = "heads_list"
    KINDS: Tuple[str, ...] = ()
    BOTTOM = False
    SINE_FIRST = False
    BEST_CLASS = False
    DEFAULT_BACKBONE_NECK = KITTI_BACKBONE_NECK
    FILTERS: Tuple[int, ...] = (64,)

    def __init__(
        self,
        columns,
        grid,
        tasks,
        backbone_neck=None,
        filters=(),
        rules=CENTER_RULES,
        shared=64,
        velocity=True,
        bias=True,
        clockwise=False,
        **encoder,
    ):
        backbone_neck = backbone_neck or self.DEFAULT_BACKBONE_NECK
        super().__init__(columns, grid, backbone_neck, filters or self.FILTERS, **encoder)
        self.rules, self.clockwise, head = rules, clockwise, self.parts()[3]
        head.shared_conv = self.layer(self.channels, shared, bias)

        kinds = [kind for kind in self.KINDS if velocity or kind != "vel"]
        self.tasks = [
            nn.ModuleDict(
                {k: self.branch(shared, n, bias) for k, n in zip(kinds, (classes, *WIDTHS))}  # noqa: B905
            )
            for classes in tasks
        ]
        head.add_module(self.HEADS, nn.ModuleList(self.tasks))

    def branch(self, shared, out, bias):
        last = nn.Conv2d(shared, out, 3, padding=1)
        return nn.Sequential(self.layer(shared, shared, bias), last)

    def maps(self, points):
        """By kind, then by task; no velocity where the head has none."""
        seen = self.parts()[3].shared_conv(self.features(points))
        return [[task[kind](seen) for task in self.tasks if kind in task] for kind in self.KINDS]

    def detect(self, points):
        """x, y, z, three sizes as trained, angle, vx, vy; labels count through the tasks."""
        maps, parts, first = self.maps(points), [], 0
        for task in range(len(self.tasks)):
            mine = [kind[task][0] for kind in maps if kind]
            parts.append(self.of_task(task, mine, first))
            first += len(mine[0])
        result = joined(parts, 9 if maps[5] else 7)
        if self.BOTTOM:
            result.boxes[:, 2] -= result.boxes[:, 5] / 2
        return result

    def of_task(self, task, maps, first):
        rules, grid, stride = self.rules, self.grid, self.backbone_neck.stride
        hm, reg, height, dim, rot, *vel = maps
        y, x = torch.meshgrid(*map(torch.arange, hm.shape[1:]), indexing="ij")
        low, size = grid.point_cloud_range, grid.voxel_size
        sine, cosine = rot if self.SINE_FIRST else rot.flip(0)
        boxes = torch.stack(
            [
                (x + reg[0]) * stride * size[0] + low[0],
                (y + reg[1]) * stride * size[1] + low[1],
                height[0],
                *dim.exp(),
                torch.atan2(sine, cosine),
                *(vel[0] if vel else ()),
            ],
            -1,
        ).flatten(0, 1)
        scores = hm.sigmoid().flatten(1).T  # [cells, classes]
        if self.BEST_CLASS:
            scores = torch.where(scores == scores.amax(1, keepdim=True), scores, -1.0)
        order = scores.flatten().argsort(descending=True, stable=True)[: rules.top]
        cell, label = order // len(hm), order % len(hm)
        boxes, score = boxes[cell], scores[cell, label]
        limits = torch.tensor(rules.limits)
        inside = ((boxes[:, :3] >= limits[:3]) & (boxes[:, :3] <= limits[3:])).all(1)
        rows = (inside & (score > rules.score)).nonzero()[:, 0]
        rows = rows[score[rows].argsort(descending=True, stable=True)][: rules.pre]
        threshold = rules.nms[task % len(rules.nms)]
        kept = suppressed(boxes[rows], score[rows], threshold, self.clockwise, rules.circle)
        rows = rows[kept[: rules.post]]
        return Boxes(boxes[rows], score[rows], label[rows] + first)
