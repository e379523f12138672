# SPDX-License-Identifier: Apache-2.0
"""The labelled objects of a data set, cut out of their scans to be pasted into others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.ops.boxes import points_in_boxes


class ObjectDatabase(NamedTuple):
    """M objects on one device, by rising label, those of a label in the order of the scans.

    points: [P, C] float32, x, y, z from the center of the object's box. offsets: [M + 1] int64,
    where the objects' points begin. boxes: [M, 7 or 9] float32, where they were. labels: [M] int32.
    sizes: objects of each class.
    """

    points: Tensor
    offsets: Tensor
    boxes: Tensor
    labels: Tensor
    sizes: tuple[int, ...]


def collect_objects(
    batches: Iterable[Mapping[str, Tensor]],
    classes: int,
    *,
    min_points: int = 5,
    per_class: int | None = None,
) -> ObjectDatabase:
    """The objects of all boxes with a weight above 0 and `min_points` points or more, the first
    `per_class` of each class (None: all), however scans are cut into batches.

    batches: of a labelled data set such as `World` or `ScanFolder`, on one device: points, boxes,
    labels, num_points, num_boxes and weight. Waits for the device. Raises ValueError.
    """
    rule = "collect_objects: min_points and per_class must be above 0"
    expect(min_points > 0 and (per_class is None or per_class > 0), rule, (min_points, per_class))
    parts = [_objects(batch, min_points) for batch in batches]
    expect(bool(parts), "collect_objects: there must be a batch or more", parts)
    points, counts, boxes, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    of_class = [(labels == label).nonzero()[:per_class, 0] for label in range(classes)]
    order, rows = torch.cat(of_class), points.split(counts.tolist())
    points = torch.cat([points[:0], *(rows[i] for i in order.tolist())])
    offsets = torch.nn.functional.pad(counts[order].cumsum(0), (1, 0))
    return ObjectDatabase(points, offsets, boxes[order], labels[order], tuple(map(len, of_class)))


def _objects(batch: Mapping[str, Tensor], min_points: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points [P, C] from the centers of their boxes, box by box; counts [M], boxes and labels.

    A point in two boxes belongs to the first. A point that rounding would move out of its box, when
    it is put back, belongs to none."""
    points, boxes = batch["points"].clone(), batch["boxes"]
    lengths = {"lengths": batch["num_points"], "box_lengths": batch["num_boxes"]}
    owner = points_in_boxes(points, boxes, **lengths).long()
    center = rows_of(boxes[..., :3], owner)
    points[..., :3] -= center
    owned = (owner >= 0) & (points_in_boxes(points[..., :3] + center, boxes, **lengths) == owner)
    first = torch.arange(len(boxes), device=boxes.device)[:, None] * boxes.size(1)
    box, order = (owner + first)[owned].sort(stable=True)
    counts = torch.bincount(box, minlength=batch["labels"].numel())
    kept = (batch["weight"].flatten() > 0) & (counts >= min_points)
    points = points[owned][order][kept[box]]
    return points, counts[kept], boxes.flatten(0, 1)[kept], batch["labels"].flatten()[kept]


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Rows [B, S, C] of table [B, T, C]; zeros where index [B, S] is -1 or T."""
    padded = torch.nn.functional.pad(table, (0, 0, 0, 1))
    rows = index.remainder(padded.size(1))  # -1 is the last
    return padded.gather(1, rows[..., None].expand(-1, -1, table.size(2)))
