# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes, written as their definition: every pair is measured, boxes are suppressed one by
one. The rule of the overlap is that of docs/boxes.md, vectorized over pairs.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .definition import define_op
from .portable_math import sin_cos

__all__ = ["box_query", "place_boxes", "points_in_boxes", "rotated_iou", "rotated_nms"]

COLUMNS = 7
LEAST = 1e-30  # of a size, an area or a volume, in meters


@define_op
def rotated_iou(a: Tensor, b: Tensor, *, mode: str, paired: bool, metric: str) -> Tensor:
    """[.., N, M], or [.., N] of pairs."""
    first, second = a.detach().numpy(), b.detach().numpy()
    if not paired:
        first, second = first[..., :, None, :], second[..., None, :, :]
    overlap = overlap_of_pairs(first, second, mode == "3d", metric)
    return torch.from_numpy(np.ascontiguousarray(overlap))


@define_op
def rotated_nms(
    boxes: Tensor, scores: Tensor, threshold: float, max_out: int, *, group, lengths, mode: str
) -> tuple[Tensor, Tensor]:
    """(index [B, K] int32, count [B] int32)."""
    index = np.full((boxes.size(0), max_out), -1, np.int32)
    count = np.zeros(boxes.size(0), np.int32)
    for b in range(boxes.size(0)):
        rows, score = boxes[b].numpy()[:, :COLUMNS], scores[b].numpy()
        usable = np.isfinite(rows).all(1) & np.isfinite(score)
        if lengths is not None:
            usable &= np.arange(len(rows)) < int(lengths[b])
        candidates = np.flatnonzero(usable)
        candidates = candidates[np.argsort(-score[candidates], kind="stable")]
        groups = np.zeros(len(rows), np.int64) if group is None else group[b].numpy()
        kept: list[int] = []
        for i in candidates.tolist():
            rivals = [k for k in kept if groups[k] == groups[i]]
            if len(kept) < max_out and not _suppressed(rows, i, rivals, threshold, mode):
                kept.append(i)
        count[b] = len(kept)
        index[b, : len(kept)] = kept
    return torch.from_numpy(index), torch.from_numpy(count)


@define_op
def points_in_boxes(points: Tensor, boxes: Tensor, *, mode, margin, lengths, box_lengths) -> Tensor:
    """index [B, N] int32, mask [B, G, N] bool or count [B, G] int32."""
    p, g = points.numpy()[:, None, :, :3], boxes.numpy()[:, :, None, :]
    t = p.dtype.type
    x, y, z, length, width, height = (g[..., c] for c in range(6))
    sine, cosine = sin_cos(g[:, :, 0, 6])
    sine, cosine = sine[..., None], cosine[..., None]
    dx, dy = p[..., 0] - x, p[..., 1] - y
    along, across = dx * cosine + dy * sine, dy * cosine - dx * sine
    mask = np.abs(along) < length * t(0.5) + t(margin)
    mask &= np.abs(across) < width * t(0.5) + t(margin)
    mask &= np.abs(p[..., 2] - z) <= height * t(0.5)
    mask &= (length > 0) & (width > 0) & (height > 0) & np.isfinite(g[..., :COLUMNS]).all(-1)
    if lengths is not None:
        exists = np.arange(mask.shape[2]) < lengths.numpy()[:, None]
        mask &= exists[:, None, :]
    if box_lengths is not None:
        exists = np.arange(mask.shape[1]) < box_lengths.numpy()[:, None]
        mask &= exists[:, :, None]
    if mode == "mask":
        return torch.from_numpy(mask)
    if mode == "count":
        return torch.from_numpy(mask.sum(2, dtype=np.int32))
    index = np.full((mask.shape[0], mask.shape[2]), -1, np.int32)
    for box in reversed(range(mask.shape[1])):
        index[mask[:, box]] = box
    return torch.from_numpy(index)


@define_op
def box_query(
    points: Tensor, boxes: Tensor, k: int, *, grid: Sequence[int] | None, **options
) -> tuple[Tensor, Tensor]:
    """(index [B, G, k] int32, count [B, G] int32); [B, G, cells, k] and [B, G, cells] of a grid."""
    mask = points_in_boxes(points, boxes, mode="mask", **options).numpy()
    nx, ny, nz = grid or (1, 1, 1)
    cells = nx * ny * nz
    index = np.full((*mask.shape[:2], cells, k), -1, np.int32)
    count = np.zeros((*mask.shape[:2], cells), np.int32)
    for b, g, i in np.argwhere(mask):
        box, point = boxes[b, g].numpy(), points[b, i].numpy()
        x, y, z = _cell_in_box(box, point, (nx, ny, nz))
        cell = (x * ny + y) * nz + z
        if count[b, g, cell] < k:
            index[b, g, cell, count[b, g, cell]] = i
        count[b, g, cell] += 1
    if grid is None:
        index, count = index[:, :, 0], count[:, :, 0]
    return torch.from_numpy(index), torch.from_numpy(count)


