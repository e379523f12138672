# SPDX-License-Identifier: Apache-2.0
"""Integer cells in Python integers: codes bit by bit, dictionaries of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import xor

import torch
from torch import Tensor

from torchvox.reference.definition import define_op
from torchvox.reference.filter import frame, mix, voxel_cells, voxel_group, voxel_keys
from torchvox.reference.voxel_grid import sample_ranges

__all__ = ["grid_cells", "grid_sample", "serialize", "unique_cells"]


def _place(cell: Sequence[int], depth: int, curve: str) -> int:
    """The place of a cell on a curve."""
    x, y, z = cell
    axes = (y, x, z) if curve.endswith("-trans") else (x, y, z)
    bits = [[axis >> level & 1 for level in reversed(range(depth))] for axis in axes]
    first = bits[0]
    hilbert = curve.startswith("hilbert")
    for level in range(depth if hilbert else 0):
        for other in bits:
            for below in range(level + 1, depth):
                if other[level]:
                    first[below] ^= 1
                else:
                    first[below], other[below] = other[below], first[below]
    digits = [axis[level] for level in range(depth) for axis in bits]
    if hilbert:  # a Gray code so far
        digits = list(accumulate(digits, xor))
    return int("".join(map(str, digits)), 2)


@define_op
def serialize(
    cells: Tensor, order: Sequence[str], *, depth: int, batch_offsets, num_valid, batch_index
) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, order, inverse), [O, N] int64 each."""
    n = len(cells)
    batch = [-1] * n if batch_index is None else batch_index.tolist()
    if batch_index is None:
        for b, (begin, end) in enumerate(sample_ranges(n, batch_offsets, num_valid)):
            batch[begin:end] = [b] * (end - begin)
    codes, rows, places = [], [], []
    for curve in order:
        of_rows = [-1] * n
        for i, cell in enumerate(cells.tolist()):
            if 0 <= batch[i] < 1 << 63 - 3 * depth and all(0 <= c < 1 << depth for c in cell):
                of_rows[i] = batch[i] << 3 * depth | _place(cell, depth, curve)
        by_code = sorted(range(n), key=lambda i: of_rows[i] % (1 << 64))  # -1 last
        codes.append(of_rows)
        rows.append(by_code)
        places.append(sorted(range(n), key=by_code.__getitem__))
    shape = (len(order), n)
    return (
        torch.tensor(codes, dtype=torch.int64).reshape(shape),
        torch.tensor(rows, dtype=torch.int64).reshape(shape),
        torch.tensor(places, dtype=torch.int64).reshape(shape),
    )


@define_op
def unique_cells(cells: Tensor, bits: int, order: str) -> tuple[Tensor, ...]:
    """(indices, num_points, point_voxel, offsets, perm, counts)."""
    limit = 1 << (63 if bits < 0 else bits)
    points = [tuple(row) for row in cells.tolist()]
    first_seen = dict.fromkeys(row for row in points if all(0 <= i < limit for i in row))
    rows = sorted(first_seen) if order == "sorted" else list(first_seen)
    number = {row: r for r, row in enumerate(rows)}
    keys = torch.tensor([number.get(row, -1) for row in points], dtype=torch.int64)
    _, offsets, perm, point_voxel, counts = voxel_group(keys, order="key")
    indices = torch.full_like(cells, -1)
    if rows:
        indices[: len(rows)] = torch.tensor(rows, dtype=torch.int64).to(cells.dtype)
    return indices, offsets.diff(), point_voxel, offsets, perm, counts


def _sample_cells(
    points: Tensor, grid_size: float, batch_offsets: Tensor | None, num_valid: Tensor | None
) -> tuple[Tensor, int]:
    """(b, x, y, z) [N, 4] int32, each from its sample's lowest, or -1; points beyond the limit."""
    samples = 1 if batch_offsets is None else len(batch_offsets) - 1
    bits, lower = frame(-1, None, batch_offsets)
    keys, counts = voxel_keys(
        points, [grid_size] * 3, batch_offsets=batch_offsets, num_valid=num_valid
    )
    cells = voxel_cells(keys, bits, lower)[:, [0, 3, 2, 1]]
    for b in range(samples):
        own = cells[:, 0] == b
        if own.any():
            cells[own, 1:] -= cells[own, 1:].amin(0)
    return cells, int(counts[0, 1])


def grid_cells(
    points: Tensor,
    grid_size: float,
    *,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
) -> Tensor:
    """(x, y, z) [N, 3] int32."""
    return _sample_cells(points, grid_size, batch_offsets, num_valid)[0][:, 1:]


def grid_sample(
    points: Tensor,
    grid_size: float,
    *,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
    seed: int | None = None,
) -> tuple[Tensor, ...]:
    """(cells, representative, num_points, point_voxel, offsets, perm, batch_offsets, counts)."""
    cells, beyond = _sample_cells(points, grid_size, batch_offsets, num_valid)
    indices, num_points, *groups, counts = unique_cells(cells)
    point_voxel, offsets, perm = groups
    representative = torch.full_like(num_points, -1)
    for r in range(int(counts[0])):
        drawn = 0
        if seed is not None:
            drawn = mix(mix(seed) + (r + 1) * 0x9E3779B97F4A7C15) % (1 << 64) >> 1
        representative[r] = perm[offsets[r] + drawn % int(num_points[r])]
    samples = 1 if batch_offsets is None else len(batch_offsets) - 1
    owners = [b for b in indices[:, 0].tolist() if b >= 0]
    row_offsets = [sum(b < end for b in owners) for end in range(samples + 1)]
    counts = torch.cat([counts, torch.tensor([beyond], dtype=torch.int32)])
    return (
        *(indices[:, 1:], representative, num_points, point_voxel, offsets, perm),
        *(torch.tensor(row_offsets), counts),
    )
