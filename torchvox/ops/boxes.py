# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes: overlap, suppression, points inside, places that are free."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import (
    InsideMode,
    IouMode,
    NmsMode,
    OverlapMetric,
    PlaceMode,
    Sequence,
)

__all__ = [
    "BoxPoints",
    "Kept",
    "box_query",
    "place_boxes",
    "points_in_boxes",
    "rotated_iou",
    "rotated_nms",
]


class BoxPoints(NamedTuple):
    """Result of `box_query`.

    index: [B, G, k] int32, with a grid [B, G, cells, k]; unused slots -1.
    count: [B, G] int32, with a grid [B, G, cells]: points found, maybe more than k.
    """

    index: Tensor
    count: Tensor


class Kept(NamedTuple):
    """Result of `rotated_nms`; of one sample [K] and [].

    index: [B, K] int32, the boxes kept, best first; unused slots -1.
    count: [B] int32, how many.
    """

    index: Tensor
    count: Tensor


def rotated_iou(
    a: Tensor,
    b: Tensor,
    *,
    mode: IouMode = "bev",
    paired: bool = False,
    metric: OverlapMetric = "iou",
) -> Tensor:
    """Overlap of rotated boxes, of every a with every b or of pairs.

    a: [N, 7] or [B, N, 7] float32 or float64, 7 columns or more, any strides: x, y, z of the
        center, l, w, h in meters, yaw counter-clockwise from +x in radians; further columns are not
        read. b: [M, 7] or [B, M, 7] of the same dtype, with the B of a.
    mode: "bev", rectangles seen from above (z and h are not read); "3d", volumes.
    paired: only a[i] with b[i]; N = M.
    metric: "iou", intersection over union; "iof", intersection over the size of a; "overlap", the
        intersection itself, in m^2 ("bev") or m^3 ("3d").

    Returns [N, M] or [B, N, M], paired [N] or [B, N], of the boxes' dtype: exact polygon clipping
    in that dtype, an IoU within 1.2e-6 (float32) of the exact value for boxes anywhere, up to 10
    times as long as wide (docs/boxes.md has thinner ones). "iou" and "iof" are in [0, 1], exactly 1
    for identical boxes; "iou" and "overlap" have the same bits for (a, b) and (b, a). Exactly 0 for
    boxes that an axis of either separates or that touch, and for boxes with a size or area below
    1e-30 or a value that is not finite. Under autocast halves are widened to float32.

    Differentiable in a and b, without atomics. Boxes that share an edge get a one-sided gradient,
    identical boxes the mean of both sides, which is 0 for "iou".
    Raises ValueError (shapes, options) and TypeError (dtypes).

    >>> boxes = torch.tensor([[0.0, 0, 0, 4, 2, 2, 0], [2, 0, 0, 4, 2, 2, 0]])
    >>> torchvox.rotated_iou(boxes, boxes)
    tensor([[1.0000, 0.3333],
            [0.3333, 1.0000]])
    """
    return torch.ops.torchvox.rotated_iou(a, b, mode=mode, paired=paired, metric=metric)


def rotated_nms(
    boxes: Tensor,
    scores: Tensor,
    threshold: float,
    max_out: int = -1,
    *,
    group: Optional[Tensor] = None,
    lengths: Optional[Tensor] = None,
    mode: NmsMode = "rotated",
) -> Kept:
    """Greedy suppression of boxes that overlap a better one, on the boxes' device.

    boxes: [B, N, 7] float32, 7 columns or more, as in `rotated_iou`. Boxes with a score or one of
        the 7 values that is not finite are left out. [N, 7] is one sample, without B below either.
    scores: [B, N] float32. Boxes come by falling score, equal scores by rising index.
    threshold: >= 0. "rotated": a kept box suppresses those behind it whose IoU, seen from above, is
        greater; "circle": those whose squared center distance is at most this (so 4 means 2 m).
    max_out: K, boxes kept of each sample at most; -1: N.
    group: [B, N] int32 or int64; boxes of different groups never suppress each other. Never
        emulate groups by moving boxes apart: float32 loses the box.
    lengths: [B] int32 or int64, boxes of each sample that exist, clamped to [0, N]. None: N. Of
        batches alone.
    mode: "rotated" or "circle".

    Returns `Kept`. At most N^2 / 2 pairs of a sample are tested, in little more than 2 MiB of
    memory per sample. Not differentiable. Under autocast halves are widened to float32.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> boxes = torch.tensor([[0.0, 0, 0, 4, 2, 2, 0]]).repeat(3, 1)
    >>> boxes[2, 0] = 9.0
    >>> torchvox.rotated_nms(boxes, torch.tensor([0.9, 0.8, 0.7]), threshold=0.5).index
    tensor([ 0,  2, -1], dtype=torch.int32)
    """
    single = boxes.dim() == 2 and scores.dim() == 1 and lengths is None
    if single:
        boxes, scores = boxes[None], scores[None]
        group = None if group is None else group[None]
    if max_out == -1 and boxes.dim() == 3:
        max_out = boxes.shape[1]
    index, count = torch.ops.torchvox.rotated_nms(
        boxes, scores, threshold, max_out, group=group, lengths=lengths, mode=mode
    )
    return Kept(index[0], count[0]) if single else Kept(index, count)


