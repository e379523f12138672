# SPDX-License-Identifier: Apache-2.0
"""Anchors, decoding and greedy suppression of the re-implemented pillar detectors; plain torch.

Overlaps are exact, in double precision: upstream code counts a corner within 1 cm of an edge as
inside, which is a defect and not repeated here.
"""

import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn

PI = math.pi
ROTATIONS = (0.0, 1.57)


@dataclass(frozen=True)
class Boxes:
    """Detections of one cloud in the convention of their network: boxes [n, 7 or 9], scores [n],
    labels [n], best first within what the network sorts."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class AnchorRules:
    """Boxes of at least (or, in mmdetection3d, above) `score`: the best `pre`, greedy suppression
    above `iou`, the best `post`. dir_offset, dir_limit: of the angle that two directions
    distinguish."""

    score: float = 0.1
    iou: float = 0.01
    pre: int = 4096
    post: int = 500
    dir_offset: float = 0.78539
    dir_limit: float = 0.0


@dataclass(frozen=True)
class AnchorClass:
    """size: in the order of the network's boxes. z: of the bottom face, in meters."""

    name: str
    size: Tuple[float, float, float]
    z: float


def both_ends(low: float, high: float, count: int) -> Tensor:
    """Anchor centers from one end of the range to the other, OpenPCDet without align_center."""
    return low + torch.arange(count, dtype=torch.float32) * ((high - low) / (count - 1))


def cell_centers(low: float, high: float, count: int) -> Tensor:
    """Anchor centers at cell centers, as the aligned generator of mmdetection3d has them."""
    edges = torch.linspace(low, high, count + 1)
    return edges[:count] + (edges[1] - edges[0]) / 2


def anchors(
    area: Sequence[float], size: Sequence[int], classes: Sequence[AnchorClass], aligned: bool
) -> Tensor:
    """[ny, nx, classes, rotations, 7], z at the bottom face. area: x0, y0, x1, y1. aligned: at
    cell centers, not from end to end."""
    spread = cell_centers if aligned else both_ends
    table = torch.zeros(*size, len(classes), len(ROTATIONS), 7)
    table[..., 0] = spread(area[0], area[2], size[1])[None, :, None, None]
    table[..., 1] = spread(area[1], area[3], size[0])[:, None, None, None]
    for i, one in enumerate(classes):
        table[:, :, i, :, 2] = one.z
        table[:, :, i, :, 3:6] = torch.tensor(one.size)
    table[..., 6] = torch.tensor(ROTATIONS)
    return table


def anchor_head(head: nn.Module, channels: int, classes: int, box: str) -> None:
    """Adds the 1x1 convolutions of classes, codes (of this name) and two directions."""
    count = classes * len(ROTATIONS)
    head.conv_cls = nn.Conv2d(channels, count * classes, 1)
    head.add_module(box, nn.Conv2d(channels, count * 7, 1))
    head.conv_dir_cls = nn.Conv2d(channels, count * 2, 1)


def anchor_boxes(
    maps: Sequence[Sequence[Tensor]], cells: Tensor, rules: AnchorRules, bottom: bool
) -> Tuple[Tensor, Tensor]:
    """Boxes [n, 7] and scores [n, classes] of the maps of classes, codes and directions."""
    cls, box, direction = (kind[0][0].permute(1, 2, 0) for kind in maps)  # [H, W, channels]
    boxes = residual(box.reshape(-1, 7), cells.flatten(0, -2), bottom)
    bins = direction.reshape(-1, 2).argmax(1)
    turned = limit_period(boxes[:, 6] - rules.dir_offset, rules.dir_limit, PI)
    boxes[:, 6] = turned + rules.dir_offset + PI * bins
    return boxes, cls.reshape(len(boxes), -1).sigmoid()


