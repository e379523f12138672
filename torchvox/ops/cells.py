# SPDX-License-Identifier: Apache-2.0
"""Integer cells: those of points, distinct ones, one point of each, their orders along curves.

What is made of other ops takes its options by position too, so that TorchScript compiles it.
"""

import math
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from torchvox.ops.annotations import CellOrder, Sequence
from torchvox.ops.random_bits import mixed
from torchvox.ops.voxel import rows_in_use

__all__ = [
    "GridSample",
    "SerializedCells",
    "UniqueCells",
    "grid_cells",
    "grid_sample",
    "serialize",
    "unique_cells",
]


class UniqueCells(NamedTuple):
    """Result of `unique_cells`.

    indices: [N, K] in the dtype of the cells, the distinct rows; -1 in unused rows.
    num_points: [N] int32, points of each row; 0 in unused rows.
    point_voxel: [N] int32, the row of each point; -1: dropped.
    offsets: [N + 1] int32.
    perm: [N] int32; row r has the points perm[offsets[r] : offsets[r + 1]].
    counts: [2] int32: rows, points in rows.
    """

    indices: Tensor
    num_points: Tensor
    point_voxel: Tensor
    offsets: Tensor
    perm: Tensor
    counts: Tensor


class GridSample(NamedTuple):
    """Result of `grid_sample`, with rows sample after sample.

    cells: [N, 3] int32, (x, y, z) from the lowest cell of the sample; -1 in unused rows.
    representative: [N] int32, the point taken; -1 in unused rows.
    num_points: [N] int32, points of each row; 0 in unused rows.
    point_voxel: [N] int32, the row of each point; -1: dropped.
    offsets: [N + 1] int32.
    perm: [N] int32; row r has the points perm[offsets[r] : offsets[r + 1]].
    batch_offsets: [B + 1] int64; sample b has the rows batch_offsets[b] to batch_offsets[b +
        1].
    counts: [3] int32: rows, points in rows, points in cells beyond the limit.
    """

    cells: Tensor
    representative: Tensor
    num_points: Tensor
    point_voxel: Tensor
    offsets: Tensor
    perm: Tensor
    batch_offsets: Tensor
    counts: Tensor


class SerializedCells(NamedTuple):
    """Result of `serialize`, for O orders.

    codes: [O, N] int64, places on the curve; -1 for padding and cells outside.
    order: [O, N] int64, the rows by their codes.
    inverse: [O, N] int64, the place of each row in `order`.
    """

    codes: Tensor
    order: Tensor
    inverse: Tensor


def unique_cells(
    cells: Tensor, bits: int = -1, order: CellOrder = "first", trim: bool = False
) -> UniqueCells:
    """The distinct rows of integers, and the points of each.

    cells: [N, K] int32 or int64, K 1 to 4. A row with a negative column is dropped.
    bits: columns are below 2^bits, 1 to 63; a row with a larger one is dropped too. -1: 31 for
        int32, 63 for int64, so every column is. As long as K * bits <= 63 there is one grouping;
        else one more for each column that has no room, and above 32 bits one for each column.
    order: rows by their "first" points, or "sorted" by column 0, then 1, ...
    trim: narrow to the rows in use. Reads `counts`, the only host synchronization.

    Returns `UniqueCells`, offsets and perm as of `voxel_group`. Not differentiable (`voxel_scatter`
    is).
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    indices, num_points, point_voxel, offsets, perm, counts = torch.ops.torchvox.unique_cells(
        cells, bits, order
    )
    if trim:
        rows = rows_in_use(counts[0], indices.shape[0])
        indices, num_points = indices.narrow(0, 0, rows), num_points.narrow(0, 0, rows)
    return UniqueCells(indices, num_points, point_voxel, offsets, perm, counts)


def _sample_bits(samples: int) -> int:
    bits = 0
    while (1 << bits) < samples:
        bits += 1
    return bits


def _samples(batch_offsets: Optional[Tensor]) -> int:
    return 1 if batch_offsets is None else batch_offsets.shape[0] - 1


def _check_size(op: str, grid_size: float) -> None:
    if not 0.0 < grid_size < math.inf:
        raise ValueError(f"{op}: grid_size must be finite and above 0, got {grid_size}")


def _from_lowest(keys: Tensor, samples: int) -> Tuple[Tensor, Tensor]:
    """Of keys of `voxel_keys`: the sample, or the number of samples, and the cell (x, y, z) counted
    from the sample's lowest, or -1."""
    bits = (63 - _sample_bits(samples)) // 3
    indices = torch.ops.torchvox.voxel_cells(keys, bits, [-(1 << (bits - 1))] * 3)
    none = indices[:, :1] < 0
    sample = torch.where(none, samples, indices[:, :1])
    cells = indices[:, 1:].flip(1)
    # Each sample has 64 places for its minimum, so that few threads meet at one.
    place = torch.arange(cells.shape[0], device=cells.device)[:, None] % 64
    places = cells.new_full((64 * (samples + 1), 3), 1 << 30)
    place = torch.add(place, sample, alpha=64)  # in int64
    places = places.scatter_reduce(0, place.expand(-1, 3), cells, "amin")
    lowest = places.view(-1, 64, 3).amin(1).index_select(0, sample[:, 0])
    return sample[:, 0], torch.where(none, -1, cells - lowest)


