# SPDX-License-Identifier: Apache-2.0
"""The voxel-grid filter: one key per point, groups of equal keys, exact sums and means.

Cells take IEEE operations on NumPy scalars; everything after them is Python integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.definition import define_op
from torchvox.reference.voxel_grid import sample_ranges

__all__ = [
    "voxel_cells", "voxel_downsample", "voxel_group", "voxel_keys", "voxel_mean",
    "voxel_mean_of_sums", "voxel_sum",
]  # fmt: skip

LARGE = 2.0**31  # the size from which on a float is not summed
UNIT = 1 << 32  # fractions are summed in units of 2^-32
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
KEYED, OUTSIDE, NON_FINITE = range(3)  # columns of the counts of voxel_keys


def frame(
    bits: int, lower: Sequence[int] | None, batch_offsets: Tensor | None
) -> tuple[int, list[int]]:
    """bits and lower with their defaults: a sample takes ceil(log2 B) of the 63 bits of a key."""
    samples = 1 if batch_offsets is None else len(batch_offsets) - 1
    if bits < 0:
        bits = (63 - max(samples - 1, 0).bit_length()) // 3
    return bits, [-(1 << (bits - 1))] * 3 if lower is None else list(lower)


def cell_steps(
    point: np.ndarray, origin: list[np.floating], size: list[np.floating], lower: list[int]
) -> list[int] | None:
    """floor((p - o) / v) - lower per axis, each operation rounded; None where that is infinite."""
    with np.errstate(all="ignore"):
        cell = [np.floor((p - o) / v) for p, o, v in zip(point, origin, size, strict=True)]
    if not all(np.isfinite(i) for i in cell):
        return None
    return [int(i) - first for i, first in zip(cell, lower, strict=True)]  # exact


def encode_cell(cell: Sequence[int], bits: int, layout: str) -> int:
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
    """The inverse of encode_cell."""
    if layout == "zyx":
        return [key >> shift & (1 << bits) - 1 for shift in (0, bits, 2 * bits)]
    cell = [0, 0, 0]
    for bit in range(3 * bits):
        cell[2 - bit % 3] |= (key >> bit & 1) << bit // 3
    return cell


@define_op
def voxel_keys(
    points: Tensor, voxel_size, *, origin, lower, bits: int, layout: str, batch_offsets, num_valid
) -> tuple[Tensor, Tensor]:
    """(keys [N] int64, counts [B + 1, 3] int32: keyed, outside, non-finite)."""
    bits, lower = frame(bits, lower, batch_offsets)
    real = np.float64 if points.dtype in (torch.float64, torch.int32) else np.float32
    xyz = points[:, :3].double().numpy().astype(real)  # exact
    size = [real(v) for v in voxel_size]
    start = [real(o) for o in origin or (0.0, 0.0, 0.0)]
    keys = [-1] * len(points)
    counts = [[0, 0, 0]]
    ranges = sample_ranges(len(points), batch_offsets, num_valid)
    for sample, (begin, end) in enumerate(ranges):
        counts.append([0, 0, 0])
        for i in range(begin, end):
            what = NON_FINITE
            if np.isfinite(xyz[i]).all():
                steps = cell_steps(xyz[i], start, size, lower)
                what = OUTSIDE
                if steps is not None and all(0 <= step < 1 << bits for step in steps):
                    what = KEYED
                    keys[i] = sample << 3 * bits | encode_cell(steps, bits, layout)
            counts[1 + sample][what] += 1
    counts[0] = [sum(column) for column in zip(*counts, strict=True)]
    return torch.tensor(keys, dtype=torch.int64), torch.tensor(counts, dtype=torch.int32)


@define_op
def voxel_cells(keys: Tensor, bits: int, lower: Sequence[int], *, layout: str) -> Tensor:
    """[R, 4] int32: sample, z, y, x of each key; -1 for a negative key."""
    rows = []
    for key in keys.tolist():
        low = _decode(key & (1 << 3 * bits) - 1, bits, layout)
        x, y, z = (i + first for i, first in zip(low, lower, strict=True))
        rows.append([key >> 3 * bits, z, y, x] if key >= 0 else [-1] * 4)
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 4).int()


@define_op
def voxel_group(keys: Tensor, *, key_bits: int, order: str, backend: str) -> tuple[Tensor, ...]:
    """(row_keys [N], offsets [N + 1], perm [N], point_voxel [N], counts [2]: rows, points)."""
    groups: dict[int, list[int]] = {}  # in order of first appearance
    for i, key in enumerate(keys.tolist()):
        if 0 <= key < 1 << key_bits:
            groups.setdefault(key, []).append(i)
    row_keys = sorted(groups) if order == "key" else list(groups)
    perm = [point for key in row_keys for point in groups[key]]
    ends = list(accumulate((len(groups[key]) for key in row_keys), initial=0))
    point_voxel = [-1] * len(keys)
    for row, key in enumerate(row_keys):
        for point in groups[key]:
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


def words_of(value: float) -> tuple[int, int, int]:
    """What one float adds to the three words of its column."""
    if not math.isfinite(value):
        return 0, 0, 0
    if abs(value) >= LARGE:
        return 0, 0, 1 + UNIT
    whole = math.floor(value)
    return whole, round((value - whole) * UNIT), 1  # in float64; half to even


@define_op
def voxel_sum(values: Tensor, offsets: Tensor, perm: Tensor) -> Tensor:
    """[R, W] int64: one word per column of integers, three per column of floats."""
    n = len(values)
    ends = [min(max(end, 0), n) for end in offsets.tolist()]
    points = perm.tolist()
    floats = values.is_floating_point()
    terms = [
        [word for v in row for word in (words_of(v) if floats else (v,))]
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


@define_op
def voxel_mean(values: Tensor, offsets: Tensor, perm: Tensor) -> Tensor:
    """[R, C] in the dtype of the values."""
    num_points = offsets.clamp(0, len(values)).diff().clamp(min=0)
    return voxel_mean_of_sums(voxel_sum(values, offsets, perm), num_points, values.dtype)


def _rounded(units: int, dtype: torch.dtype) -> float:
    """units * 2^-32 to the nearest value of the dtype, ties to even."""
    lowest = 8 if dtype == torch.float16 else 0  # 2^-24 is its smallest; the others go below 2^-32
    shift = max(abs(units).bit_length() - DIGITS[dtype], lowest, 0)
    return math.ldexp(round(Fraction(units, 1 << shift)) << shift, -32)


def float_mean(whole: int, fraction: int, count: int, dtype: torch.dtype) -> float:
    too_large, n = divmod(count, UNIT)
    if n == 0 or too_large:
        return math.nan
    return _rounded((whole * UNIT + fraction + n // 2) // n, dtype)


@define_op
def voxel_mean_of_sums(sums: Tensor, num_points: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, C]: floor(S / n + 1/2) of integers, the mean in units of 2^-32, rounded, of floats."""
    means: list[list[float]] = []
    columns = sums.size(1) // (3 if dtype.is_floating_point else 1)
    for words, n in zip(sums.tolist(), num_points.tolist(), strict=True):
        if n <= 0:
            means.append([0] * columns)
        elif dtype.is_floating_point:
            triples = zip(words[0::3], words[1::3], words[2::3], strict=True)
            means.append([float_mean(*triple, dtype) for triple in triples])
        else:
            means.append([(2 * s + n) // (2 * n) for s in words])
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return torch.tensor(means, dtype=wide).reshape(len(means), columns).to(dtype)


@define_op
def voxel_downsample(
    points: Tensor, voxel_size, *, lower, bits, order, backend, batch_offsets, **options
) -> tuple[Tensor, ...]:
    """(out, indices, num_points, representative, point_voxel, counts): the mean of each voxel.

    counts [B + 1, 4] int32: rows, points in rows, outside, non-finite.
    """
    bits, lower = frame(bits, lower, batch_offsets)
    frame_of_keys = {"lower": lower, "bits": bits, "batch_offsets": batch_offsets}
    keys, counts = voxel_keys(points, voxel_size, **frame_of_keys, **options)
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


def mix(z: int) -> int:
    """SplitMix64's finalizer, as a signed number."""
    z %= 1 << 64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z = (z ^ z >> shift) * factor % (1 << 64)
    return _wrap(z)
