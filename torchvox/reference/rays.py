# SPDX-License-Identifier: Apache-2.0
"""Rays through voxels, by rational numbers: all crossings of a ray, sorted."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cmp_to_key
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.definition import define_op

__all__ = ["ray_regions", "ray_visibility", "ray_voxels", "transform_points"]

UNIT = 1 << 16  # units of length in a voxel
SKIP, NO_HIT, HIT_ONLY, SECONDARY = 1, 2, 4, 8
NOT_FINITE, FILTERED, OUTSIDE = 2, 3, 4  # columns of counts


class Visit(NamedTuple):
    voxel: tuple[int, ...]  # x, y, z
    enter: float  # fractions of the ray
    leave: float
    first: bool  # of the whole ray
    last: bool


def crossings(a: int, b: int, axis: int) -> list[tuple[int, int, int]]:
    """(distance from the start, length, axis) of each face that the way from a to b crosses; a face
    belongs to the voxel above it."""
    first, last = a // UNIT, b // UNIT
    if b > a:
        faces = [UNIT * f - a for f in range(first + 1, last + 1)]
    else:
        faces = [a - UNIT * f for f in range(first, last, -1)]
    return [(distance, abs(b - a), axis) for distance in faces]


def earlier(a: tuple[int, int, int], b: tuple[int, int, int]) -> int:
    """Of two crossings, by fraction of the way; of equal ones that of the higher axis."""
    difference = a[0] * b[1] - b[0] * a[1]
    return difference if difference else b[2] - a[2]


def walk(start: Sequence[int], end: Sequence[int]) -> list[Visit]:
    """Every voxel of a ray between two places in units."""
    steps = [c for axis in range(3) for c in crossings(start[axis], end[axis], axis)]
    steps.sort(key=cmp_to_key(earlier))
    voxel = [u // UNIT for u in start]
    visits, enter = [], 0.0
    for i, (distance, length, axis) in enumerate(steps):
        leave = float(np.float64(distance) / np.float64(length))
        visits.append(Visit(tuple(voxel), enter, leave, i == 0, False))
        voxel[axis] += 1 if end[axis] > start[axis] else -1
        enter = leave
    assert voxel == [u // UNIT for u in end]
    return [*visits, Visit(tuple(voxel), enter, 1.0, not steps, True)]


def rows_of(tensor: Tensor) -> np.ndarray:
    """Widened exactly."""
    wide = tensor.dtype == torch.float64
    return (tensor if wide else tensor.float()).numpy()


def map_units(p: np.ndarray, size: float, origin: list[float]) -> list[int]:
    """Empty beyond all voxels."""
    units = []
    for x, o in zip(p, origin, strict=True):
        q = (np.float64(x) - np.float64(o)) / np.float64(size) * np.float64(UNIT)
        if not -(2.0**39) <= q < 2.0**39:
            return []
        units.append(math.floor(q))
    return units


class MapRay(NamedTuple):
    status: int  # a column of counts, 0 for a ray that is walked, -1 for padding
    flags: int = 0
    start: Sequence[int] = ()
    end: Sequence[int] = ()
    truncated: bool = False
    visits: Sequence[Visit] = ()  # those that count


def map_rays(points, origins, voxel_size, map_origin, origin_index=None, num_valid=None,
             ray_flags=None, point_cloud_range=None, min_range=0.0, max_range=-1.0,
             long_rays="truncate") -> list[MapRay]:  # fmt: skip
    valid = len(points) if num_valid is None else int(num_valid.reshape(-1)[0])
    ends, starts = rows_of(points)[:, :3].astype(np.float64), rows_of(origins).astype(np.float64)
    rays = []
    for i in range(len(points)):
        if i >= valid:
            rays.append(MapRay(-1))
            continue
        flags = 0 if ray_flags is None else int(ray_flags[i])
        row = 0 if origin_index is None else int(origin_index[i])
        if flags & SKIP or not 0 <= row < len(starts):
            rays.append(MapRay(FILTERED))
            continue
        o, p = starts[row], ends[i]
        if not (np.isfinite(o).all() and np.isfinite(p).all()):
            rays.append(MapRay(NOT_FINITE))
            continue
        x, y, z = p - o
        length = np.sqrt(x * x + y * y + z * z)
        truncated = False
        if np.isfinite(length) and length < min_range:
            rays.append(MapRay(FILTERED))
            continue
        if np.isfinite(length) and 0 <= max_range < length:
            if long_rays == "drop":
                rays.append(MapRay(FILTERED))
                continue
            truncated, p = True, o + (p - o) * (np.float64(max_range) / length)
        start, end = map_units(o, voxel_size, map_origin), map_units(p, voxel_size, map_origin)
        far = not (np.isfinite(length) and start and end)
        if far or any(abs(b - a) >= 2**31 for a, b in zip(start, end, strict=True)):
            rays.append(MapRay(OUTSIDE))
            continue
        visits = walk(start, end)
        if point_cloud_range is not None:
            size = np.float64(voxel_size)
            for axis in range(3):
                lo = np.float64(point_cloud_range[axis]) - map_origin[axis]
                hi = np.float64(point_cloud_range[axis + 3]) - map_origin[axis]
                lower, upper = math.floor(lo / size), math.ceil(hi / size)
                visits = [v for v in visits if lower <= v.voxel[axis] < upper]
        if flags & HIT_ONLY:
            visits = [v for v in visits if v.last]
        rays.append(MapRay(0, flags, start, end, truncated, visits))
    return rays


def left_out(rays: list[MapRay], columns: int = 8) -> Tensor:
    counts = torch.zeros(1, columns, dtype=torch.int64)
    for ray in rays:
        if ray.status > 0:
            counts[0, ray.status] += 1
    return counts


def region_key(voxel: tuple[int, ...]) -> int:
    x, y, z = (v // 8 + (1 << 20) for v in voxel)
    return z << 42 | y << 21 | x


@define_op
def transform_points(points: Tensor, poses: Tensor, *, pose_index) -> Tensor:
    out = np.full((len(points), 3), np.nan)
    matrices, rows = rows_of(poses).astype(np.float64), rows_of(points).astype(np.float64)
    for i, (x, y, z) in enumerate(rows[:, :3]):
        pose = 0 if pose_index is None else int(pose_index[i])
        if 0 <= pose < len(matrices):
            for axis, (a, b, c, t) in enumerate(matrices[pose]):
                out[i, axis] = a * x + b * y + c * z + t
    out[np.isnan(out)] = np.nan  # one quiet NaN
    return torch.from_numpy(out)


@define_op
def ray_voxels(
    points: Tensor, origins, voxel_size, map_origin, max_out: int, *, reverse: bool, **options
) -> tuple[Tensor, ...]:
    rays = map_rays(points, origins, voxel_size, map_origin, **options)
    visits = [(i, v) for i, r in enumerate(rays) for v in r.visits[:: -1 if reverse else 1]]
    indices = torch.full((max_out, 4), -1, dtype=torch.int32)
    ray = torch.full((max_out,), -1, dtype=torch.int32)
    span = torch.zeros(max_out, 2, dtype=torch.float64)
    for row, (i, visit) in enumerate(visits[:max_out]):
        indices[row] = torch.tensor([0, *visit.voxel[::-1]])
        ray[row] = i
        span[row] = torch.tensor([visit.enter, visit.leave], dtype=torch.float64)
    sizes = [0, *(len(r.visits) for r in rays)]
    counts = left_out(rays)
    counts[0, :2] = torch.tensor([min(len(visits), max_out), len(visits)])
    return indices, ray, span, torch.tensor(sizes, dtype=torch.int64).cumsum(0), counts


def table_size(most: int) -> int:
    """Places of a table for `most` regions; it tells 7/8 of that apart, rounded up."""
    return 1 << (2 * most + 1).bit_length()


def regions_limit(most: int) -> int:
    return table_size(most) - table_size(most) // 8


@define_op
def ray_regions(
    points: Tensor, origins, voxel_size, map_origin, max_out: int, **options
) -> tuple[Tensor, Tensor]:
    rays = map_rays(points, origins, voxel_size, map_origin, **options)
    regions = sorted({region_key(v.voxel) for r in rays for v in r.visits})
    limit = regions_limit(max_out)
    kept = regions[:max_out] if len(regions) <= limit else []
    keys = torch.full((max_out,), -1, dtype=torch.int64)
    keys[: len(kept)] = torch.tensor(kept, dtype=torch.int64)
    counts = left_out(rays)
    counts[0, :2] = torch.tensor([len(kept), min(len(regions), limit)])
    return keys, counts


@define_op
def ray_visibility(
    points: Tensor,
    origins,
    voxel_size,
    point_cloud_range,
    *,
    origin_index,
    batch_offsets,
    num_valid,
    ray_flags,
    blockers,
) -> tuple[Tensor, Tensor, Tensor]:
    n = len(points)
    offsets = [0, n] if batch_offsets is None else [min(max(int(o), 0), n) for o in batch_offsets]
    grid = (point_cloud_range[:3], point_cloud_range[3:], voxel_size)
    lo, hi, size = (np.array(v, np.float32) for v in grid)
    # Half away from zero, of positive numbers.
    cells = [math.floor(Fraction(float(c)) + Fraction(1, 2)) for c in (hi - lo) / size]
    samples = len(offsets) - 1
    volume = torch.zeros(samples, *cells[::-1], dtype=torch.uint8)
    ended = torch.zeros_like(volume)
    reached = torch.full((n,), -1, dtype=torch.int8)
    counts = torch.zeros(samples + 1, 8, dtype=torch.int32)
    ends, starts = rows_of(points)[:, :3], rows_of(origins).astype(np.float64)

    def units(p: np.ndarray) -> list[int]:
        """In the type of p; empty where that is too far."""
        q = (p - lo.astype(p.dtype)) / size.astype(p.dtype)
        return [math.floor(x * UNIT) for x in q] if (np.abs(q) <= 2.0**22).all() else []

    def see(i: int, sample: int) -> int:
        flags = 0 if ray_flags is None else int(ray_flags[i])
        row = sample if origin_index is None else int(origin_index[i])
        if flags & SKIP or not 0 <= row < len(starts):
            return 5
        if not (np.isfinite(starts[row]).all() and np.isfinite(ends[i]).all()):
            return 7
        start, end = units(starts[row]), units(ends[i])
        far = not (start and end)
        if far or any(abs(b - a) >= 2**31 for a, b in zip(start, end, strict=True)):
            return 6
        for visit in walk(start, end):
            if not all(0 <= v < c for v, c in zip(visit.voxel, cells, strict=True)):
                continue
            cell = (sample, *visit.voxel[::-1])
            blocked = blockers is not None and not (visit.first or visit.last or flags & HIT_ONLY)
            blocked = blocked and bool(blockers[cell])
            if visit.last or blocked:
                ended[cell] |= not flags & NO_HIT
                return 4 if blocked else 2
            if not (flags & HIT_ONLY or (visit.first and flags & SECONDARY)):
                volume[cell] = 1
        return 3

    for sample in range(samples):
        rows = range(offsets[sample], max(offsets[sample], offsets[sample + 1]))
        valid = len(rows) if num_valid is None else int(num_valid.reshape(-1)[sample])
        for i in rows[: max(valid, 0)]:
            column = see(i, sample)
            reached[i] = {2: 0, 3: 2, 4: 1}.get(column, -1)
            for block in (0, sample + 1):
                counts[block, 1] += 1
                counts[block, column] += 1
                counts[block, 0] += column in (2, 3, 4)
    volume[ended.bool()] = 2
    return volume, reached, counts
