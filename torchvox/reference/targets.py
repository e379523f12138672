# SPDX-License-Identifier: Apache-2.0
"""Targets and losses of detection heads, written box by box and anchor by anchor."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from . import portable_math
from .arithmetic import to_working
from .definition import define_op
from .fma import fma

__all__ = ["anchor_loss", "anchor_targets", "center_targets"]

f32, f64 = np.float32, np.float64
BACKGROUND, IGNORED = -1, -2
TREE = 256  # values that are summed by halves


def _boxes(
    boxes: Tensor, labels: Tensor, weight: Tensor | None, num_boxes: Tensor | None, b: int
) -> list[tuple[int, np.ndarray, int, bool]]:
    """(row, values, label, whether it is ignored) of each box of a sample."""
    count = boxes.size(1) if num_boxes is None else int(num_boxes[b])
    rows = range(max(0, min(count, boxes.size(1))))
    return [
        (g, boxes[b, g].numpy(), label, weight is not None and not float(weight[b, g]) > 0)
        for g in rows
        if 0 <= (label := int(labels[b, g])) < 2**31
    ]


@define_op
def anchor_targets(
    boxes, labels, weight, num_boxes, anchors, class_of_anchor, matched, unmatched, *, mode, min_pos
) -> tuple[Tensor, Tensor]:
    """(assigned [B, H, W, A] int32, num_pos [B] int32)."""
    height, width, per_cell = anchors.shape[:3]
    base = _axis_boxes(anchors.numpy().reshape(-1, 7), mode)
    kind = np.tile(np.array(class_of_anchor, np.int64), height * width)
    positive, negative, least = (
        np.tile(np.array(values, f64).astype(f32), height * width)
        for values in (matched, unmatched, unmatched if min_pos is None else min_pos)
    )
    assigned = np.full((boxes.size(0), len(base)), BACKGROUND, np.int32)
    for b in range(len(assigned)):
        rows = _boxes(boxes, labels, weight, num_boxes, b)
        overlap = np.zeros((len(base), len(rows)), f32)
        for j, (_, row, label, _) in enumerate(rows):
            meets = (kind == label) | (kind == -1)
            overlap[meets, j] = _axis_iou(base[meets], _axis_boxes(row[None], mode))
        most = overlap.max(0, initial=0)
        for i in range(len(base)):
            if not (overlap[i] > 0).any():
                continue
            own = int(overlap[i].argmax())  # the first of equals
            best = overlap[i, own]
            forces = [
                j for j in range(len(rows))
                if overlap[i, j] > 0 and overlap[i, j] == most[j] and not rows[j][3]
            ]  # fmt: skip
            if mode == "mmdet":
                forces = [j for j in forces if most[j] >= least[i]]
            low, high = best < negative[i], best >= positive[i]
            if rows[own][3]:
                assigned[b, i] = IGNORED
            elif forces:
                assigned[b, i] = rows[own if mode == "pcdet" else forces[-1]][0]
            elif high and not (low and mode == "pcdet"):
                assigned[b, i] = rows[own][0]
            elif not low:
                assigned[b, i] = IGNORED
    num_pos = (assigned >= 0).sum(1).astype(np.int32)
    shape = (boxes.size(0), height, width, per_cell)
    return torch.from_numpy(assigned.reshape(shape)), torch.from_numpy(num_pos)


def _axis_boxes(rows: np.ndarray, mode: str) -> np.ndarray:
    """x0, y0, x1, y1, and 1 where there is an area, of boxes turned to the nearest axis."""
    x, y, length, width, yaw = (rows[:, c] for c in (0, 1, 3, 4, 6))
    folded = np.abs(yaw - np.floor(yaw / f32(np.pi) + f32(0.5)) * f32(np.pi))
    turned = folded >= f32(np.pi / 4) if mode == "pcdet" else folded > f32(np.pi / 4)
    half_x = np.where(turned, width, length) * f32(0.5)
    half_y = np.where(turned, length, width) * f32(0.5)
    sides = [x - half_x, y - half_y, x + half_x, y + half_y]
    area = (sides[2] - sides[0]) * (sides[3] - sides[1])
    exists = (length > 0) & (width > 0) & np.isfinite(area) & np.isfinite(yaw)
    return np.stack([*sides, exists.astype(f32)], 1)


def _axis_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dx = np.minimum(a[:, 2], b[:, 2]) - np.maximum(a[:, 0], b[:, 0])
    dy = np.minimum(a[:, 3], b[:, 3]) - np.maximum(a[:, 1], b[:, 1])
    area = [(v[:, 2] - v[:, 0]) * (v[:, 3] - v[:, 1]) for v in (a, b)]
    iou = dx * dy / np.maximum(area[0] + area[1] - dx * dy, f32(1e-6))
    return np.where((dx > 0) & (dy > 0) & (a[:, 4] > 0) & (b[:, 4] > 0), iou, f32(0))


@define_op
def center_targets(
    boxes: Tensor,
    labels,
    weight,
    num_boxes,
    point_cloud_range,
    pillar_size,
    cells,
    size,
    task_of_class,
    *,
    max_objects,
    overlap,
    min_radius,
) -> tuple[Tensor, ...]:
    """(heatmap [B, classes, H, W], cell and box [B, tasks, M], count [B, tasks])."""
    batches, tasks = boxes.size(0), max(task_of_class) + 1
    object_map, ignored_map = (
        np.zeros((batches, len(task_of_class), *size), f32) for _ in range(2)
    )
    cell = np.full((batches, tasks, max_objects), -1, np.int32)
    box = cell.copy()
    count = np.zeros((batches, tasks), np.int32)
    for b in range(batches):
        for g, row, label, ignored in _boxes(boxes, labels, weight, num_boxes, b):
            at = _center(row, point_cloud_range, pillar_size, cells, size)
            if at is None or label >= len(task_of_class):
                continue
            task = task_of_class[label]
            if not ignored:
                if count[b, task] == max_objects:
                    continue
                cell[b, task, count[b, task]] = at[1] * size[1] + at[0]
                box[b, task, count[b, task]] = g
                count[b, task] += 1
            x, y, length, width = at
            radius = max(min_radius, min(int(_radius(length, width, overlap)), 2**30))
            _draw((ignored_map if ignored else object_map)[b, label], x, y, radius)
    heatmap = np.where(ignored_map > object_map, f32(-1), object_map)
    return tuple(torch.from_numpy(v) for v in (heatmap, cell, box, count))


def _center(row, point_cloud_range, pillar_size, cells, size) -> tuple | None:
    """x, y, l and w in cells; None of a box without a place."""
    place, extents = [], []
    for axis in (0, 1):
        low, pillar = f32(point_cloud_range[axis]), f32(pillar_size[axis])
        at = (row[axis] - low) / pillar / f32(cells)
        if not (row[axis] >= low and at < f32(size[1 - axis])):
            return None
        place.append(int(at))
    for axis in (0, 1):
        extent = row[3 + axis] / f32(pillar_size[axis]) / f32(cells)
        if not (row[3 + axis] > 0 and np.isfinite(extent)):
            return None
        extents.append(float(extent))
    return *place, *extents


def _radius(h: float, w: float, o: float) -> float:
    """CornerNet's three cases, with the factor 1/2 that every implementation keeps."""

    def root(b: float, square: float) -> float:
        return (b + math.sqrt(max(square, 0.0))) / 2

    b1, c1 = h + w, h * w * (1 - o) / (1 + o)
    b2, c2 = 2 * (h + w), (1 - o) * h * w
    b3, c3 = -2 * o * (h + w), (o - 1) * h * w
    return min(
        root(b1, b1 * b1 - 4 * c1), root(b2, b2 * b2 - 16 * c2), root(b3, b3 * b3 - 16 * o * c3)
    )


