# SPDX-License-Identifier: Apache-2.0
"""The voxel-grid filter of whole tables: cells, an octree of them, each column by its rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchvox.reference.filter import UNIT, cell_steps, encode_cell, float_mean, mix, words_of

if TYPE_CHECKING:
    from torchvox.io import PointTable


def las_cell(x: int, scale: float, offset: float, size: float, origin: float) -> int:
    """The cell of a stored coordinate, of the numbers as their decimal text has them."""
    q, t, v, o = (Fraction(repr(float(number))) for number in (scale, offset, size, origin))
    return math.floor((x * q + t - o) / v)


def table_cells(
    table: PointTable, size: Sequence[float], origin: Sequence[float], exact: bool = True
) -> list[tuple[int, ...] | None]:
    """The cell (x, y, z) of each point, None where it is not finite.

    exact: integer coordinates lead to a cell without rounding, else through float64.
    """
    xyz = table.xyz
    real = np.float32 if xyz.dtype.itemsize == 4 and table.scale is None else np.float64
    if table.scale is not None and table.offset is not None:
        if exact:
            lattice = list(zip(table.scale, table.offset, size, origin, strict=True))
            return [
                tuple(las_cell(int(x), *axis) for x, axis in zip(point, lattice, strict=True))
                for point in xyz
            ]
        xyz = np.array([[np.float64(x) for x in point] for point in xyz]).reshape(-1, 3)
        xyz = xyz * table.scale + table.offset
    start, voxel = [real(o) for o in origin], [real(v) for v in size]
    steps = [
        cell_steps(point.astype(real), start, voxel, [0, 0, 0])
        if np.isfinite(point).all()
        else None
        for point in xyz
    ]
    return [None if cell is None else tuple(cell) for cell in steps]


def filter_table(
    table: PointTable,
    size: Sequence[float],
    rules: Mapping[str, str],
    *,
    keep: str = "centroid",
    origin: Sequence[float] = (0.0, 0.0, 0.0),
    no_data: Mapping[str, Sequence[float]] | None = None,
    layout: str = "morton",
    seed: int = 0,
    levels: int = 0,
    max_points: int = 1,
    min_points: int = 1,
    index: Sequence[int] | None = None,
    exact: bool = True,
) -> tuple[PointTable, list[int]]:
    """(points, row of each point): one point per voxel, each attribute by its rule.

    Raises OverflowError for a sum or count that its column does not hold.
    """
    cells = table_cells(table, size, origin, exact)
    numbers = list(range(len(table)) if index is None else index)
    leaves = _leaves(cells, numbers, levels, max_points, layout)
    leaves = [leaf for leaf in leaves if len(leaf[0]) >= min_points]
    groups = [points for points, _, _ in leaves]
    row = [-1] * len(table)
    for r, points in enumerate(groups):
        for i in points:
            row[i] = r
    grid = [(float(o), float(s)) for o, s in zip(origin, size, strict=True)]
    centers = [
        [o + (i + 0.5 * (1 << level)) * s for i, (o, s) in zip(low, grid, strict=True)]
        for _, low, level in leaves
    ]
    stored, best = _positions(table, groups, centers, keep, numbers, seed)
    attributes = {}
    for name, values in table.attributes.items():
        if rules[name] == "representative":
            attributes[name] = values[best]
        elif rules[name] != "drop":
            attributes[name] = _reduce(rules[name], values, groups, (no_data or {}).get(name))
    for three in (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")):
        if rules.get(three[0]) == "unit_mean":
            _normalize([attributes[name] for name in three])
    if levels:
        attributes["level"] = np.array([level for _, _, level in leaves], np.uint8)
    return replace(table, xyz=stored, attributes=attributes), row


def _leaves(
    cells: Sequence[tuple[int, ...] | None],
    numbers: Sequence[int],
    levels: int,
    max_points: int,
    layout: str,
) -> list[tuple[list[int], tuple[int, ...], int]]:
    """(points in the order of their numbers, lowest cell, level) of each voxel, in key order."""
    inside = [i for i, cell in enumerate(cells) if cell is not None]
    lower = [min((c[k] for c in cells if c), default=0) // 1024 * 1024 for k in range(3)]
    leaves = []
    for cube in _partition(sorted(inside, key=numbers.__getitem__), cells, levels):
        for points, level in _octree(cube, cells, levels, max_points):
            low = tuple(i >> level << level for i in cells[points[0]] or ())
            steps = [i - first for i, first in zip(low, lower, strict=True)]
            leaves.append((encode_cell(steps, 21, layout), points, low, level))
    return [leaf[1:] for leaf in sorted(leaves, key=lambda leaf: leaf[0])]


def _positions(
    table: PointTable,
    groups: list[list[int]],
    centers: list[list[float]],
    keep: str,
    numbers: Sequence[int],
    seed: int,
) -> tuple[np.ndarray, list[int]]:
    """xyz of each voxel's point as the table stores them, and its representative."""
    scale, offset = table.scale, table.offset
    world, means = table.xyz.astype(np.float64), _reduce("mean", table.xyz, groups, None)
    anchors = np.array(centers).reshape(-1, 3)
    if scale is not None:
        world = world * scale + offset
    if keep == "nearest_centroid":
        anchors = (means if scale is None else means * scale + offset).astype(np.float64)
    best = []
    for points, anchor in zip(groups, anchors.tolist(), strict=True):
        scores: dict[int, float] = dict.fromkeys(points, 0)
        if keep.startswith("nearest"):
            for i in points:
                x, y, z = (float(p) - a for p, a in zip(world[i], anchor, strict=True))
                scores[i] = (x * x + y * y) + z * z
        elif keep == "random":
            scores = {i: mix(mix(seed) + numbers[i]) for i in points}
        best.append(min(points, key=lambda i: (scores[i], numbers[i])))
    if keep == "centroid":
        return means, best
    if keep == "center":
        stored = anchors if scale is None else np.rint((anchors - offset) / scale)
        return stored.astype(table.xyz.dtype), best
    return table.xyz[best], best


