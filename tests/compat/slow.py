# SPDX-License-Identifier: Apache-2.0
"""The peers' rules written out as loops over points."""

import numpy as np


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


def nearest(points, center):
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