def _draw(plane: np.ndarray, x: int, y: int, radius: int) -> None:
    sigma = (2 * float(radius) + 1) / 6
    for row in range(max(0, y - radius), min(plane.shape[0], y + radius + 1)):
        for column in range(max(0, x - radius), min(plane.shape[1], x + radius + 1)):
            d2 = float(column - x) ** 2 + float(row - y) ** 2
            value = _one(portable_math.exp, f32(-d2 / (2 * sigma * sigma)))
            plane[row, column] = max(plane[row, column], value)


@define_op
def anchor_loss(
    cls: Tensor,
    box: Tensor,
    direction,
    anchors: Tensor,
    boxes: Tensor,
    labels: Tensor,
    assigned: Tensor,
    *,
    dir_offset: float,
    dir_limit: float,
    code_weights,
    beta: float,
    negative_weight: float,
    mode: str,
) -> Tensor:
    """[B, 3] sums of classes, boxes and directions."""
    per_cell = anchors.size(2)
    logits, values = _per_anchor(cls, per_cell), _per_anchor(box, per_cell)
    bins = None if direction is None else _per_anchor(direction, per_cell)
    real = logits.dtype.type
    base = anchors.numpy().reshape(-1, 7)
    chosen = assigned.numpy().reshape(len(cls), len(base))
    weights = [1.0] * values.shape[-1] if code_weights is None else code_weights
    sums = np.zeros((cls.size(0), 3), real)
    for b in range(len(sums)):
        terms = np.zeros((3, len(base)), real)
        for i, g in enumerate(chosen[b]):
            g = int(g) if g < boxes.size(1) else IGNORED
            if g < BACKGROUND:
                continue
            label = int(labels[b, g]) if g >= 0 else -1
            weight = real(1 if g >= 0 else negative_weight)
            for c, logit in enumerate(logits[b, i]):
                terms[0, i] += _focal(logit, c == label, weight)
            if g < 0:
                continue
            sine = bins is not None and values.shape[-1] % 2 == 1
            code, bin_ = _code(
                boxes[b, g].numpy(), base[i], values.shape[-1], dir_offset, dir_limit, real
            )
            for k, (value, target) in enumerate(zip(values[b, i], code, strict=True)):
                unknown = k >= 7 + (len(code) % 2 == 0) and np.isnan(target)
                if not unknown:
                    terms[1, i] += _smooth_l1(
                        value, target, sine and k == 6, real(weights[k]), real(beta), mode
                    )
            if bins is not None:
                terms[2, i] = _logistic(bins[b, i, 1 - bin_] - bins[b, i, bin_])[1]
        sums[b] = [_tree_sum(term.astype(f64)) for term in terms]
    return torch.from_numpy(sums)