def grid_cells(
    points: Tensor,
    grid_size: float,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
) -> Tensor:
    """The cell (x, y, z) of each point, counted from the lowest cell of its sample: floor(p / size)
    less the minimum, as in Pointcept's GridSample.

    points, batch_offsets, num_valid: those of `voxel_keys`, as is the arithmetic.
    Returns [N, 3] int32; -1 for padding, points that are not finite, and those in cells beyond
    +-2^(bits - 1) of the world's zero, bits = 21 for one sample (`voxel_keys`). Points that require
    a gradient are refused, as by `voxel_keys`.
    Raises ValueError (shapes, sizes) and TypeError (dtypes).
    """
    _check_size("grid_cells", grid_size)
    keys, _ = torch.ops.torchvox.voxel_keys(
        points, [grid_size] * 3, batch_offsets=batch_offsets, num_valid=num_valid
    )
    return _from_lowest(keys, _samples(batch_offsets))[1]


def grid_sample(
    points: Tensor,
    grid_size: float,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    seed: Optional[int] = None,
    trim: bool = False,
) -> GridSample:
    """One point of each cell of each sample.

    points, grid_size, batch_offsets, num_valid: those of `grid_cells`, whose -1 are dropped.
    seed: None takes the first point of a cell; a number, of int64, a random one, which depends on
        it, on the row and on the number of points there, on no device.
    trim: narrow to the rows in use. Reads `counts`, the only host synchronization.

    Returns `GridSample`, cells as of `grid_cells`, offsets and perm as of `voxel_group`. Rows stand
    in the order of their first points, sample after sample. Points that require a gradient are
    refused.
    Raises ValueError (shapes, sizes) and TypeError (dtypes).
    """
    _check_size("grid_sample", grid_size)
    samples = _samples(batch_offsets)
    keys, key_counts = torch.ops.torchvox.voxel_keys(
        points, [grid_size] * 3, batch_offsets=batch_offsets, num_valid=num_valid
    )
    taken = _sample_bits(samples)
    row_keys, offsets, perm, point_voxel, counts = torch.ops.torchvox.voxel_group(
        keys, key_bits=(63 - taken) // 3 * 3 + taken
    )
    sample, cells = _from_lowest(row_keys, samples)
    num_points = offsets.diff()
    place = offsets[:-1]
    if seed is not None:
        if seed != int(seed):
            raise TypeError(f"grid_sample: seed must be an int, got {seed}")
        rows = torch.arange(1, place.shape[0] + 1, device=place.device)
        drawn = mixed(torch.full_like(rows, seed), rows)
        place = place + (drawn >> 1 & 0x7FFFFFFFFFFFFFFF) % num_points.clamp(min=1)
    first = perm.index_select(0, place.clamp(max=perm.shape[0] - 1))
    representative = torch.where(num_points > 0, first, -1)
    each = torch.arange(samples + 1, dtype=sample.dtype, device=sample.device)
    row_offsets = torch.searchsorted(sample, each)
    counts = torch.cat([counts, key_counts[0, 1:2]])
    if trim:
        used = rows_in_use(counts[0], cells.shape[0])
        cells, representative = cells.narrow(0, 0, used), representative.narrow(0, 0, used)
        num_points = num_points.narrow(0, 0, used)
    return GridSample(
        *(cells, representative, num_points, point_voxel, offsets, perm, row_offsets, counts)
    )


def serialize(
    cells: Tensor,
    order: Sequence[str],
    *,
    depth: int = 16,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    batch_index: Optional[Tensor] = None,
    grid_size: Optional[float] = None,
) -> SerializedCells:
    """Rows of cells in the order of space-filling curves, several curves in one call.

    cells: [N, 3] int32 or int64, x, y, z; with grid_size: points, whose `grid_cells` are taken.
    order: 1 to 4 of "z" (Morton, the bits of x highest), "hilbert", and both after an exchange of x
        and y, "z-trans" and "hilbert-trans".
    depth: cells are in [0, 2^depth), 1 to (63 - bits of the batch) / 3. Fewer bits cost less.
    batch_offsets, num_valid: as in `voxelize`.
    batch_index: [N] int32 or int64, the sample of each row, in their place; it costs more, since
        nothing says how many there are.

    Returns `SerializedCells`. A code is b << 3 * depth | place on the curve, -1 for padding and for
    cells outside the cube; the order is stable, with those of -1 last. Not differentiable. The
    codes of Pointcept's `encode`, and its Point.serialization where no two codes are equal.
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    if grid_size is not None:
        _check_size("serialize", grid_size)
        if batch_index is not None:
            raise ValueError("serialize: batch_index must be None with grid_size, got a tensor")
        cells = grid_cells(cells, grid_size, batch_offsets=batch_offsets, num_valid=num_valid)
    codes, by_code, inverse = torch.ops.torchvox.serialize(
        cells,
        order,
        depth=depth,
        batch_offsets=batch_offsets,
        num_valid=num_valid,
        batch_index=batch_index,
    )
    return SerializedCells(codes, by_code, inverse)
