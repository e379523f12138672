# SPDX-License-Identifier: Apache-2.0
"""Heads that find the centers of objects: CenterPoint (Yin et al., CVPR 2021)."""

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from torchvox.models.detection.branches import Decoder, TaskHead
from torchvox.models.detection.config import PARTS, CenterHeadConfig, DetectionsConfig


class CenterHead(TaskHead):
    """A heat map per class and the parts of the box at every cell, a head per task.

    forward returns [hm, reg, z, dim, rot, vel] with a map per task each: logits, the offset of the
    center in cells, its height, logarithms of the size, two numbers for the yaw, the velocity; no
    velocity without `velocity`.
    """

    def __init__(self, in_channels: int, config: CenterHeadConfig) -> None:
        parts = {k: width for k, width in PARTS.items() if k != "vel" or config.velocity}
        branches = [{"hm": len(names), **parts} for names in config.tasks]
        super().__init__(in_channels, branches, config, (config.eps, config.momentum))
        with torch.no_grad():
            for task in self.tasks:
                task["hm"].out.bias.fill_(config.heat_bias)

    def forward(self, x: Tensor) -> List[List[Tensor]]:
        outputs = self.outputs(x)
        kinds: List[List[Tensor]] = []
        for kind in range(6):
            kinds.append(outputs[kind :: self.per_task] if kind < self.per_task else [])
        return kinds


class CenterDecoder(Decoder):
    """From the maps of a center head to (boxes, scores, labels, count, overflow).

    cells: canvas cells that a cell of the map stands for, along each axis.
    """

    def __init__(
        self,
        labels: Sequence[int],
        point_cloud_range: Sequence[float],
        pillar_size: Sequence[float],
        cells: int,
        rot: str,
        detections: DetectionsConfig,
    ) -> None:
        super().__init__(labels, detections)
        self.pillar_size: List[float] = [float(v) for v in pillar_size]
        self.point_cloud_range: List[float] = [float(v) for v in point_cloud_range]
        self.cells = int(cells)
        # For boxes that turn clockwise: the cosine of -yaw - pi / 2 is -sin yaw, its sine -cos yaw.
        other = {"cos_sin": "sin_cos", "sin_cos": "cos_sin"}
        self.rot = other[rot] if self.turned else rot
        limits = [float(v) for v in detections.center_range]
        self.center_range: Optional[List[float]] = limits if limits else None

    def forward(self, maps: List[List[Tensor]]) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        dim, rot = maps[3], maps[4]
        if self.turned:
            dim = [torch.cat([m[:, 1:2], m[:, :1], m[:, 2:]], 1) for m in dim]
            rot = [-m for m in rot]
        vel: Optional[List[Tensor]] = None
        if len(maps[5]) > 0:
            vel = [m.detach() for m in maps[5]]
        return torch.ops.torchvox.center_decode_nms(
            [m.detach() for m in maps[0]],
            [m.detach() for m in maps[1]],
            [m.detach() for m in maps[2]],
            [m.detach() for m in dim],
            [m.detach() for m in rot],
            vel,
            self.pillar_size,
            self.point_cloud_range,
            self.cells,
            self.score,
            self.nms,
            self.pre,
            self.post,
            group=self.group,
            global_post=self.global_post,
            best_class=self.best_class,
            closed=self.closed,
            post_range=self.center_range,
            rot_order=self.rot,
            class_labels=self.labels,
            nms=self.mode,
        )