@define_op
def place_boxes(
    boxes: Tensor, candidates: Tensor, group: Tensor, lengths, mode, *, replaces
) -> Tensor:
    """choice [B, K] int32."""
    choice = np.full(group.shape, -1, np.int32)
    for b in range(len(choice)):
        tries, groups = candidates[b, ..., :COLUMNS].numpy(), group[b].tolist()
        rows = boxes.size(1) if lengths is None else max(0, min(int(lengths[b]), boxes.size(1)))
        scene = dict(enumerate(boxes[b, :rows, :COLUMNS].numpy()))
        leaves = [-1] * len(groups)
        if replaces is not None:
            leaves = [i if i in scene else -1 for i in replaces[b].tolist()]
        for number in sorted({g for g in groups if g >= 0}):
            members = [k for k, g in enumerate(groups) if g == number]
            taken = {}
            for k in members if tries.shape[1] else []:
                around = [box for i, box in scene.items() if i != leaves[k]]
                if len(members) == 1:
                    free = [t for t, box in enumerate(tries[k]) if not _meets(box, around)]
                    taken = {k: free[0]} if free else {}
                    continue
                others = [j for j in members if j != k]
                if mode == "greedy":  # those before that have not gone, and all that are to come
                    others = [j for j in others if j in taken or j > k]
                if not _meets(tries[k, 0], around + [tries[j, 0] for j in others]):
                    taken[k] = 0
            for k, t in taken.items():
                choice[b, k] = t
                scene.pop(leaves[k], None)
                scene[rows + k] = tries[k, t]
    return torch.from_numpy(choice)


def overlap_of_pairs(
    a: np.ndarray, b: np.ndarray, volume: bool = False, metric: str = "iou"
) -> np.ndarray:
    """Of boxes [.., >= 7] that broadcast against each other."""
    t = a.dtype.type
    first, second = np.broadcast_arrays(a[..., :COLUMNS], b[..., :COLUMNS])
    meets = _exists(first, volume) & _exists(second, volume) & _circles_meet(first, second)
    order = _order(first, second, volume)
    swap = (order > 0)[..., None]
    window, box = np.where(swap, second, first), np.where(swap, first, second)
    shared = np.where(_order(first, second, False) == 0, _area(window), _overlap(window, box))
    if volume:
        shared = shared * _shared_height(window, box)
    size = _size(first, volume)
    if metric == "overlap":
        value, most = shared, size
    else:
        value = shared / (size if metric == "iof" else size + _size(second, volume) - shared)
        value = np.where(value < 1, value, np.where(value >= 1, t(1), t(0)))
        most = t(1)
    value = np.where(order == 0, most, np.where(shared > 0, value, t(0)))
    return np.where(meets, value, t(0)).astype(t)


def _half(box: np.ndarray, column: int) -> np.ndarray:
    return box[..., column] * box.dtype.type(0.5)


def _area(box: np.ndarray) -> np.ndarray:
    return _half(box, 3) * _half(box, 4) * box.dtype.type(4)


def _size(box: np.ndarray, volume: bool) -> np.ndarray:
    return _area(box) * (_half(box, 5) * box.dtype.type(2)) if volume else _area(box)


def _exists(box: np.ndarray, volume: bool) -> np.ndarray:
    t = box.dtype.type
    positions, sizes = [0, 1, 6], [3, 4]
    if volume:
        positions, sizes = [0, 1, 2, 6], [3, 4, 5]
    exists = np.isfinite(box[..., positions]).all(-1) & (box[..., sizes] >= t(LEAST)).all(-1)
    for size in (_area(box), _size(box, volume)):
        exists &= (size >= t(LEAST)) & np.isfinite(size * t(2))
    return exists


