# SPDX-License-Identifier: Apache-2.0
"""Decoding and thinning out of detections, written candidate by candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import portable_math
from .arithmetic import to_working
from .boxes import rotated_nms
from .definition import define_op

__all__ = ["anchor_decode_nms", "box_decode", "center_decode_nms"]

f32 = np.float32


@define_op
def box_decode(
    deltas: Tensor, anchors: Tensor, *, direction, dir_offset, dir_limit, dir_flip
) -> Tensor:
    """[.., 7 or 9] float32."""
    values = to_working(deltas)
    base = np.broadcast_to(anchors.numpy(), (*deltas.shape[:-1], 7))
    bins = None if direction is None else to_working(direction)
    boxes = _decode_anchors(values, base, bins, dir_offset, dir_limit, dir_flip)
    boxes[np.isnan(boxes)] = portable_math.NAN
    return torch.from_numpy(boxes)


def _decode_anchors(
    delta: np.ndarray,
    anchor: np.ndarray,
    direction: np.ndarray | None,
    offset: float,
    limit: float,
    flip: bool,
) -> np.ndarray:
    """One rounding an operation, in the order of the upstream code."""
    diagonal = np.sqrt(anchor[..., 3] * anchor[..., 3] + anchor[..., 4] * anchor[..., 4])
    columns = [
        delta[..., 0] * diagonal + anchor[..., 0],
        delta[..., 1] * diagonal + anchor[..., 1],
        delta[..., 2] * anchor[..., 5] + anchor[..., 2],
        *(portable_math.exp(delta[..., k]) * anchor[..., k] for k in (3, 4, 5)),
    ]
    if delta.shape[-1] % 2 == 0:  # cos, sin
        sine, cosine = portable_math.sin(anchor[..., 6]), portable_math.cos(anchor[..., 6])
        yaw = portable_math.atan2(delta[..., 7] + sine, delta[..., 6] + cosine)
    else:
        yaw = delta[..., 6] + anchor[..., 6]
    if direction is not None:
        count = direction.shape[-1]
        lowest = np.where(np.isnan(direction), -np.inf, direction)
        chosen = lowest.argmax(-1)
        # -inf is greater than NaN, which never wins
        only_nan = np.isnan(np.take_along_axis(direction, chosen[..., None], -1))[..., 0]
        chosen = np.where(only_nan, (~np.isnan(direction)).argmax(-1), chosen)
        chosen = (count - 1 - chosen if flip else chosen).astype(f32)
        period = f32(2 * np.pi / count)
        turned = yaw - f32(offset)
        turned = turned - np.floor(turned / period + f32(limit)) * period
        yaw = turned + f32(offset) + period * chosen
    columns.append(yaw)
    if delta.shape[-1] >= 9:
        columns += [delta[..., -2], delta[..., -1]]
    return np.stack(columns, -1).astype(f32)


@dataclass
class _Head:
    """Scores of one sample, and the boxes behind them."""

    logits: np.ndarray  # [boxes, classes]
    decode: Callable[[int], np.ndarray]  # of box i


def _rows(score_map: Tensor, per_cell: int) -> np.ndarray:
    """[channels of a box] of every box, (y, x, a) in row-major order, of one sample's map."""
    channels, height, width = score_map.shape
    each = channels // per_cell
    split = to_working(score_map).reshape(per_cell, each, height, width)
    return split.transpose(2, 3, 0, 1).reshape(height * width * per_cell, each)


