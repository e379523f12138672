# SPDX-License-Identifier: Apache-2.0
"""Boxes of the re-implemented pillar detectors: anchors; codes and greedy suppression are those of
torchvox.reference. Upstream code counts a corner within 1 cm of an edge as inside, which is a
defect and not repeated here.
"""

import math
from dataclasses import dataclass
from typing import Sequence

import torch
from torch import Tensor

from torchvox.reference import box_decode, rotated_nms

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
    size: Sequence[float]
    z: float


def anchors(area, size, classes, aligned):
    """[ny, nx, classes, rotations, 7], z at the bottom face. area: x0, y0, x1, y1. aligned: at
    cell centers, not from end to end."""
    axes = []
    for count, low, high in zip(size[::-1], area[:2], area[2:], strict=True):
        edges = torch.linspace(low, high, count + 1)
        ends = low + torch.arange(count, dtype=torch.float32) * ((high - low) / (count - 1))
        axes.append(edges[:count] + (edges[1] - edges[0]) / 2 if aligned else ends)
    table = torch.zeros(*size, len(classes), len(ROTATIONS), 7)
    table[..., 0] = axes[0][None, :, None, None]
    table[..., 1] = axes[1][:, None, None, None]
    for i, one in enumerate(classes):
        table[:, :, i, :, 2] = one.z
        table[:, :, i, :, 3:6] = torch.tensor(one.size)
    table[..., 6] = torch.tensor(ROTATIONS)
    return table


def decoded(codes, cells, bottom=False, **turn):
    """Boxes [n, 7 or 9] of anchors [n, 7] and their codes. bottom: of the boxes' z; that of the
    anchors always is. turn: the direction that completes the yaw."""
    centered = cells.clone()
    centered[:, 2] += cells[:, 5] / 2
    boxes = box_decode(codes, centered, **turn)
    boxes[:, 2] -= boxes[:, 5] / 2 if bottom else 0
    return boxes


def suppressed(boxes, scores, threshold, clockwise=False, circle=False):
    """Rows that a greedy pass keeps, best first; equal scores: the lower row first. In every
    network the first size lies along x before the turn. circle: the threshold is that of the
    squared distance of centers."""
    flat = boxes[:, :7].double()
    flat[:, 6] *= -1 if clockwise else 1
    mode = "circle" if circle else "rotated"
    index, count = rotated_nms(flat[None], scores[None], threshold, len(boxes), mode=mode)
    return index[0, : int(count[0])].tolist()


def joined(parts, columns):
    """One after the other; none gives no boxes of so many columns."""
    empty = Boxes(torch.zeros(0, columns), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    several = [empty, *parts]
    names = ("boxes", "scores", "labels")
    return Boxes(*(torch.cat([getattr(p, name) for p in several]) for name in names))


def selected(boxes, scores, labels, rules):
    """OpenPCDet's selection over boxes [n, 7 or 9], scores [n] and labels [n]."""
    rows = (scores >= rules.score).nonzero()[:, 0]
    rows = rows[scores[rows].argsort(descending=True, stable=True)][: rules.pre]
    rows = rows[suppressed(boxes[rows], scores[rows], rules.iou)[: rules.post]]
    return Boxes(boxes[rows], scores[rows], labels[rows])


def per_class(boxes, scores, rules, clockwise):
    """mmdetection3d's selection over boxes [n, 7] and scores [n, classes]: those with the best
    scores, greedy in each class; of more than `post` in all, the best."""
    best = scores.max(1)[0].argsort(descending=True, stable=True)[: rules.pre]
    boxes, scores = boxes[best], scores[best]
    parts = []
    for label in range(scores.size(1)):
        rows = (scores[:, label] > rules.score).nonzero()[:, 0]
        rows = rows[suppressed(boxes[rows], scores[rows, label], rules.iou, clockwise)]
        parts.append(Boxes(boxes[rows], scores[rows, label], torch.full((len(rows),), label)))
    whole = joined(parts, boxes.size(1))
    order = whole.scores.argsort(descending=True, stable=True)[: rules.post]
    if len(whole.scores) > rules.post:
        whole = Boxes(whole.boxes[order], whole.scores[order], whole.labels[order])
    return whole
