# SPDX-License-Identifier: Apache-2.0
"""Decoding of the re-implemented center heads; plain torch."""

from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

import torch
from torch import Tensor

from .boxes import Boxes, circled, joined, rectangles, suppressed
from .pillars import Grid


@dataclass(frozen=True)
class CenterRules:
    """Per task: `top` candidates by score, those above `score` whose center lies in `limits`, the
    best `pre` of them, greedy suppression, the best `post`. nms: threshold, or one per task;
    circle: of the squared distance of centers, not of the overlap. every_class: a cell is a
    candidate of each of its classes; else of its best one, and `top` does not apply."""

    score: float = 0.1
    limits: Tuple[float, ...] = (-61.2, -61.2, -10.0, 61.2, 61.2, 10.0)
    nms: Tuple[float, ...] = (0.2,)
    circle: bool = False
    top: int = 500
    pre: int = 1000
    post: int = 83
    every_class: bool = True


CENTER_RULES = CenterRules()


def center_boxes(
    tasks: Sequence[Dict[str, Tensor]],
    grid: Grid,
    stride: float,
    rules: CenterRules,
    clockwise: bool,
) -> Boxes:
    """tasks: maps [1, C, H, W] reg, height, dim, sin, cos, hm, and vel if there is one. Boxes: x,
    y, z of the center, three sizes as trained, angle, vx, vy; labels count through the tasks."""
    parts, first = [], 0
    for at, maps in enumerate(tasks):
        classes = maps["hm"].size(1)
        ny, nx = maps["hm"].shape[2:]
        y, x = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
        low, size = grid.point_cloud_range, grid.voxel_size
        boxes = torch.stack(
            [
                (x + maps["reg"][0, 0]) * stride * size[0] + low[0],
                (y + maps["reg"][0, 1]) * stride * size[1] + low[1],
                maps["height"][0, 0],
                *maps["dim"][0].exp(),
                torch.atan2(maps["sin"][0, 0], maps["cos"][0, 0]),
                *(maps["vel"][0] if "vel" in maps else ()),
            ],
            -1,
        ).flatten(0, 1)
        scores = maps["hm"][0].sigmoid().flatten(1).T  # [cells, classes]
        if rules.every_class:
            order = scores.flatten().argsort(descending=True, stable=True)[: rules.top]
            cell, label = order // classes, order % classes
            score = scores[cell, label]
        else:
            score, label = scores.max(1)
            cell = torch.arange(len(score))
        boxes = boxes[cell]
        limits = torch.tensor(rules.limits)
        inside = ((boxes[:, :3] >= limits[:3]) & (boxes[:, :3] <= limits[3:])).all(1)
        rows = (inside & (score > rules.score)).nonzero()[:, 0]
        rows = rows[score[rows].argsort(descending=True, stable=True)][: rules.pre]
        threshold = rules.nms[at % len(rules.nms)]
        if rules.circle:
            kept = circled(boxes[rows, :2], score[rows], threshold)
        else:
            kept = suppressed(rectangles(boxes[rows], clockwise), score[rows], threshold)
        rows = rows[kept[: rules.post]]
        parts.append(Boxes(boxes[rows], score[rows], label[rows] + first))
        first += classes
    return joined(parts, 9 if "vel" in tasks[0] else 7)
