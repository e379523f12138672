# SPDX-License-Identifier: Apache-2.0
"""Losses of detectors: from maps and boxes to the terms of a loss, on the device, without a
host synchronization. `PointPillars.loss` and `CenterPointPillars.loss` call these."""

import itertools
import math
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from torchvox.models.detection.config import (
    AnchorLossConfig,
    CenterHeadConfig,
    CenterLossConfig,
    DirectionConfig,
)
from torchvox.ops.targets import CenterTargets, anchor_loss, anchor_targets, center_targets

TINY = 1e-4  # probabilities of heat maps stay so far from 0 and 1


def of_all_processes(count: Tensor, least: float = 0.0) -> Tensor:
    """A count of this process so that, where losses are averaged over processes, as DDP does,
    dividing by it is dividing by the count of the whole batch, or by `least` if that is more."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count.clamp(min=least)
    count = count.detach().clone()
    torch.distributed.all_reduce(count)
    return count.clamp(min=least) / torch.distributed.get_world_size()


class AnchorLoss:
    """The loss of anchor heads, one or several (Yan et al., SECOND, Sensors 2018).

    classes: labels of each task, in the order of its scores. rotations: anchors of each label per
    cell.

    Called with the maps of the head, the anchors of each task [H, W, A, 7] and boxes, labels,
    num_boxes, weight of a batch: {"classes", "boxes", "directions"}.
    """

    def __init__(
        self,
        classes: Sequence[Sequence[int]],
        rotations: Sequence[int],
        config: AnchorLossConfig,
        direction: Optional[DirectionConfig],
    ) -> None:
        self.classes, self.config = classes, config
        self.direction = direction or DirectionConfig()
        self.labels = [
            [label for label in mine for _ in range(rotations[label])] for mine in classes
        ]

    def __call__(
        self,
        maps: List[List[Tensor]],
        anchors: Sequence[Tensor],
        boxes: Tensor,
        labels: Tensor,
        num_boxes: Optional[Tensor],
        weight: Optional[Tensor],
    ) -> Dict[str, Tensor]:
        config = self.config
        total = torch.zeros(3, device=boxes.device)
        for task, (mine, of) in enumerate(zip(self.classes, self.labels, strict=True)):
            own = _local(labels, mine) if len(self.classes) > 1 else labels
            assigned, num_pos = anchor_targets(
                boxes,
                own,
                weight,
                num_boxes,
                anchors[task],
                [-1 if config.any_class else mine.index(label) for label in of],
                [config.matched[label] for label in of],
                [config.unmatched[label] for label in of],
                mode=config.mode,
            )
            sums = anchor_loss(
                maps[0][task],
                maps[1][task],
                maps[2][task] if maps[2] else None,
                anchors[task],
                boxes,
                own,
                assigned,
                dir_offset=self.direction.offset,
                dir_limit=self.direction.limit,
                code_weights=list(config.code_weights) or None,
                beta=config.beta,
                negative_weight=config.negative_weight,
                mode=config.mode,
            )
            positive = num_pos.clamp(min=1).to(sums.dtype)
            if config.normalizer == "sample":
                total = total + (sums / positive[:, None]).mean(0)
            else:
                total = total + sums.sum(0) / of_all_processes(positive.sum())
        names = ("classes", "boxes", "directions")
        terms = zip(names, total.unbind(), config.weights, strict=True)
        return {name: term * scale for name, term, scale in terms}


def _local(labels: Tensor, mine: Sequence[int]) -> Tensor:
    """Labels as numbers within a task, -1 for those of others."""
    own = torch.full_like(labels, -1)
    for i, label in enumerate(mine):
        own = torch.where(labels == label, i, own)
    return own


class CenterLoss:
    """The loss of heat maps and boxes (Yin et al., CenterPoint, CVPR 2021).

    classes: labels of each task, in the order of its heat maps. cells: pillars along an edge of a
    cell of the maps; size: (H, W) of these.

    Called with the maps of the head and boxes, labels, num_boxes, weight of a batch: {"heat",
    "boxes"}, sums over the tasks.
    """

    def __init__(
        self,
        classes: Sequence[Sequence[int]],
        point_cloud_range: Sequence[float],
        pillar_size: Sequence[float],
        cells: int,
        size: Sequence[int],
        head: CenterHeadConfig,
        config: CenterLossConfig,
    ) -> None:
        self.config, self.head = config, head
        self.range, self.pillar_size = list(point_cloud_range), list(pillar_size)
        self.cells, self.size = cells, list(size)
        self.classes: List[List[int]] = [list(mine) for mine in classes]
        count = 1 + max(itertools.chain(*classes))
        self.task_of_class = [0] * count
        for task, mine in enumerate(classes):
            for label in mine:
                self.task_of_class[label] = task

    def __call__(
        self,
        maps: List[List[Tensor]],
        boxes: Tensor,
        labels: Tensor,
        num_boxes: Optional[Tensor],
        weight: Optional[Tensor],
    ) -> Dict[str, Tensor]:
        config = self.config
        heat, cell, box, count = self.targets(maps, boxes, labels, num_boxes, weight)
        first = maps[0][0]
        terms = [first.new_zeros(()).float(), first.new_zeros(()).float()]
        for task, mine in enumerate(self.classes):
            objects = count[:, task].sum()
            own = torch.stack([heat[:, label] for label in mine], 1)
            terms[0] = terms[0] + self.heat_loss(maps[0][task], own, objects)
            parts = [kind[task] for kind in maps[1:] if len(kind) > 0]
            rows = torch.cat([part.float().flatten(2) for part in parts], 1)
            terms[1] = terms[1] + self.box_loss(rows, boxes, cell[:, task], box[:, task], objects)
        return {"heat": terms[0] * config.heat_weight, "boxes": terms[1] * config.box_weight}

    def targets(
        self,
        maps: List[List[Tensor]],
        boxes: Tensor,
        labels: Tensor,
        num_boxes: Optional[Tensor],
        weight: Optional[Tensor],
    ) -> CenterTargets:
        """What the maps are to hold."""
        return center_targets(
            boxes,
            labels,
            weight,
            num_boxes,
            self.range,
            self.pillar_size,
            self.cells,
            self.size,
            self.task_of_class,
            max_objects=self.config.max_objects,
            overlap=self.config.overlap,
            min_radius=self.config.min_radius,
        )

    def heat_loss(self, logits: Tensor, target: Tensor, objects: Tensor) -> Tensor:
        """Focal loss of a task's maps [B, C, H, W]; targets below 0 do not count."""
        p = logits.float().sigmoid().clamp(TINY, 1 - TINY)
        peak = target == 1
        at_peaks = torch.where(peak, p.log() * (1 - p).square(), 0.0)
        away = (1 - target).square().square()
        elsewhere = torch.where(peak | (target < 0), 0.0, (1 - p).log() * p.square() * away)
        peaks = peak.sum() if self.config.peaks == "cells" else objects
        return -(at_peaks.sum() + elsewhere.sum()) / of_all_processes(peaks.to(p.dtype), 1)

    def box_loss(
        self, maps: Tensor, boxes: Tensor, cell: Tensor, box: Tensor, objects: Tensor
    ) -> Tensor:
        """Absolute differences of a task's maps [B, 8 or 10, H * W] at the cells [B, M]."""
        used, width = cell >= 0, maps.size(1)
        at = cell.clamp(min=0).long()[:, None].expand(-1, width, -1)
        target = self.code(boxes, cell.clamp(min=0), box.clamp(min=0))[..., :width]
        difference = maps.gather(2, at).transpose(1, 2) - target
        counts = used[..., None] & target.isfinite()
        size = torch.where(counts, difference, 0.0).abs()
        total = size[..., :8].sum() + self.config.velocity_weight * size[..., 8:].sum()
        if self.config.divisor == "max":
            return total / of_all_processes(objects.to(maps.dtype), 1)
        return total / (of_all_processes(objects.to(maps.dtype)) + TINY)

    def code(self, boxes: Tensor, cell: Tensor, box: Tensor) -> Tensor:
        """What the maps are to hold for boxes [B, G, 7 or 9] at cells [B, M]: [B, M, 10]."""
        rows = boxes.float().gather(1, box.long()[..., None].expand(-1, -1, boxes.size(2)))
        corner = [cell % self.size[1], torch.div(cell, self.size[1], rounding_mode="floor")]
        offsets = [
            (rows[..., i] - self.range[i]) / self.pillar_size[i] / self.cells - corner[i]
            for i in range(2)
        ]
        sizes = rows[..., 3:6].clamp(min=1e-5).log().unbind(-1)
        turn = [rows[..., 6].cos(), rows[..., 6].sin()]
        turn = turn if self.head.rot == "cos_sin" else turn[::-1]
        unknown = torch.full_like(rows[..., 0], math.nan)
        speeds = rows[..., 7:9].unbind(-1) if rows.size(2) > 8 else [unknown, unknown]
        return torch.stack([*offsets, rows[..., 2], *sizes, *turn, *speeds], -1)


