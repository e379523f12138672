# SPDX-License-Identifier: Apache-2.0
"""Objects of other scans, pasted where they were into scans that have room for them there (Yan et
al., SECOND, Sensors 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchvox._util.errors import expect
from torchvox.augment.objects import ObjectDatabase, rows_of
from torchvox.data.counter_random import Draws, mix
from torchvox.ops.annotations import PlaceMode
from torchvox.ops.boxes import place_boxes, points_in_boxes


class Paste:
    """Pastes objects of a database into batches of scans on its device.

    counts: candidates per scan of each class; classes join the scan in their order. fill: "fixed",
    always this number (OpenPCDet for KITTI), or "missing", less the boxes of the class with weight
    above 0 (mmdetection3d, OpenPCDet for nuScenes). mode: which of a class stay, as in
    `torchvox.place_boxes`; no box of the scan is overlapped. points, boxes: room R and Q for pasted
    points and boxes (None: one box per candidate); objects that do not fit are dropped whole, the
    last first.

    Candidates are the first of a random order of their class, a function of (seed, step, id of the
    scan, class) alone: each object has the same chance, none comes twice. The order takes a number
    per object of the database and scan of a batch; `per_class` bounds it.
    """

    def __init__(
        self,
        database: ObjectDatabase,
        counts: Sequence[int],
        *,
        fill: str = "fixed",
        mode: PlaceMode = "both",
        points: int = 16384,
        boxes: int | None = None,
    ) -> None:
        sizes = database.sizes
        expect(fill in ("fixed", "missing"), "Paste: fill must be 'fixed' or 'missing'", fill)
        good = len(counts) == len(sizes) and any(counts)
        good &= all(0 <= count <= count * size for count, size in zip(counts, sizes, strict=False))
        room = points, boxes or 0
        expect(min(room) >= 0, "Paste: points and boxes must be 0 or more", room)
        rule = f"Paste: counts must be 0 or more of each class, not all 0, of {sizes} objects"
        expect(good, rule, tuple(counts))
        # One column of labels from 1, so that zeros are not a box, and one of weights.
        self._boxes = pad(database.boxes, (0, 2), value=1.0)
        self._boxes[:, -2] += database.labels
        # A row of NaN behind the points stands for "no point".
        self._points = pad(database.points, (0, 0, 0, 1), value=math.nan)
        self._begin, self._lengths = database.offsets, database.offsets.diff()
        self.counts, self.sizes, self.mode, self.missing = counts, sizes, mode, fill == "missing"
        most = sum(min(count, size) for count, size in zip(counts, sizes, strict=True))
        self.points, self.boxes = points, most if boxes is None else boxes
        self.refused = torch.zeros((), dtype=torch.int64, device=database.points.device)

    def __call__(
        self,
        points: Tensor,
        num_points: Tensor,
        boxes: Tensor,
        labels: Tensor,
        num_boxes: Tensor,
        weight: Tensor,
        ids: Tensor,
        step: Tensor,
        seed: int,
    ) -> tuple[Tensor, ...]:
        """The first six with added objects: points [B, R + N, C], boxes [B, G + Q, 7 or 9].

        points: [B, N, C] float32; num_points: [B] int32. boxes: [B, G, 7 or 9] float32; labels:
        [B, G] int32; num_boxes: [B] int32; weight: [B, G] float32; columns as in the database. ids:
        [B] int64, of the scans. step: [] or [1] int64.

        The first R points are those of objects, then NaN, and all count: num_points + R. Points of
        the scan in a pasted box become NaN. Pasted boxes, of weight 1, come behind those of the
        scan. `refused` [] int64, on the device: objects that had no room in this call. CPU and CUDA
        give the same bits, without a host synchronization.
        """
        draws = Draws(seed, "paste", mix(mix(ids.long()) + step.long()))
        pick, group = self._candidates(labels, weight, draws)
        chosen = self._boxes[pick]
        free = place_boxes(boxes, chosen[:, :, None], group, num_boxes, self.mode) == 0
        count = torch.where(free, self._lengths[pick], 0)
        kept = free & (count.cumsum(1) <= self.points) & (free.cumsum(1) <= self.boxes)
        self.refused = (free & ~kept).sum()
        objects = self._objects(pick, torch.where(kept, count, 0), chosen)
        covered = points_in_boxes(points, chosen.masked_fill(~kept[..., None], 0)) >= 0
        points = torch.cat([objects, points.masked_fill(covered[..., None], math.nan)], 1)

        rank, number = kept.cumsum(1), torch.arange(boxes.size(1) + self.boxes, device=pick.device)
        pasted = number - num_boxes.long()[:, None]  # below 0: a box of the scan
        behind = boxes.size(1) + torch.searchsorted(rank, pasted.clamp(min=0) + 1)
        rows = torch.cat([boxes, labels[..., None] + 1, weight[..., None]], 2)
        rows = rows_of(torch.cat([rows, chosen], 1), torch.where(pasted < 0, number, behind))
        boxes, labels, weight = rows[..., :-2], (rows[..., -2] - 1).to(labels.dtype), rows[..., -1]
        num_boxes = num_boxes + rank[:, -1].to(num_boxes.dtype)
        return points, num_points + self.points, boxes, labels, num_boxes, weight

    def _candidates(self, labels: Tensor, weight: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """[B, K] objects of the database, and [B, K] their classes, -1 for none."""
        order, picks, groups, first = draws.bits("order", sum(self.sizes)), [], [], 0
        for label, (count, size) in enumerate(zip(self.counts, self.sizes, strict=True)):
            pick = order[:, first : first + size].topk(min(count, size)).indices
            there = ((labels == label) & (weight > 0)).sum(1, keepdim=True) * self.missing
            number = torch.arange(pick.size(1), device=pick.device)
            groups.append(torch.where(number + there < count, label, -1))
            picks.append(pick + first)
            first += size
        return torch.cat(picks, 1), torch.cat(groups, 1)

    def _objects(self, pick: Tensor, count: Tensor, boxes: Tensor) -> Tensor:
        """[B, R, C] points of objects [B, K], count [B, K] rows of each; then NaN."""
        end = count.cumsum(1)
        row = torch.arange(self.points, device=end.device).expand(len(end), -1).contiguous()
        owner = torch.searchsorted(end, row, right=True)  # K past the last
        none = len(self._points) - 1
        begin = pad(self._begin[pick] - (end - count), (0, 1), value=none)
        at = (begin.gather(1, owner) + row).clamp_(max=none)[..., None]
        column = torch.arange(self._points.size(1), device=end.device)
        # For rows of 16 bytes torch would start one thread block per row.
        points = self._points.take(at * len(column) + column)
        points[..., :3] += rows_of(boxes[..., :3], owner)
        return points
