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


def nearest(points, query, k, power=2) -> tuple[list[list[float]], list[list[int]]]:
    """Distances (sums of powers of differences) and rows, nearest first, then by index."""
    far = (np.abs(numpy(query)[:, None] - numpy(points)[None]) ** power).sum(-1)
    order = np.argsort(far, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(far, order, 1).tolist(), order.tolist()


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
    """(rows of points of each voxel, cells z y x, the voxel of each point)."""
    points, size, bounds = (np.asarray(one, dtype=np.float32) for one in (points, size, bounds))
    shape = np.round((bounds[3:] - bounds[:3]) / size).astype(int)
    rows, cells, of_point = [], [], []
    for i, point in enumerate(points):
        cell = np.floor((point[:3] - bounds[:3]) / size).astype(int)
        inside = bool(((cell >= 0) & (cell < shape)).all())
        zyx = cell[::-1].tolist() if inside else [-1, -1, -1]
        if inside and zyx not in cells and len(cells) < most:
            cells.append(zyx)
            rows.append([])
        voxel = cells.index(zyx) if zyx in cells else -1
        of_point.append(voxel)
        if voxel >= 0 and len(rows[voxel]) < most_points:
            rows[voxel].append(i)
    return rows, cells, of_point


def local(points, box):
    """Coordinates of points [N, 3] in a box's frame, z from its center."""
    x, y, z, *_, yaw = numpy(box)
    near = numpy(points) - [x, y, z]
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.stack([near @ [cos, sin, 0], near @ [-sin, cos, 0], near[:, 2]], 1)


def inside(points, box, margin):
    """Sides are open, top and bottom closed."""
    near, half = np.abs(local(points, box)), numpy(box)[3:6] / 2
    flat = (near[:, 0] < half[0] + margin) & (near[:, 1] < half[1] + margin)
    return flat & (near[:, 2] <= half[2])


def cells(boxes, points, shape, most, margin):
    """(box, x, y, z) -> the first points of that cell of a box."""
    rows = {}
    for b, box in enumerate(boxes):
        size = numpy(box)[3:6]
        cell = ((local(points, box) + size / 2) / (size / shape)).astype(int)
        cell = np.clip(cell, 0, np.array(shape) - 1).tolist()
        for i in np.flatnonzero(inside(points, box, margin)).tolist():
            rows.setdefault((b, *cell[i]), []).append(i)
    return {place: every[:most] for place, every in rows.items()}


def greedy(iou, scores, threshold, group=None):
    """Rows that stay, best first."""
    kept = []
    for i in np.argsort(-numpy(scores), kind="stable").tolist():
        same = [j for j in kept if group is None or group[i] == group[j]]
        if not any(iou[i, j] > threshold for j in same):
            kept.append(i)
    return kept