def _per_anchor(values: Tensor, per_cell: int) -> np.ndarray:
    """[B, anchors, n]."""
    if values.dim() == 4:
        values = values.unflatten(1, (per_cell, values.size(1) // per_cell)).permute(0, 3, 4, 1, 2)
    return to_working(values).reshape(values.size(0), math.prod(values.shape[1:4]), values.size(4))


def _one(function, x):
    """A function of arrays, of a number."""
    return function(np.array([x]))[0]


def _log_one_plus(e):
    """log(1 + e) = e + e^2 times a polynomial of e, up to e = 1."""
    p = np.array(-3.32255266e-3, f32)
    for factor in (
        2.02217847e-2, -5.76944873e-2, 1.06833652e-1, -1.53569132e-1,
        1.96958750e-1, -2.49586686e-1, 3.33305180e-1, -4.99999344e-1,
    ):  # fmt: skip
        p = fma(p, e, f32(factor))
    return fma(p, e * e, e)[()]


def _logistic(x) -> tuple:
    """1 / (1 + exp(-x)) and log(1 + exp(x))."""
    real = type(x)
    e = _one(portable_math.exp, -abs(x))
    whole = real(1) + e
    most = real(1) / whole
    if real is f32:
        log_whole = _log_one_plus(e)
    else:
        log_whole = _one(portable_math.log, whole) + (e - (whole - real(1))) / whole
    return e * most if x < 0 else most, (x if x > 0 else real(0)) + log_whole


def _focal(logit, hit: bool, weight):
    real = type(logit)
    value, softplus = _logistic(-logit if hit else logit)
    return real(0.25 if hit else 0.75) * weight * (value * value) * softplus


def _smooth_l1(value, target, sine: bool, weight, beta, mode: str):
    real = type(value)
    difference = value - target
    if sine:
        (sin_p, cos_p), (sin_t, cos_t) = (
            portable_math.sin_cos(value),
            portable_math.sin_cos(target),
        )
        difference = sin_p * cos_t - cos_p * sin_t
    size = abs(difference * weight if mode == "pcdet" else difference)
    loss = real(0.5) * size * size / beta if size < beta else size - real(0.5) * beta
    return loss if mode == "pcdet" else loss * weight


def _code(box, anchor, codes: int, offset: float, limit: float, real) -> tuple[list, int]:
    """The residuals of a box, and its direction bin."""
    size, base = (np.fmax(row[3:6], f32(1e-5)).astype(real) for row in (box, anchor))
    near, far = box[:7].astype(real), anchor.astype(real)
    apart = near - far
    diagonal = np.sqrt(base[0] * base[0] + base[1] * base[1])
    code = [apart[0] / diagonal, apart[1] / diagonal, apart[2] / base[2]]
    code += [_one(portable_math.log, size[k] / base[k]) for k in range(3)]
    if codes % 2 == 0:
        (sin_b, cos_b), (sin_a, cos_a) = (portable_math.sin_cos(v[6]) for v in (near, far))
        code += [cos_b - cos_a, sin_b - sin_a]
    else:
        code.append(apart[6])
    if codes >= 9:
        code += list(box[7:9].astype(real))
    yaw = apart[6] + far[6] - real(offset)
    full, half = real(2 * np.pi), real(np.pi)
    yaw = yaw - np.floor(yaw / full + real(limit)) * full
    return code, int(yaw / half >= 1)


def _tree_sum(values: np.ndarray) -> float:
    """256 neighbors at a time by halves, then their sums alike."""
    while len(values) > 1:
        padded = np.zeros(-(-len(values) // TREE) * TREE)
        padded[: len(values)] = values
        values = padded.reshape(-1, TREE)
        while values.shape[1] > 1:
            half = values.shape[1] // 2
            values = values[:, :half] + values[:, half:]
        values = values[:, 0]
    return float(values[0]) if len(values) else 0.0
