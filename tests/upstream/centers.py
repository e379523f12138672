# SPDX-License-Identifier: Apache-2.0
"""The re-implemented center heads and their decoding; plain torch."""

from dataclasses import dataclass
from typing import Callable, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from .boxes import Boxes, circled, joined, rectangles, suppressed
from .pillars import PillarNet

Maps = List[List[Tensor]]
WIDTHS = (2, 1, 3, 2, 2)  # offset, height, size, angle, velocity


@dataclass(frozen=True)
class CenterRules:
    """Per task: `top` candidates by score, those above `score` whose center lies in `limits`, the
    best `pre` of them, greedy suppression, the best `post`. nms: threshold, or one per task;
    circle: of the squared distance of centers, not of the overlap."""

    score: float = 0.1
    limits: Tuple[float, ...] = (-61.2, -61.2, -10.0, 61.2, 61.2, 10.0)
    nms: Tuple[float, ...] = (0.2,)
    circle: bool = False
    top: int = 500
    pre: int = 1000
    post: int = 83


CENTER_RULES = CenterRules()


class CenterNet(PillarNet):
    """CenterPoint over pillars. tasks: how many classes each has. parts: names of heat map,
    offset, height, size, angle, velocity. layer: convolution, batch norm and ReLU."""

    def add_head(
        self,
        name: str,
        parts: Sequence[str],
        layer: Callable[[int, int], nn.Module],
        tasks: Sequence[int],
        rules: CenterRules,
        shared: int,
        velocity: bool,
    ) -> None:
        self.rules, self.kinds, head = rules, parts, self.parts()[3]
        head.shared_conv = layer(self.channels, shared)

        def branch(out: int) -> nn.Sequential:
            return nn.Sequential(layer(shared, shared), nn.Conv2d(shared, out, 3, padding=1))

        self.tasks = [
            nn.ModuleDict(
                {
                    part: branch(width)
                    for part, width in zip(parts, (classes, *WIDTHS), strict=True)
                    if velocity or part != "vel"
                }
            )
            for classes in tasks
        ]
        head.add_module(name, nn.ModuleList(self.tasks))

    def maps(self, points: Tensor) -> Maps:
        """By kind, then by task; no velocity where the head has none."""
        seen = self.parts()[3].shared_conv(self.features(points))
        return [[task[kind](seen) for task in self.tasks if kind in task] for kind in self.kinds]

    def boxes(self, points: Tensor, sine_first: bool, clockwise: bool) -> Boxes:
        """x, y, z of the center, three sizes as trained, angle, vx, vy; labels count through the
        tasks."""
        maps, parts, first = self.maps(points), [], 0
        for task in range(len(self.tasks)):
            mine = [kind[task][0] for kind in maps if kind]
            parts.append(self.of_task(task, mine, first, sine_first, clockwise))
            first += len(mine[0])
        return joined(parts, 9 if maps[5] else 7)

    def of_task(
        self, task: int, maps: List[Tensor], first: int, sine_first: bool, clockwise: bool
    ) -> Boxes:
        rules, grid, stride = self.rules, self.grid, self.backbone_neck.stride
        hm, reg, height, dim, rot, *vel = maps
        y, x = torch.meshgrid(*map(torch.arange, hm.shape[1:]), indexing="ij")
        low, size = grid.point_cloud_range, grid.voxel_size
        sine, cosine = rot if sine_first else rot.flip(0)
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
        order = scores.flatten().argsort(descending=True, stable=True)[: rules.top]
        cell, label = order // len(hm), order % len(hm)
        boxes, score = boxes[cell], scores[cell, label]
        limits = torch.tensor(rules.limits)
        inside = ((boxes[:, :3] >= limits[:3]) & (boxes[:, :3] <= limits[3:])).all(1)
        rows = (inside & (score > rules.score)).nonzero()[:, 0]
        rows = rows[score[rows].argsort(descending=True, stable=True)][: rules.pre]
        threshold = rules.nms[task % len(rules.nms)]
        if rules.circle:
            kept = circled(boxes[rows, :2], score[rows], threshold)
        else:
            kept = suppressed(rectangles(boxes[rows], clockwise), score[rows], threshold)
        rows = rows[kept[: rules.post]]
        return Boxes(boxes[rows], score[rows], label[rows] + first)
