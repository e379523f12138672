# SPDX-License-Identifier: Apache-2.0
"""Which points moved between scans, one voxel at a time: the definition of torchvox clean."""

import itertools
import math

import numpy as np

from torchvox.reference.rays import map_rays

Voxel = tuple[int, ...]
AROUND = list(itertools.product((-1, 0, 1), repeat=3))


def neighbors(voxel: Voxel) -> list[Voxel]:
    """The voxel and its 26 neighbors."""
    return [tuple(v + step for v, step in zip(voxel, steps, strict=True)) for steps in AROUND]


def evidence_of(points, origins, voxel_size, map_origin, **rays) -> tuple[set[Voxel], set[Voxel]]:
    """The voxels that a scan hits, and those that it sees empty. rays: options of the op."""
    hit, free = set(), set()
    for ray in map_rays(points, origins, voxel_size, map_origin, **rays):
        if ray.status == 0:
            free |= {visit.voxel for visit in ray.visits if not visit.last}
            hit |= {visit.voxel for visit in ray.visits if visit.last and not ray.truncated}
    free -= hit
    return hit, {voxel for voxel in free if free.issuperset(neighbors(voxel))}


def verdict_of(scans: list[tuple[set[Voxel], set[Voxel]]]) -> dict[Voxel, tuple[int, int, int]]:
    """Reason 1 or 2, hits and seen empty, of the voxels that were left by the evidence of scans."""
    hits: dict[Voxel, int] = {}
    empty: dict[Voxel, int] = {}
    for pair in scans:
        for counts, voxels in zip((hits, empty), pair, strict=True):
            for voxel in voxels:
                counts[voxel] = counts.get(voxel, 0) + 1
    left = set()
    for voxel in hits.keys() & empty.keys():
        if 2 * empty[voxel] >= max(hits.get(other, 0) for other in neighbors(voxel)):
            left.add(voxel)
    reasons = {}
    for voxel, count in hits.items():
        beside = [hits[other] for other in neighbors(voxel) if other in left and other != voxel]
        if voxel in left:
            reasons[voxel] = 1, count, empty[voxel]
        elif count <= max(beside, default=0):
            reasons[voxel] = 2, count, empty.get(voxel, 0)
    return reasons


def judge(points, origins, verdict, voxel_size, map_origin, min_range=0.0) -> list[Voxel]:
    """Reason, hits and seen empty of points [N, 3] measured from origins [N, 3]; 3: not judged."""
    rows: list[Voxel] = []
    corner, size = np.asarray(map_origin, np.float64), np.float64(voxel_size)
    for point, origin in np.stack([points, origins], 1).astype(np.float64):
        x, y, z = point - origin
        if not np.isfinite(point).all() or math.sqrt(x * x + y * y + z * z) < min_range:
            rows.append((3, 0, 0))
            continue
        voxel = tuple(math.floor(v) for v in (point - corner) / size)
        rows.append(verdict.get(voxel, (0, 0, 0)))
    return rows
