# SPDX-License-Identifier: Apache-2.0
"""Objects of other scans, pasted where they were into scans that have room for them there (Yan et
al., SECOND, Sensors 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchvox._errors import expect
from torchvox.augment.objects import ObjectDatabase
from torchvox.data.counter_random import Draws, mix
from torchvox.ops.boxes import place_boxes, points_in_boxes

LabelledScans = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class Paste:
    """Pastes objects of a database into batches of scans on its device.

    counts: candidates a scan of each class; the classes join the scan in their order. fill:
    "fixed", always so many (OpenPCDet for KITTI); "missing", less the boxes of the class with a
    weight above 0 that are there (mmdetection3d, OpenPCDet for nuScenes). mode: who of a class
    stays, "both" or "greedy", see `torchvox.place_boxes`; no box of the scan is overlapped.
    points, boxes: capacities R and Q for what is pasted; None: a box for each candidate. Objects
    that have no room are left out whole, the last first.

    Candidates of a scan are a function of (seed, step, id) alone. Each is any object of its class
    with equal chance, and none comes twice: from a random start in the database, one at random of
    each of as many equal stretches as there are candidates.
    """

    def __init__(
        self,
        database: ObjectDatabase,
        counts: Sequence[int],
        *,
        fill: str = "fixed",
        mode: str = "both",
        points: int = 16384,
        boxes: int | None = None,
    ) -> None:
        expect(fill in ("fixed", "missing"), "Paste: fill must be 'fixed' or 'missing'", fill)
        expect(mode in ("both", "greedy"), "Paste: mode must be 'both' or 'greedy'", mode)
        room = points > 0 and (boxes is None or boxes > 0)
        expect(room, "Paste: points and boxes must be above 0", (points, boxes))
        sizes = database.sizes
        good = len(counts) == len(sizes) and min(counts, default=0) >= 0 and any(counts)
        rule = f"Paste: counts must be {len(sizes)} numbers, none below 0 and one above"
        expect(good, rule, tuple(counts))
        good = all(size > 0 for size, count in zip(sizes, counts, strict=True) if count)
        rule = f"Paste: the database must hold objects of every class, for counts {tuple(counts)}"
        expect(good, rule, sizes)
        table = torch.tensor(_stretches(counts, sizes), device=database.points.device)
        self._label, self._number, self._count, self._first, self._size, *self._stretch = table.T
        self.database, self.classes = database, len(sizes)
        self.missing, self.mode = fill == "missing", mode
        self.points, self.boxes = points, len(table) if boxes is None else boxes
        self.refused = torch.zeros((), dtype=torch.int64, device=table.device)

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
    ) -> LabelledScans:
        """Scans with what was pasted, in new tensors of fixed shapes: points [B, R + N, C],
        num_points, boxes [B, G + Q, 7 or 9], labels, num_boxes, weight.

        points: [B, N, C] float32; num_points: [B] int32. boxes: [B, G, 7 or 9] float32; labels:
        [B, G] int32; num_boxes: [B] int32; weight: [B, G] float32; columns as in the database. ids:
        [B] int64, of the scans. step: [] or [1] int64.

        The first R rows of points are those of objects, NaN where there is none, and count as
        points: num_points + R. Points of the scan in a pasted box become NaN. Pasted boxes come
        behind those of the scan, with weight 1. `refused` [] int64 on the device says how many
        objects of this call had no room. CPU and CUDA give the same bits, and nothing waits for the
        device. Raises ValueError.
        """
        base, like = self.database, (points.size(2), boxes.size(2))
        columns = (base.points.size(1), base.boxes.size(1))
        expect(like == columns, f"Paste: points and boxes must have {columns} columns", like)
        draws = Draws(seed, "paste", mix(mix(ids.long()) + step.long()))
        pick, group = self._candidates(draws, labels, weight)
        found = base.boxes[pick]
        free = place_boxes(boxes, found[:, :, None], group, num_boxes, self.mode) == 0
        count = torch.where(free, base.counts[pick], 0)
        kept = (count.cumsum(1) <= self.points) & (free.cumsum(1) <= self.boxes) & free
        self.refused = (free & ~kept).sum()
        objects = self._points(pick, torch.where(kept, count, 0), found)
        taken = points_in_boxes(points, found.masked_fill(~kept[..., None], 0)) >= 0
        points = torch.cat([objects, points.masked_fill(taken[..., None], math.nan)], 1)
        more = found, base.labels[pick], torch.ones_like(found[..., 0])
        rows = self._rows(kept, num_boxes.long(), boxes.size(1))
        boxes, labels, weight = (
            _taken(torch.cat(both, 1), *rows, empty)
            for both, empty in zip(
                zip((boxes, labels, weight), more, strict=True), (0, -1, 0), strict=True
            )
        )
        num_boxes = num_boxes + kept.sum(1).to(num_boxes.dtype)
        return points, num_points + self.points, boxes, labels, num_boxes, weight

    def _candidates(self, draws: Draws, labels: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """[B, K] objects of the database, and [B, K] their classes, -1 for none."""
        low, length = self._stretch
        drawn = draws.uniform("objects", self.classes + len(low))
        start = (drawn[:, self._label] * self._size).long()
        place = low + (drawn[:, self.classes :] * length).long()
        pick = self._first + (start + place) % self._size
        if not self.missing:
            return pick, self._label.expand_as(pick)
        there = (labels[:, None] == self._label[:, None]) & (weight[:, None] > 0)
        wanted = self._number + there.sum(2) < self._count
        return pick, torch.where(wanted, self._label, -1)

    def _points(self, pick: Tensor, count: Tensor, boxes: Tensor) -> Tensor:
        """[B, R, C] points of objects [B, K] of which count [B, K] rows are taken."""
        end = count.cumsum(1)
        row = torch.arange(self.points, device=end.device).expand(len(end), -1).contiguous()
        owner = torch.searchsorted(end, row, right=True).clamp(max=end.size(1) - 1)
        there = row < end[:, -1:]
        begin = self.database.offsets[pick] - (end - count)
        points = self.database.points[torch.where(there, begin.gather(1, owner) + row, 0)]
        points[..., :3] += boxes[..., :3].gather(1, owner[..., None].expand(-1, -1, 3))
        return points.masked_fill(~there[..., None], math.nan)

    def _rows(self, kept: Tensor, num_boxes: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """[B, G + Q] rows of the scan's boxes with candidates behind, and which of them exist."""
        rank = kept.cumsum(1)
        slot = torch.arange(capacity + self.boxes, device=kept.device)
        number = slot - num_boxes[:, None]  # of the pasted
        row = torch.searchsorted(rank, number.clamp(min=0) + 1).clamp(max=kept.size(1) - 1)
        return torch.where(number < 0, slot, capacity + row), number < rank[:, -1:]


def _stretches(counts: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Of each candidate: label, number in its class, count of the class, its first object and how
    many there are, where the candidate's stretch of them begins and its length."""
    rows: list[tuple[int, ...]] = []
    first = 0
    for label, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        most = min(count, size)
        for i in range(most):
            low, high = i * size // most, (i + 1) * size // most
            rows.append((label, i, count, first, size, low, high - low))
        first += size
    return rows


def _taken(table: Tensor, rows: Tensor, there: Tensor, empty: int) -> Tensor:
    """Rows [B, S] of table [B, T] or [B, T, C], `empty` where there is none."""
    if table.dim() == 2:
        return table.gather(1, rows).masked_fill(~there, empty)
    rows = rows[..., None].expand(-1, -1, table.size(2))
    return table.gather(1, rows).masked_fill(~there[..., None], empty)
