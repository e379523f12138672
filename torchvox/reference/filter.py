# SPDX-License-Identifier: Apache-2.0
"""The voxel-grid filter: a key a point, groups of equal keys, exact sums and means; tables.

Cells take IEEE operations on NumPy scalars; everything after them is Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.voxel_grouping import sample_ranges

if TYPE_CHECKING:
    from torchvox.io import PointTable

__all__ = [
    "voxel_cells", "voxel_downsample", "voxel_group", "voxel_keys", "voxel_mean",
    "voxel_mean_of_sums", "voxel_sum",
]  # fmt: skip

LARGE = 2.0**31  # the size from which on a float is not summed
UNIT = 1 << 32  # fractions are summed in units of 2^-32
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
KEYED, OUTSIDE, NON_FINITE = range(3)  # columns of the counts of voxel_keys


def _frame(
    bits: int, lower: Sequence[int] | None, batch_offsets: Tensor | None
) -> tuple[int, list[int]]:
    """bits and lower with their defaults: a sample takes ceil(log2 B) of the 63 bits of a key."""
    samples = 1 if batch_offsets is None else len(batch_offsets) - 1
    if bits < 0:
        bits = (63 - max(samples - 1, 0).bit_length()) // 3
    return bits, [-(1 << (bits - 1))] * 3 if lower is None else list(lower)


def _steps(
    point: np.ndarray, origin: list[np.floating], size: list[np.floating], lower: list[int]
) -> list[int] | None:
    """floor((p - o) / v) - lower per axis, each operation rounded; None where that is infinite."""
    with np.errstate(all="ignore"):
        cell = [np.floor((p - o) / v) for p, o, v in zip(point, origin, size, strict=True)]
    if not all(np.isfinite(i) for i in cell):
        return None
    return [int(i) - first for i, first in zip(cell, lower, strict=True)]  # exact


def _encode(cell: Sequence[int], bits: int, layout: str) -> int:
    """The 3 * bits low bits of a key; cell is x, y, z, each in [0, 2^bits)."""
    x, y, z = cell
    if layout == "zyx":
        return z << 2 * bits | y << bits | x
    key = 0
    for bit in reversed(range(bits)):
        for i in (x, y, z):
            key = key << 1 | i >> bit & 1
    return key


def _decode(key: int, bits: int, layout: str) -> list[int]:
    """The inverse of _encode."""
    if layout == "zyx":
        return [key >> shift & (1 << bits) - 1 for shift in (0, bits, 2 * bits)]
    cell = [0, 0, 0]
    for bit in range(3 * bits):
        cell[2 - bit % 3] |= (key >> bit & 1) << bit // 3
    return cell


def voxel_keys(
    points: Tensor,
    voxel_size: Sequence[float],
    *,
    origin: Sequence[float] | None = None,
    lower: Sequence[int] | None = None,
    bits: int = -1,
    layout: str = "morton",
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(keys [N] int64, counts [B + 1, 3] int32: keyed, outside, non-finite)."""
    bits, lower = _frame(bits, lower, batch_offsets)
    real = np.float64 if points.dtype in (torch.float64, torch.int32) else np.float32
    xyz = points[:, :3].double().numpy().astype(real)  # exact
    size = [real(v) for v in voxel_size]
    start = [real(o) for o in origin or (0.0, 0.0, 0.0)]
    keys = [-1] * len(points)
    counts = [[0, 0, 0]]
    ranges = sample_ranges("voxel_keys", len(points), batch_offsets, num_valid)
    for sample, (begin, end) in enumerate(ranges):
        counts.append([0, 0, 0])
        for i in range(begin, end):
            what = NON_FINITE
            if np.isfinite(xyz[i]).all():
                steps = _steps(xyz[i], start, size, lower)
                what = OUTSIDE
                if steps is not None and all(0 <= step < 1 << bits for step in steps):
                    what = KEYED
                    keys[i] = sample << 3 * bits | _encode(steps, bits, layout)
            counts[1 + sample][what] += 1
    counts[0] = [sum(column) for column in zip(*counts, strict=True)]
    return torch.tensor(keys, dtype=torch.int64), torch.tensor(counts, dtype=torch.int32)