def points_in_boxes(
    points: Tensor,
    boxes: Tensor,
    *,
    mode: InsideMode = "index",
    margin: float = 0.0,
    lengths: Optional[Tensor] = None,
    box_lengths: Optional[Tensor] = None,
) -> Tensor:
    """Which points lie in which rotated boxes.

    points: [B, N, C] float32 or float64, C >= 3: x, y, z first; any strides. Points that are not
        finite lie in no box.
    boxes: [B, G, 7] of the same dtype, 7 columns or more, as in `rotated_iou`. Boxes with a size
        that is not positive or a value that is not finite hold no point. points [N, C] and boxes
        [G, 7] are one sample, without B below either.
    mode: "index", the first box that holds the point; "mask", every pair; "count", points per box.
    margin: meters added to half of the length and of the width (OpenPCDet adds 1e-5 on the GPU and
        1e-2 on the CPU).
    lengths, box_lengths: [B] int32 or int64, points and boxes of each sample that exist, clamped.
        Of batches alone.

    A box holds a point with abs(along) < l / 2, abs(across) < w / 2 and abs(dz) <= h / 2 (mmcv's
    rule). Returns [B, N] int32, -1 in no box; [B, G, N] bool; or [B, G] int32. Not differentiable.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> points = torch.tensor([[1.0, 0, 0], [9, 9, 9]])
    >>> torchvox.points_in_boxes(points, torch.tensor([[0.0, 0, 0, 4, 2, 2, 0]]))
    tensor([ 0, -1], dtype=torch.int32)
    """
    single = points.dim() == 2 and boxes.dim() == 2 and lengths is None and box_lengths is None
    if single:
        points, boxes = points[None], boxes[None]
    result = torch.ops.torchvox.points_in_boxes(
        points, boxes, mode=mode, margin=margin, lengths=lengths, box_lengths=box_lengths
    )
    return result[0] if single else result


def box_query(
    points: Tensor,
    boxes: Tensor,
    k: int,
    *,
    grid: Optional[Sequence[int]] = None,
    margin: float = 0.0,
    lengths: Optional[Tensor] = None,
    box_lengths: Optional[Tensor] = None,
) -> BoxPoints:
    """The first k points, by index, in each rotated box or in each cell of it: RoI pooling, crops.

    points, boxes, margin, lengths, box_lengths: as in `points_in_boxes`, whose rule says which
        points inside a box.
    k: slots of a cell.
    grid: (nx, ny, nz), the cells of a box along its length, width and height: a point is in cell
        floor((local + size / 2) / (size / n)) of each axis, local being its coordinate from the
        center of the box, clamped to [0, n - 1]. Cells come in the order (x, y, z), z fastest.
        None: the box is one cell.

    Returns `BoxPoints`. Memory beside the outputs: one bit for every point and box. Not
    differentiable.
    Raises ValueError (shapes, ranges) and TypeError (dtypes).
    """
    index, count = torch.ops.torchvox.box_query(
        points, boxes, k, grid=grid, margin=margin, lengths=lengths, box_lengths=box_lengths
    )
    return BoxPoints(index, count)


def place_boxes(
    boxes: Tensor,
    candidates: Tensor,
    group: Tensor,
    lengths: Optional[Tensor] = None,
    mode: PlaceMode = "both",
    *,
    replaces: Optional[Tensor] = None,
) -> Tensor:
    """Which candidates find a place among boxes that they do not overlap: objects pasted into a
    scene (T = 1), or moved within it (T tries each).

    boxes: [B, G, 7] float32, 7 columns or more, as in `rotated_iou`. lengths: [B] int32 or int64,
        boxes of each scene that exist, clamped. None: G.
    candidates: [B, K, T, 7] float32, 7 columns or more: T tries each.
    group: [B, K] int32 or int64; groups join the scene in rising number, and those that are placed
        are boxes for the next. Below 0: no candidate. One alone in its group takes its first try
        that overlaps no box. Of several in a group only the first tries count.
    mode: of several in a group. "both" (OpenPCDet): one goes that overlaps a box or any other of
        the group. "greedy" (mmdetection3d): by rising index, one goes that overlaps a box or
        another that has not gone yet, which it frees.
    replaces: [B, K] int32 or int64; the box that the candidate stands for, which is no obstacle to
        it and leaves when it is placed; below 0 or past `lengths`: none.

    Returns [B, K] int32: the try taken, -1 for none. Overlap: `rotated_iou`(mode="bev") > 0, so
    boxes that touch, or that have no area, do not overlap. Not differentiable. Under autocast
    halves are widened to float32.
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    return torch.ops.torchvox.place_boxes(
        boxes, candidates, group, lengths, mode, replaces=replaces
    )