def residual(codes: Tensor, anchor: Tensor, bottom: bool) -> Tensor:
    """Boxes of x, y, z, three sizes and an angle from their codes, [..., 7]. bottom: of the boxes'
    z; that of the anchors always is."""
    ax, ay, az, a3, a4, a5, ar = anchor.unbind(-1)
    diagonal = torch.sqrt(a3**2 + a4**2)
    height = torch.exp(codes[..., 5]) * a5
    z = codes[..., 2] * a5 + az + a5 / 2
    return torch.stack(
        [
            codes[..., 0] * diagonal + ax,
            codes[..., 1] * diagonal + ay,
            z - height / 2 if bottom else z,
            torch.exp(codes[..., 3]) * a3,
            torch.exp(codes[..., 4]) * a4,
            height,
            codes[..., 6] + ar,
        ],
        -1,
    )


def limit_period(value: Tensor, offset: float, period: float) -> Tensor:
    return value - torch.floor(value / period + offset) * period


def _corners(rectangles: Tensor) -> Tensor:
    """[n, 4, 2] corners, counter-clockwise, of rectangles [n, 5]: x, y, extents along x and y
    before the turn, counter-clockwise angle."""
    signs = torch.tensor([[1, 1], [-1, 1], [-1, -1], [1, -1]], dtype=torch.float64)
    local = signs * rectangles[:, None, 2:4] / 2
    cos, sin = torch.cos(rectangles[:, 4:5]), torch.sin(rectangles[:, 4:5])
    x = local[..., 0] * cos - local[..., 1] * sin
    y = local[..., 0] * sin + local[..., 1] * cos
    return torch.stack([x, y], -1) + rectangles[:, None, :2]


def _inside(points: Tensor, rectangles: Tensor) -> Tensor:
    """[n, k] bool of points [n, k, 2], borders belong."""
    off = points - rectangles[:, None, :2]
    cos, sin = torch.cos(rectangles[:, 4:5]), torch.sin(rectangles[:, 4:5])
    along = (off[..., 0] * cos + off[..., 1] * sin).abs()
    across = (off[..., 1] * cos - off[..., 0] * sin).abs()
    slack = 1e-12
    inside = along <= rectangles[:, 2:3] / 2 + slack
    return inside & (across <= rectangles[:, 3:4] / 2 + slack)


def overlaps(one: Tensor, others: Tensor) -> Tensor:
    """[n] intersection over union of a rectangle [5] with others [n, 5], in double precision."""
    # About the first one's center: far from the origin nothing is lost.
    others = others.double().clone()
    one = one.double().clone()
    others[:, :2] -= one[:2]
    one[:2] = 0
    ones = one.expand(len(others), 5)
    a, b = _corners(ones), _corners(others)
    da, db = a.roll(-1, 1) - a, b.roll(-1, 1) - b
    cross = da[:, :, None, 0] * db[:, None, :, 1] - da[:, :, None, 1] * db[:, None, :, 0]
    gap = b[:, None] - a[:, :, None]  # [n, 4, 4, 2]
    t = (gap[..., 0] * db[:, None, :, 1] - gap[..., 1] * db[:, None, :, 0]) / cross
    s = (gap[..., 0] * da[:, :, None, 1] - gap[..., 1] * da[:, :, None, 0]) / cross
    met = (cross.abs() > 1e-14) & (t >= 0) & (t <= 1) & (s >= 0) & (s <= 1)
    crossing = a[:, :, None] + t.nan_to_num(0, 0, 0)[..., None] * da[:, :, None]
    points = torch.cat([a, b, crossing.flatten(1, 2)], 1)
    used = torch.cat([_inside(a, others), _inside(b, ones), met.flatten(1)], 1)
    middle = (points * used[..., None]).sum(1) / used.sum(1).clamp(min=1)[:, None]
    off = torch.where(used[..., None], points - middle[:, None], 0.0)
    angle = torch.where(used, torch.atan2(off[..., 1], off[..., 0]), 10.0)  # unused ones last
    order = angle.argsort(1)
    ring = off.gather(1, order[..., None].expand_as(off))
    # Those behind the last used point repeat the first: they add no area.
    ring = torch.where(used.gather(1, order)[..., None], ring, ring[:, :1])
    after = ring.roll(-1, 1)
    area = (ring[..., 0] * after[..., 1] - ring[..., 1] * after[..., 0]).sum(1).abs() / 2
    sizes = others[:, 2] * others[:, 3] + one[2] * one[3]
    return area / (sizes - area).clamp(min=1e-12)


