# SPDX-License-Identifier: Apache-2.0
"""The labelled objects of a data set, cut out of their scans to be pasted into others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchvox._errors import expect
from torchvox.ops.boxes import points_in_boxes


@dataclass(frozen=True)
class ObjectDatabase:
    """M objects on one device, by rising label, those of a label in the order of the scans.

    points: [P, C] float32, x, y, z from the center of the object's box. offsets: [M] int64, rows
    of points where objects begin; counts: [M] int64, how many each has. boxes: [M, 7 or 9] float32,
    where they were; labels: [M] int32. sizes: objects of each class, M together.
    """

    points: Tensor
    offsets: Tensor
    counts: Tensor
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
    """Every box with a weight above 0 and with `min_points` points or more, the first `per_class`
    of each class (None: all). How scans are cut into batches changes nothing.

    batches: of a labelled data set such as `World` or `ScanFolder`, on one device: points, boxes,
    labels, num_points, num_boxes and weight. A point in two boxes is the first's; one that would
    leave its box by rounding, when it is taken from the center and put back, is nobody's.
    Waits for the device. Raises ValueError.
    """
    rule = "collect_objects: min_points and per_class must be above 0"
    expect(min_points > 0 and (per_class is None or per_class > 0), rule, (min_points, per_class))
    parts = [_objects(batch, classes, min_points) for batch in batches]
    expect(bool(parts), "collect_objects: there must be a batch or more", parts)
    points, counts, boxes, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    order = labels.argsort(stable=True)
    known = torch.arange(classes, dtype=labels.dtype, device=labels.device)
    first = torch.searchsorted(labels[order], known)
    rank = torch.arange(len(order), device=order.device) - first[labels[order].long()]
    if per_class is not None:
        order = order[rank < per_class]
    begin, counts = (counts.cumsum(0) - counts)[order], counts[order]
    offsets = counts.cumsum(0) - counts
    rows = (begin - offsets).repeat_interleave(counts)
    points = points[rows + torch.arange(len(rows), device=rows.device)]
    sizes = torch.bincount(labels[order], minlength=classes).tolist()
    return ObjectDatabase(points, offsets, counts, boxes[order], labels[order], tuple(sizes))


def _objects(batch: Mapping[str, Tensor], classes: int, min_points: int) -> tuple[Tensor, ...]:
    """points [P, C], counts [M], boxes [M, 7 or 9], labels [M] of a batch's objects in order."""
    points, boxes, labels = batch["points"], batch["boxes"], batch["labels"]
    some = {"lengths": batch["num_points"], "box_lengths": batch["num_boxes"]}
    owner = points_in_boxes(points, boxes, **some).long()
    centers = torch.nn.functional.pad(boxes[..., :3], (0, 0, 0, 1))  # the last of points in no box
    center = centers.gather(1, (owner % centers.size(1))[..., None].expand(-1, -1, 3))
    relative = points.clone()
    relative[..., :3] -= center
    back = points_in_boxes(relative[..., :3] + center, boxes, **some)
    owner = torch.where(back == owner, owner, -1)

    wanted = (batch["weight"] > 0) & (labels >= 0) & (labels < classes)
    owned = owner >= 0
    scan = torch.arange(len(points), device=points.device)[:, None]
    box = (owner + scan * boxes.size(1))[owned]
    counts = torch.bincount(box, minlength=labels.numel())
    kept = wanted.flatten() & (counts >= min_points)
    order = box.argsort(stable=True)
    order = order[kept[box[order]]]
    return (
        relative[owned][order],
        counts[kept],
        boxes.flatten(0, 1)[kept],
        labels.flatten()[kept],
    )