def _circles_meet(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dx, dy = b[..., 0] - a[..., 0], b[..., 1] - a[..., 1]
    reach = sum(np.sqrt(_half(v, 3) * _half(v, 3) + _half(v, 4) * _half(v, 4)) for v in (a, b))
    return dx * dx + dy * dy <= reach * reach


def _order(a: np.ndarray, b: np.ndarray, volume: bool) -> np.ndarray:
    """-1, 0, 1 by area, then l, w, x, y, yaw, and h, z of volumes."""
    columns = [(_half(a, c), _half(b, c)) for c in (3, 4)]
    columns += [(a[..., c], b[..., c]) for c in (0, 1, 6)]
    if volume:
        columns += [(_half(a, 5), _half(b, 5)), (a[..., 2], b[..., 2])]
    order = np.sign(_area(a) - _area(b)).astype(int)
    for left, right in columns:
        order = np.where(
            order == 0, np.where(left < right, -1, np.where(left > right, 1, 0)), order
        )
    return order


def _shared_height(window: np.ndarray, box: np.ndarray) -> np.ndarray:
    t, dz = window.dtype.type, box[..., 2] - window[..., 2]
    top = np.minimum(_half(window, 5), dz + _half(box, 5))
    bottom = np.maximum(-_half(window, 5), dz - _half(box, 5))
    return np.clip(top - bottom, t(0), _half(window, 5) * t(2))


def _overlap(window: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Shared area: the box's edges, in the frame of the window, integrated within the window."""
    t = window.dtype.type
    one, zero, tiny = t(1), t(0), t(1e-30)
    (sin_w, cos_w), (sin_b, cos_b) = sin_cos(window[..., 6]), sin_cos(box[..., 6])
    dx, dy = box[..., 0] - window[..., 0], box[..., 1] - window[..., 1]
    x, y = dx * cos_w + dy * sin_w, dy * cos_w - dx * sin_w
    parallel = box[..., 6] == window[..., 6]
    cosine = np.where(parallel, one, cos_b * cos_w + sin_b * sin_w)
    sine = np.where(parallel, zero, sin_b * cos_w - cos_b * sin_w)
    half_l, half_w = _half(window, 3), _half(window, 4)
    box_l, box_w = _half(box, 3), _half(box, 4)
    ux, uy, vx, vy = box_l * cosine, box_l * sine, -box_w * sine, box_w * cosine

    c, s = np.abs(cosine), np.abs(sine)
    separated = np.abs(x) >= half_l + (np.abs(ux) + np.abs(vx))
    separated |= np.abs(y) >= half_w + (np.abs(uy) + np.abs(vy))
    separated |= np.abs(x * cosine + y * sine) >= box_l + (half_l * c + half_w * s)
    separated |= np.abs(y * cosine - x * sine) >= box_w + (half_l * s + half_w * c)

    def inverse(v: np.ndarray) -> np.ndarray:
        return np.where(np.abs(v) > tiny, one / v, zero).astype(t)

    def integral(p, q, rise, inverse_run):
        """Of clamp(y, -half_w, half_w) dx from corner p to corner q, within |x| <= half_l."""
        (px, py), (qx, qy) = p, q
        ax, bx = np.clip(px, -half_l, half_l), np.clip(qx, -half_l, half_l)
        ay = py + np.clip((ax - px) * inverse_run, zero, one) * rise
        by = qy + np.clip((bx - qx) * inverse_run, -one, zero) * rise
        ac, bc = np.clip(ay, -half_w, half_w), np.clip(by, -half_w, half_w)
        total = (ac - ay) * ac + (bc - ac) * (t(0.5) * (ac + bc)) + (by - bc) * bc
        return (bx - ax) * np.where(ac == bc, ac, total / (by - ay))

    rear_right = x - ux - vx, y - uy - vy
    front_right = x + ux - vx, y + uy - vy
    front_left = x + ux + vx, y + uy + vy
    rear_left = x - ux + vx, y - uy + vy
    along, across = inverse(t(2) * ux), inverse(t(2) * vx)
    lengths = integral(rear_left, front_left, t(2) * uy, along) - integral(
        rear_right, front_right, t(2) * uy, along
    )
    widths = integral(rear_right, rear_left, t(2) * vy, across) - integral(
        front_right, front_left, t(2) * vy, across
    )
    area = np.minimum(lengths + widths, _area(window))
    return np.where(separated | ~(area > 0), zero, area).astype(t)


def _cell_in_box(box: np.ndarray, point: np.ndarray, grid: Sequence[int]) -> list[int]:
    sine, cosine = sin_cos(box[6])
    dx, dy, dz = point[:3] - box[:3]
    local = np.array([dx * cosine + dy * sine, dy * cosine - dx * sine, dz])
    sizes, cells = box[3:6], np.array(grid)
    steps = (local + sizes * box.dtype.type(0.5)) / (sizes / cells.astype(box.dtype))
    return np.clip(np.floor(steps), 0, cells - 1).astype(int).tolist()


def _meets(box: np.ndarray, others: list[np.ndarray]) -> bool:
    return bool(others) and bool((overlap_of_pairs(box[None], np.stack(others)) > 0).any())


def _suppressed(rows: np.ndarray, i: int, rivals: list[int], threshold: float, mode: str) -> bool:
    if not rivals:
        return False
    if mode == "circle":
        dx, dy = rows[i, 0] - rows[rivals, 0], rows[i, 1] - rows[rivals, 1]
        return bool((dx * dx + dy * dy <= np.float32(threshold)).any())
    return bool((overlap_of_pairs(rows[rivals], rows[i][None]) > np.float32(threshold)).any())