def suppressed(rectangles: Tensor, scores: Tensor, threshold: float) -> List[int]:
    """Rows that a greedy pass keeps, best first; equal scores: the lower row first."""
    order = scores.argsort(descending=True, stable=True)
    kept: List[int] = []
    radius = (rectangles[:, 2] ** 2 + rectangles[:, 3] ** 2).sqrt() / 2
    while len(order):
        best, order = order[0], order[1:]
        kept.append(int(best))
        apart = (rectangles[order, :2] - rectangles[best, :2]).norm(dim=1)
        near = apart <= (radius[order] + radius[best]) * (1 + 1e-5)
        gone = torch.zeros(len(order), dtype=torch.bool)
        if near.any():
            gone[near] = overlaps(rectangles[best], rectangles[order[near]]) > threshold
        order = order[~gone]
    return kept


def circled(centers: Tensor, scores: Tensor, threshold: float) -> List[int]:
    """As `suppressed`, of centers [n, 2] whose squared distance is at most the threshold."""
    order = scores.argsort(descending=True, stable=True)
    kept: List[int] = []
    while len(order):
        kept.append(int(order[0]))
        far = (centers[order] - centers[order[0]]).square().sum(1) > threshold
        far[0] = False
        order = order[far]
    return kept


def rectangles(boxes: Tensor, clockwise: bool) -> Tensor:
    """[n, 5] from boxes of any of the networks: the first size lies along x before the turn."""
    flat = boxes[:, [0, 1, 3, 4, 6]].clone()
    if clockwise:
        flat[:, 4] = -flat[:, 4]
    return flat


def joined(parts: Sequence[Boxes], columns: int) -> Boxes:
    """One after the other; none gives no boxes of so many columns."""
    empty = Boxes(torch.zeros(0, columns), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    several = [empty, *parts]
    return Boxes(
        torch.cat([p.boxes for p in several]),
        torch.cat([p.scores for p in several]),
        torch.cat([p.labels for p in several]),
    )


def selected(boxes: Tensor, scores: Tensor, labels: Tensor, rules: AnchorRules) -> Boxes:
    """OpenPCDet's selection over boxes [n, 7 or 9], scores [n] and labels [n]."""
    rows = (scores >= rules.score).nonzero()[:, 0]
    rows = rows[scores[rows].argsort(descending=True, stable=True)][: rules.pre]
    kept = suppressed(rectangles(boxes[rows], clockwise=False), scores[rows], rules.iou)
    rows = rows[kept[: rules.post]]
    return Boxes(boxes[rows], scores[rows], labels[rows])


def per_class(boxes: Tensor, scores: Tensor, rules: AnchorRules, clockwise: bool) -> Boxes:
    """mmdetection3d's selection over boxes [n, 7] and scores [n, classes]: those with the best
    scores, greedy in each class; of more than `post` in all, the best."""
    best = scores.max(1)[0].argsort(descending=True, stable=True)[: rules.pre]
    boxes, scores = boxes[best], scores[best]
    parts = []
    for label in range(scores.size(1)):
        rows = (scores[:, label] > rules.score).nonzero()[:, 0]
        kept = suppressed(rectangles(boxes[rows], clockwise), scores[rows, label], rules.iou)
        rows = rows[kept]
        parts.append(Boxes(boxes[rows], scores[rows, label], torch.full((len(rows),), label)))
    whole = joined(parts, boxes.size(1))
    order = whole.scores.argsort(descending=True, stable=True)[: rules.post]
    if len(whole.scores) > rules.post:
        whole = Boxes(whole.boxes[order], whole.scores[order], whole.labels[order])
    return whole