class RowLoss(CenterLoss):
    """The loss where rows alone have heat, not -inf (Chen et al., VoxelNeXt, CVPR 2023). A box is
    regressed at the row nearest to its center. The heat of a row is the Gaussian of its distance to
    the center or that row, whichever is less, without an end."""

    @torch.no_grad()
    def targets(
        self,
        maps: List[List[Tensor]],
        boxes: Tensor,
        labels: Tensor,
        num_boxes: Optional[Tensor],
        weight: Optional[Tensor],
    ) -> CenterTargets:
        targets = super().targets(maps, boxes, labels, num_boxes, weight)
        rows = maps[0][0][:, :1].flatten(2) > -math.inf  # [B, 1, H * W]
        heat, nearest = self.near(boxes.float(), rows)
        object_heat = self.by_class(heat, labels, targets.box)
        if weight is not None:
            others = super().targets(maps, boxes, labels, num_boxes, (weight == 0).float())
            hidden = self.by_class(heat, labels, others.box) > object_heat
            object_heat = object_heat.masked_fill(hidden, -1.0)
        place = targets.box.clamp(min=0).long().flatten(1)
        cell = nearest.gather(1, place).view_as(targets.cell)
        has_cell = (targets.cell >= 0) & rows.any(2, keepdim=True)
        return CenterTargets(
            object_heat.masked_fill(~rows, -1.0).unflatten(2, self.size),
            torch.where(has_cell, cell, -1),
            targets.box,
            targets.count,
        )

    def near(self, boxes: Tensor, rows: Tensor) -> Tuple[Tensor, Tensor]:
        """The Gaussians of boxes [B, G, H * W] at rows, and the row nearest to each [B, G]."""
        cell = torch.arange(rows.size(2), device=boxes.device)
        width, unit = self.size[1], [size * self.cells for size in self.pillar_size]
        place = [(boxes[..., i] - self.range[i]) / unit[i] for i in range(2)]

        def squares(x: Tensor, y: Tensor) -> Tensor:
            """Of distances to all cells."""
            dy = torch.div(cell, width, rounding_mode="floor") - y[..., None]
            return (cell % width - x[..., None]).square() + dy.square()

        apart = squares(*place).masked_fill(~rows, math.inf)
        nearest = apart.argmin(2)
        of_row = squares(nearest % width, torch.div(nearest, width, rounding_mode="floor"))
        radius = gaussian_radius(boxes[..., 3] / unit[0], boxes[..., 4] / unit[1], self.config)
        spread = 2 * ((2 * radius + 1) / 6).square()
        return torch.exp(-torch.minimum(apart, of_row) / spread[..., None]), nearest

    def by_class(self, heat: Tensor, labels: Tensor, box: Tensor) -> Tensor:
        """The most heat of each class [B, classes, H * W] of the boxes that have a slot."""
        number = torch.arange(heat.size(1), device=heat.device)
        used = (box.flatten(1)[..., None] == number).any(1)
        heats = []
        for label in range(len(self.task_of_class)):
            heats.append(torch.where((used & (labels == label))[..., None], heat, 0.0).amax(1))
        return torch.stack(heats, 1)


def gaussian_radius(length: Tensor, width: Tensor, config: CenterLossConfig) -> Tensor:
    """Of boxes in cells, whole cells, as in `center_targets`."""
    both, area, overlap = length + width, length * width, config.overlap
    ways = (
        (both, 4 * area * (1 - overlap) / (1 + overlap)),
        (2 * both, 16 * (1 - overlap) * area),
        (-2 * overlap * both, 16 * overlap * (overlap - 1) * area),
    )
    roots = [(b + (b * b - square).clamp(min=0).sqrt()) / 2 for b, square in ways]
    return torch.stack(roots).amin(0).floor().clamp(min=config.min_radius)