@define_op
def anchor_decode_nms(
    cls, box, direction, anchors, *, dir_offset, dir_limit, dir_flip, **options
) -> tuple[Tensor, ...]:
    """boxes [B, K, 7 or 9], scores [B, K], labels [B, K], count [B], overflow [B]."""

    def heads(b: int) -> list[_Head]:
        out = []
        for h, anchor in enumerate(anchors):
            per_cell = anchor.size(2)
            boxes = _decode_anchors(
                _rows(box[h][b], per_cell),
                anchor.numpy().reshape(-1, 7),
                _rows(direction[h][b], per_cell) if direction else None,
                dir_offset,
                dir_limit,
                dir_flip,
            )
            out.append(_Head(_rows(cls[h][b], per_cell), boxes.__getitem__))
        return out

    return _detect(
        [heads(b) for b in range(cls[0].size(0))],
        [m.size(1) // a.size(2) for m, a in zip(cls, anchors, strict=True)],
        9 if box[0].size(1) // anchors[0].size(2) >= 9 else 7,
        _Options(**options, best_class=options["group"] != "class"),
    )


@define_op
def center_decode_nms(
    heatmap,
    offset,
    z,
    dim,
    rot,
    vel,
    voxel_size,
    point_cloud_range,
    stride,
    *,
    rot_order,
    **options,
) -> tuple[Tensor, ...]:
    """boxes [B, K, 7 or 9], scores [B, K], labels [B, K], count [B], overflow [B]."""

    def heads(b: int) -> list[_Head]:
        out = []
        for h, heat in enumerate(heatmap):
            height, width = heat.shape[2:]
            y, x = np.divmod(np.arange(height * width), max(width, 1))
            o, angle = _rows(offset[h][b], 1), _rows(rot[h][b], 1)
            sine, cosine = (angle if rot_order == "sin_cos" else angle[:, ::-1]).T
            center = [
                (cell.astype(f32) + o[:, k]) * f32(stride) * f32(voxel_size[k])
                + f32(point_cloud_range[k])
                for k, cell in enumerate((x, y))
            ]
            columns = [
                *center,
                _rows(z[h][b], 1)[:, 0],
                *portable_math.exp(_rows(dim[h][b], 1)).T,
                portable_math.atan2(sine, cosine),
                *(_rows(vel[h][b], 1).T if vel else ()),
            ]
            boxes = np.stack(columns, -1).astype(f32)
            out.append(_Head(_rows(heat[b], 1), boxes.__getitem__))
        return out

    samples = [heads(b) for b in range(heatmap[0].size(0))]
    counts = [m.size(1) for m in heatmap]
    return _detect(samples, counts, 9 if vel else 7, _Options(**options))


@dataclass
class _Options:
    score_threshold: float
    nms_threshold: list[float]
    pre: int
    post: int
    group: str
    global_post: bool
    closed: bool
    nms: str
    class_labels: Sequence[int] | None
    best_class: bool
    shared_pre: bool = False
    post_range: Sequence[float] | None = None

    def passes(self, score: np.ndarray) -> np.ndarray:
        least = f32(self.score_threshold)
        return score >= least if self.closed else score > least


@dataclass
class _Candidate:
    score: np.float32
    place: tuple[int, int, int]  # head, class (0 where boxes have their best one), box
    head: int
    cls: int
    box: int

    @property
    def order(self) -> tuple:
        return (-self.score, self.place)


def _detect(
    samples: list[list[_Head]], classes: list[int], width: int, options: _Options
) -> tuple[Tensor, ...]:
    """classes: how many each head has."""
    first = [sum(classes[:h]) for h in range(len(classes))]
    names = options.class_labels or range(sum(classes))
    groups = {"none": 1, "task": len(first), "class": len(names)}[options.group]
    rows = options.post if options.global_post else options.post * groups
    boxes = torch.zeros(len(samples), rows, width)
    scores = torch.zeros(len(samples), rows)
    labels = torch.full((len(samples), rows), -1, dtype=torch.int32)
    count = torch.zeros(len(samples), dtype=torch.int32)
    overflow = torch.zeros(len(samples), dtype=torch.int32)
    for b, heads in enumerate(samples):
        segments, overflow[b] = _selected(heads, first, groups, options)
        kept = [
            c
            for g, segment in enumerate(segments)
            for c in _thinned(segment, heads, options.nms_threshold[g % len(options.nms_threshold)],
                              options)
        ]  # fmt: skip
        if options.global_post:
            kept = sorted(kept, key=lambda c: c.order)[: options.post]
        count[b] = len(kept)
        for row, c in enumerate(kept):
            boxes[b, row] = torch.from_numpy(heads[c.head].decode(c.box))
            scores[b, row] = float(c.score)
            labels[b, row] = names[first[c.head] + c.cls]
    return boxes, scores, labels, count, overflow


def _selected(
    heads: list[_Head], first: list[int], groups: int, options: _Options
) -> tuple[list[list[_Candidate]], int]:
    """The `pre` best candidates of every group in order, and how many there were beyond them.
    first: the class of each head's first one."""
    lists: list[list[_Candidate]] = [[] for _ in range(1 if options.shared_pre else groups)]
    for h, head in enumerate(heads):
        for c in _candidates(head, h, options.best_class or options.shared_pre, options):
            of = {"none": 0, "task": h, "class": first[h] + c.cls}[options.group]
            lists[0 if options.shared_pre else of].append(c)
    over = sum(max(len(f) - options.pre, 0) for f in lists)
    chosen = [sorted(f, key=lambda c: c.order)[: options.pre] for f in lists]
    if not options.shared_pre:
        return chosen, over
    segments: list[list[_Candidate]] = [[] for _ in range(groups)]
    for best in chosen[0]:
        head = heads[best.head]
        logits = head.logits[best.box]
        for cls, score in enumerate(portable_math.sigmoid(logits)):
            if np.isfinite(logits[cls]) and options.passes(score):
                place = (best.head, cls, best.box)
                pair = _Candidate(score, place, best.head, cls, best.box)
                segments[first[best.head] + cls].append(pair)
    return [sorted(s, key=lambda c: c.order) for s in segments], over


def _candidates(head: _Head, h: int, best_class: bool, options: _Options) -> list[_Candidate]:
    finite = np.isfinite(head.logits)
    if best_class:
        logits = np.where(finite, head.logits, -np.inf)
        cls = logits.argmax(-1) if logits.size else np.zeros(len(logits), int)
        chosen = np.zeros_like(finite)
        chosen[np.arange(len(cls)), cls] = True
        finite &= chosen
    score = portable_math.sigmoid(head.logits)
    box, cls = np.nonzero(finite & options.passes(score))
    return [
        _Candidate(score[i, c], (h, 0 if best_class else int(c), int(i)), h, int(c), int(i))
        for i, c in zip(box, cls, strict=True)
    ]


def _thinned(
    candidates: list[_Candidate], heads: list[_Head], threshold: float, options: _Options
) -> list[_Candidate]:
    """Greedy, best first; boxes that are not finite or out of range are not there."""
    there, boxes = [], []
    for c in candidates:
        box = heads[c.head].decode(c.box)
        inside = np.isfinite(box).all()
        if options.post_range:
            low, high = np.array(options.post_range, f32).reshape(2, 3)
            inside = inside and (low <= box[:3]).all() and (box[:3] <= high).all()
        if inside:
            there.append(c)
            boxes.append(box)
    if not there:
        return []
    index, count = rotated_nms(
        torch.from_numpy(np.stack(boxes))[None],
        -torch.arange(len(there))[None].float(),
        float(threshold),
        options.post,
        mode=options.nms,
    )
    return [there[i] for i in index[0, : int(count[0])].tolist()]
