# SPDX-License-Identifier: Apache-2.0
"""Slow definitions of what the peers compute."""

import numpy as np
import pytest
import torch


def installed(name: str):
    """The peer itself; skips the test where it is not installed, or cannot be imported."""
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


def numpy(tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def distances(points, query) -> np.ndarray:
    """[M, N] squared."""
    return ((numpy(query)[:, None] - numpy(points)[None]) ** 2).sum(-1)


def in_ball(points, query, radius, least=0.0) -> list[list[int]]:
    """The points of each ball by index: nearer than the radius, and not nearer than `least` unless
    at the center."""
    rows = distances(points, query)
    return [
        [i for i, d in enumerate(row) if d < radius**2 and (d == 0 or d >= least**2)]
        for row in rows
    ]


def nearest(points, query, k) -> list[list[tuple[float, int]]]:
    """(squared distance, index), nearest first, then by index."""
    return [sorted(zip(row, range(len(row)), strict=True))[:k] for row in distances(points, query)]


def padded(rows, k, fill=-1) -> torch.Tensor:
    """[M, k]; fill: a number, or "first" for the first entry of the row, 0 without one."""
    out = []
    for row in rows:
        pad = fill if fill != "first" else row[0] if row else 0
        out.append((list(row) + [pad] * k)[:k])
    return torch.tensor(out).reshape(len(rows), k)


def furthest(points, count, start=0) -> list[int]:
    """Furthest point sampling, the lowest index among equals."""
    points = numpy(points)
    far, chosen = np.full(len(points), np.inf), [start]
    while len(chosen) < count:
        far = np.minimum(far, ((points - points[chosen[-1]]) ** 2).sum(-1))
        chosen.append(int(far.argmax()))
    return chosen[:count]


def voxels(points, size, bounds, most_points, most):
    """(rows of points of each voxel, cells z y x, the voxel of each point, the cell of each)."""
    points, size, bounds = (np.asarray(one, dtype=np.float32) for one in (points, size, bounds))
    shape = np.round((bounds[3:] - bounds[:3]) / size).astype(int)
    rows, cells, of_point, cell_of_point = [], [], [], []
    for i, point in enumerate(points):
        cell = np.floor((point[:3] - bounds[:3]) / size).astype(int)
        inside = bool(((cell >= 0) & (cell < shape)).all())
        zyx = cell[::-1].tolist() if inside else [-1, -1, -1]
        cell_of_point.append(zyx)
        if inside and zyx not in cells and len(cells) < most:
            cells.append(zyx)
            rows.append([])
        voxel = cells.index(zyx) if zyx in cells else -1
        of_point.append(voxel)
        if voxel >= 0 and len(rows[voxel]) < most_points:
            rows[voxel].append(i)
    return rows, cells, of_point, cell_of_point


def fps(points, count, cap=1024, skip_origin=False):
    """Furthest point sampling as a block of threads does it: thread t looks at points t, t + T, ..
    and the winners meet pairwise."""
    points = np.asarray(points, np.float64)
    threads = min(1 << int(np.log2(len(points))), cap)
    near = np.full(len(points), 1e10)
    taken = [0]
    while len(taken) < count:
        best, who = np.full(threads, -1.0), np.zeros(threads, int)
        for k, point in enumerate(points):
            if skip_origin and (point**2).sum() <= 1e-3:
                continue
            near[k] = min(near[k], ((point - points[taken[-1]]) ** 2).sum())
            if near[k] > best[k % threads]:
                best[k % threads], who[k % threads] = near[k], k
        half = threads // 2
        while half:
            for t in range(half):
                if best[t + half] > best[t]:
                    best[t], who[t] = best[t + half], who[t + half]
            half //= 2
        taken.append(int(who[0]))
    return taken[:count]


def ball(points, center, radius, k, closed=False):
    """The first k by index; [] for an empty ball, else filled with the first."""
    d2 = ((np.asarray(points, np.float64) - np.asarray(center, np.float64)) ** 2).sum(-1)
    inside = d2 <= radius**2 if closed else d2 < radius**2
    hits = np.flatnonzero(inside)[:k].tolist()
    return hits + hits[:1] * (k - len(hits))


def three_nearest(points, center):
    """Three squared distances and indices; inf and 0 behind the points."""
    d2 = ((np.asarray(points, np.float64) - np.asarray(center, np.float64)) ** 2).sum(-1)
    order = np.argsort(d2, kind="stable")[:3].tolist()
    missing = 3 - len(order)
    return [*d2[order], *[np.inf] * missing], order + [0] * missing


def local(points, box):
    """Coordinates of points [N, 3] in a box's frame, z from its center."""
    x, y, z, *_, yaw = np.asarray(box, np.float64)
    near = np.asarray(points, np.float64) - [x, y, z]
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.stack([near @ [cos, sin, 0], near @ [-sin, cos, 0], near[:, 2]], 1)


def inside(points, box, margin):
    near, half = np.abs(local(points, box)), np.asarray(box, np.float64)[3:6] / 2
    flat = (near[:, 0] < half[0] + margin) & (near[:, 1] < half[1] + margin)
    return flat & (near[:, 2] <= half[2])


def cells(points, box, shape, margin, most):
    """The first points of each cell of a box."""
    size = np.asarray(box, np.float64)[3:6]
    cell = ((local(points, box) + size / 2) / (size / shape)).astype(int)
    cell, found = np.clip(cell, 0, np.array(shape) - 1).tolist(), {}
    for i in np.flatnonzero(inside(points, box, margin)).tolist():
        found.setdefault(tuple(cell[i]), []).append(i)
    return {one: rows[:most] for one, rows in found.items()}


def greedy(iou, scores, threshold, group=None):
    """Rows that stay, best first."""
    kept = []
    for i in np.argsort(-numpy(scores), kind="stable").tolist():
        same = [j for j in kept if group is None or group[i] == group[j]]
        if not any(iou[i, j] > threshold for j in same):
            kept.append(i)
    return kept