def voxel_cells(keys: Tensor, bits: int, lower: Sequence[int], *, layout: str = "morton") -> Tensor:
    """[R, 4] int32: sample, z, y, x of each key; -1 for a negative key."""
    rows = []
    for key in keys.tolist():
        low = _decode(key & (1 << 3 * bits) - 1, bits, layout)
        x, y, z = (i + first for i, first in zip(low, lower, strict=True))
        rows.append([key >> 3 * bits, z, y, x] if key >= 0 else [-1] * 4)
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).int()


def voxel_group(
    keys: Tensor, *, key_bits: int = 63, order: str = "first", backend: str = "auto"
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(row_keys [N], offsets [N + 1], perm [N], point_voxel [N], counts [2]: rows, points)."""
    found: dict[int, list[int]] = {}  # in order of first appearance
    for i, key in enumerate(keys.tolist()):
        if 0 <= key < 1 << key_bits:
            found.setdefault(key, []).append(i)
    row_keys = sorted(found) if order == "key" else list(found)
    perm = [point for key in row_keys for point in found[key]]
    ends = list(accumulate((len(found[key]) for key in row_keys), initial=0))
    point_voxel = [-1] * len(keys)
    for row, key in enumerate(row_keys):
        for point in found[key]:
            point_voxel[point] = row
    unused = len(keys) - len(row_keys)
    return (
        torch.tensor(row_keys + [-1] * unused, dtype=torch.int64),
        torch.tensor(ends + ends[-1:] * unused, dtype=torch.int32),
        torch.tensor(perm + [-1] * (len(keys) - len(perm)), dtype=torch.int32),
        torch.tensor(point_voxel, dtype=torch.int32),
        torch.tensor([len(row_keys), len(perm)], dtype=torch.int32),
    )


def _wrap(value: int) -> int:
    """Two's complement of 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _words(value: float) -> tuple[int, int, int]:
    """What one float adds to the three words of its column."""
    if not math.isfinite(value):
        return 0, 0, 0
    if abs(value) >= LARGE:
        return 0, 0, 1 + UNIT
    whole = math.floor(value)
    return whole, round((value - whole) * UNIT), 1  # in float64; half to even


def voxel_sum(values: Tensor, offsets: Tensor, perm: Tensor) -> Tensor:
    """[R, W] int64: a word a column of integers, three a column of floats."""
    n = len(values)
    ends = [min(max(end, 0), n) for end in offsets.tolist()]
    points = perm.tolist()
    floats = values.is_floating_point()
    terms = [
        [word for v in row for word in (_words(v) if floats else (v,))]
        for row in (values.double() if floats else values).tolist()
    ]
    words = values.size(1) * (3 if floats else 1)
    sums = [[0] * words for _ in ends[1:]]
    for total, (begin, end) in zip(sums, pairwise(ends), strict=True):
        for point in points[begin:end]:
            if 0 <= point < n:
                total[:] = map(int.__add__, total, terms[point])
    wrapped = [[_wrap(word) for word in total] for total in sums]
    return torch.tensor(wrapped, dtype=torch.int64).reshape(len(sums), words)


def voxel_mean(values: Tensor, offsets: Tensor, perm: Tensor) -> Tensor:
    """[R, C] in the dtype of the values."""
    num_points = offsets.clamp(0, len(values)).diff().clamp(min=0)
    return voxel_mean_of_sums(voxel_sum(values, offsets, perm), num_points, values.dtype)


def _rounded(units: int, dtype: torch.dtype) -> float:
    """units * 2^-32 to the nearest value of the dtype, ties to even."""
    lowest = 8 if dtype == torch.float16 else 0  # 2^-24 is its smallest; the others go below 2^-32
    shift = max(abs(units).bit_length() - DIGITS[dtype], lowest, 0)
    return math.ldexp(round(Fraction(units, 1 << shift)) << shift, -32)


def _float_mean(whole: int, fraction: int, count: int, dtype: torch.dtype) -> float:
    too_large, n = divmod(count, UNIT)
    if n == 0 or too_large:
        return math.nan
    return _rounded((whole * UNIT + fraction + n // 2) // n, dtype)


def voxel_mean_of_sums(sums: Tensor, num_points: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, C]: floor(S / n + 1/2) of integers, the mean in units of 2^-32, rounded, of floats."""
    means: list[list[float]] = []
    columns = sums.size(1) // (3 if dtype.is_floating_point else 1)
    for words, n in zip(sums.tolist(), num_points.tolist(), strict=True):
        if n <= 0:
            means.append([0] * columns)
        elif dtype.is_floating_point:
            triples = zip(words[0::3], words[1::3], words[2::3], strict=True)
            means.append([_float_mean(*triple, dtype) for triple in triples])
        else:
            means.append([(2 * s + n) // (2 * n) for s in words])
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return torch.tensor(means, dtype=wide).reshape(len(means), columns).to(dtype)


def voxel_downsample(
    points: Tensor,
    voxel_size: Sequence[float],
    *,
    origin: Sequence[float] | None = None,
    lower: Sequence[int] | None = None,
    bits: int = -1,
    order: str = "first",
    backend: str = "auto",
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(out, indices, num_points, representative, point_voxel, counts): the mean of each voxel.

    counts [B + 1, 4] int32: rows, points in rows, outside, non-finite.
    """
    bits, lower = _frame(bits, lower, batch_offsets)
    keys, counts = voxel_keys(
        points, voxel_size, origin=origin, lower=lower, bits=bits,
        batch_offsets=batch_offsets, num_valid=num_valid,
    )  # fmt: skip
    row_keys, offsets, perm, point_voxel, _ = voxel_group(keys, order=order)
    indices = voxel_cells(row_keys, bits, lower)
    num_points = offsets.diff()
    representative = torch.full_like(num_points, -1)
    used = num_points > 0
    representative[used] = perm[offsets[:-1][used].long()]  # the points of a row ascend
    samples = indices[used, 0].tolist()
    rows = [len(samples)] + [samples.count(b) for b in range(len(counts) - 1)]
    counts = torch.cat([torch.tensor(rows, dtype=torch.int32)[:, None], counts], 1)
    out = voxel_mean(points, offsets, perm)
    return out, indices, num_points, representative, point_voxel, counts


# ---- tables --------------------------------------------------------------------------------------


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
    found: list[tuple[int, ...] | None] = []
    for point in xyz:
        steps = None
        if np.isfinite(point).all():
            steps = _steps(
                point.astype(real), [real(o) for o in origin], [real(v) for v in size], [0, 0, 0]
            )
        found.append(None if steps is None else tuple(steps))
    return found


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
    """(points, row of each point): one point a voxel, each attribute by its rule.

    Raises OverflowError for a sum or count that its column does not hold.
    """
    cells = table_cells(table, size, origin, exact)
    numbers = list(range(len(table)) if index is None else index)
    points = sorted(
        (i for i, cell in enumerate(cells) if cell is not None), key=numbers.__getitem__
    )
    voxels = [
        voxel
        for cube in _partition(points, cells, levels)
        for voxel in _octree(cube, cells, levels, max_points)
    ]
    lower = [min((c[k] for c in cells if c), default=0) // 1024 * 1024 for k in range(3)]
    low = [tuple(i >> level << level for i in cells[held[0]]) for held, level in voxels]  # type: ignore[union-attr]
    keys = [
        _encode([i - first for i, first in zip(cell, lower, strict=True)], 21, layout)
        for cell in low
    ]
    order = sorted(range(len(voxels)), key=keys.__getitem__)
    order = [v for v in order if len(voxels[v][0]) >= min_points]
    groups = [voxels[v][0] for v in order]
    row = [-1] * len(table)
    for r, held in enumerate(groups):
        for i in held:
            row[i] = r
    center = [
        [
            o + (i + 0.5 * (1 << voxels[v][1])) * s
            for i, o, s in zip(low[v], map(float, origin), map(float, size), strict=True)
        ]
        for v in order
    ]
    world = table.xyz.astype(np.float64)
    if table.scale is not None and table.offset is not None:
        world = world * table.scale + table.offset
    means = _reduce("mean", table.xyz, groups, None)
    stored = means
    if table.scale is not None:
        means = means * table.scale + table.offset
    anchors: Any = means.astype(np.float64) if keep == "nearest_centroid" else center
    best = []
    for held, anchor in zip(groups, anchors, strict=True):
        scores: dict[int, float] = dict.fromkeys(held, 0)
        if keep.startswith("nearest"):
            d = {
                i: [float(p) - float(a) for p, a in zip(world[i], anchor, strict=True)]
                for i in held
            }
            scores = {i: (x * x + y * y) + z * z for i, (x, y, z) in d.items()}
        elif keep == "random":
            scores = {i: _mix(_mix(seed) + numbers[i]) for i in held}
        best.append(min(held, key=lambda i: (scores[i], numbers[i])))
    if keep == "center":
        stored = np.array(center).reshape(-1, 3)
        if table.scale is not None:
            stored = np.rint((stored - table.offset) / table.scale)
        stored = stored.astype(table.xyz.dtype)
    elif keep != "centroid":
        stored = table.xyz[best]
    attributes = {}
    for name, values in table.attributes.items():
        if rules[name] == "representative":
            attributes[name] = values[best]
        elif rules[name] != "drop":
            attributes[name] = _reduce(rules[name], values, groups, (no_data or {}).get(name))
    for three in (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")):
        if rules.get(three[0]) == "unit_mean":
            for r in range(len(groups)):
                x, y, z = (float(attributes[name][r]) for name in three)
                length = math.sqrt((x * x + y * y) + z * z) or 1.0
                for name, value in zip(three, (x, y, z), strict=True):
                    attributes[name][r] = value / length
    if levels:
        attributes["level"] = np.array([voxels[v][1] for v in order], np.uint8)
    return replace(table, xyz=stored, attributes=attributes), row


def _partition(
    points: Sequence[int], cells: Sequence[tuple[int, ...] | None], level: int
) -> list[list[int]]:
    """Points of one cube of 2^level cells each."""
    found: dict[tuple[int, ...], list[int]] = {}
    for i in points:
        found.setdefault(tuple(c >> level for c in cells[i] or ()), []).append(i)
    return list(found.values())


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


def _mix(z: int) -> int:
    """SplitMix64's finalizer, as a signed number."""
    z %= 1 << 64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = (z ^ z >> shift) * factor % (1 << 64)
    return _wrap(z)


def _reduce(
    rule: str, values: np.ndarray, groups: list[list[int]], none: Sequence[float] | None
) -> np.ndarray:
    """One value a group [R] or [R, k]; the points of a group come by their numbers."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    kind, width = flat.dtype.newbyteorder("="), flat.shape[1]
    wanted = [None] * width if none is None else np.broadcast_to(none, width).tolist()
    columns: Any = [[v.item() for v in column] for column in flat.T]
    missing = [
        [v != v or v == gone for v in column] for column, gone in zip(columns, wanted, strict=True)
    ]
    out = np.zeros((len(groups), width), kind)
    for r, held in enumerate(groups):
        if rule in ("first", "last"):
            ranked = held if rule == "first" else held[::-1]
            full = [i for i in ranked if not all(gone[i] for gone in missing)]
            out[r] = flat[(full or ranked)[0]]
            continue
        for k, (column, gone) in enumerate(zip(columns, missing, strict=True)):
            given = [column[i] for i in held if not gone[i]]
            out[r, k] = _reduced(rule, given, kind, wanted[k])
    return out.reshape(len(groups), *values.shape[1:])


def _reduced(rule: str, given: list[Any], kind: np.dtype, none: Any) -> Any:
    """One value of the type from those that are there."""
    floats = kind.kind == "f"
    if rule == "count":
        return _held(len(given), kind)
    if not given:
        return math.nan if none is None else none
    if rule in ("min", "max"):
        return {"min": min, "max": max}[rule](given) + (0.0 if floats else 0)
    if rule == "majority":
        return min(set(given), key=lambda v: (-given.count(v), v)) + (0.0 if floats else 0)
    if not floats:
        total, n = sum(map(int, given)), len(given)
        return _held(total, kind) if rule == "sum" else (2 * total + n) // (2 * n)
    words = [sum(column) for column in zip(*map(_words, given), strict=True)]
    if rule == "sum":
        exact = float(Fraction(words[0] * UNIT + words[1], UNIT))
        return _held(exact, kind) if words[2] else math.nan if none is None else none
    mean = _float_mean(words[0], words[1], words[2], torch.from_numpy(np.zeros(0, kind)).dtype)
    return none if mean != mean and none is not None else mean


def _held(value: float, kind: np.dtype) -> float:
    """Raises OverflowError for a value that leaves the type."""
    if kind.kind == "b":
        low, high = 0.0, 1.0
    elif kind.kind == "f":
        low, high = -float(np.finfo(kind).max), float(np.finfo(kind).max)
    else:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
    if not low <= value <= high:
        raise OverflowError(f"{value} as {kind}")
    return value