def _normalize(columns: list[np.ndarray]) -> None:
    for r, (x, y, z) in enumerate(zip(*(map(float, c) for c in columns), strict=True)):
        length = math.sqrt((x * x + y * y) + z * z) or 1.0
        for column, value in zip(columns, (x, y, z), strict=True):
            column[r] = value / length


def _partition(
    points: Sequence[int], cells: Sequence[tuple[int, ...] | None], level: int
) -> list[list[int]]:
    """Points of one cube of 2^level cells each."""
    cubes: dict[tuple[int, ...], list[int]] = {}
    for i in points:
        cubes.setdefault(tuple(c >> level for c in cells[i] or ()), []).append(i)
    return list(cubes.values())


def _octree(
    points: list[int], cells: Sequence[tuple[int, ...] | None], level: int, most: int
) -> list[tuple[list[int], int]]:
    """(points, level) of the leaves: a cube with more than `most` points falls into eight."""
    if level == 0 or len(points) <= most:
        return [(points, level)]
    return [
        leaf
        for part in _partition(points, cells, level - 1)
        for leaf in _octree(part, cells, level - 1, most)
    ]


def _reduce(
    rule: str, values: np.ndarray, groups: list[list[int]], none: Sequence[float] | None
) -> np.ndarray:
    """[R] or [R, k]: one value per group; the points of a group come by their numbers."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    kind, width = flat.dtype.newbyteorder("="), flat.shape[1]
    no_data = [None] * width if none is None else np.broadcast_to(none, width).tolist()
    columns = [[v.item() for v in column] for column in flat.T]
    missing = [
        [v != v or v == gone for v in column] for column, gone in zip(columns, no_data, strict=True)
    ]
    out = np.zeros((len(groups), width), kind)
    for r, points in enumerate(groups):
        if rule in ("first", "last"):
            ranked = points if rule == "first" else points[::-1]
            full = [i for i in ranked if not all(gone[i] for gone in missing)]
            out[r] = flat[(full or ranked)[0]]
            continue
        for k, (column, gone) in enumerate(zip(columns, missing, strict=True)):
            there = [column[i] for i in points if not gone[i]]
            out[r, k] = _reduced(rule, there, kind, no_data[k])
    return out.reshape(len(groups), *values.shape[1:])


def _reduced(rule: str, values: list, kind: np.dtype, none: float | None) -> float:
    """One value of the type from those that are not missing."""
    floats = kind.kind == "f"
    if rule == "count":
        return _held(len(values), kind)
    if not values:
        return math.nan if none is None else none
    if rule in ("min", "max"):
        return {"min": min, "max": max}[rule](values) + (0.0 if floats else 0)
    if rule == "majority":
        return min(set(values), key=lambda v: (-values.count(v), v)) + (0.0 if floats else 0)
    if not floats:
        total, n = sum(map(int, values)), len(values)
        return _held(total, kind) if rule == "sum" else (2 * total + n) // (2 * n)
    words = [sum(column) for column in zip(*map(words_of, values), strict=True)]
    if rule == "sum":
        exact = float(Fraction(words[0] * UNIT + words[1], UNIT))
        return _held(exact, kind) if words[2] else math.nan if none is None else none
    mean = float_mean(words[0], words[1], words[2], torch.from_numpy(np.zeros(0, kind)).dtype)
    return none if mean != mean and none is not None else mean


def _held(value: float, kind: np.dtype) -> float:
    """The value; raises OverflowError when the type does not hold it."""
    if kind.kind == "b":
        low, high = 0.0, 1.0
    elif kind.kind == "f":
        low, high = -float(np.finfo(kind).max), float(np.finfo(kind).max)
    else:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
    if not low <= value <= high:
        raise OverflowError(f"{value} as {kind}")
    return value
