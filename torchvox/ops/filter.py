# SPDX-License-Identifier: Apache-2.0
"""The voxel-grid filter: keys of cells, groups of equal keys, sums that depend on no order."""

import math
import warnings
from typing import List, NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import Backend, KeyLayout, KeyOrder, Sequence

__all__ = [
    "DownsampledPoints",
    "VoxelGroups",
    "VoxelKeys",
    "voxel_cells",
    "voxel_downsample",
    "voxel_group",
    "voxel_keys",
    "voxel_mean",
    "voxel_mean_of_sums",
    "voxel_sum",
]


class VoxelKeys(NamedTuple):
    """Result of `voxel_keys`.

    keys: [N] int64, the cell of each point; -1 for points outside, not finite, or padding.
    counts: [B + 1, 3] int32, of the call and of each sample: points keyed, outside, not finite.
    """

    keys: Tensor
    counts: Tensor


class VoxelGroups(NamedTuple):
    """Result of `voxel_group`.

    row_keys: [N] int64; -1 in unused rows.
    offsets: [N + 1] int32, flat past the last row.
    perm: [N] int32; row r has the points perm[offsets[r] : offsets[r + 1]]; the tail is -1.
    point_voxel: [N] int32, the row of each point; -1: dropped.
    counts: [2] int32: rows, points in rows.
    """

    row_keys: Tensor
    offsets: Tensor
    perm: Tensor
    point_voxel: Tensor
    counts: Tensor


class DownsampledPoints(NamedTuple):
    """Result of `voxel_downsample`, with rows in use first.

    out: [N, C] in the dtype of the points, means; 0 in unused rows.
    indices: [N, 4] int32, (batch, z, y, x); -1 in unused rows.
    num_points: [N] int32, points of each row; 0 in unused rows.
    representative: [N] int32, the lowest point of the row; -1 in unused rows.
    point_voxel: [N] int32, the row of each point; -1: dropped.
    counts: [B + 1, 4] int32, of the call and of each sample: rows, points in rows, outside, not
        finite.
    """

    out: Tensor
    indices: Tensor
    num_points: Tensor
    representative: Tensor
    point_voxel: Tensor
    counts: Tensor


def voxel_keys(
    points: Tensor,
    voxel_size: Sequence[float],
    *,
    origin: Optional[Sequence[float]] = None,
    lower: Optional[Sequence[int]] = None,
    bits: int = -1,
    layout: KeyLayout = "morton",
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
) -> VoxelKeys:
    """The cell of each point as one int64.

    points: [N, C] float16, bfloat16, float32, float64 or int32, C >= 3; columns 0-2 are x, y, z.
    voxel_size: (x, y, z) in the unit of the points. origin: (x, y, z), None for zero; it is part of
        the result. A point lies in cell i = floor((p - origin) / size) of each axis: IEEE division
        in float32 with both rounded to it, or in float64 for float64 and int32 points.
    lower: the lowest cell (x, y, z) that keys name, from -2^53 to 2^53; None: -2^(bits - 1).
    bits: cells of an axis are below lower + 2^bits, 1 to 21; -1: as many as 63 bits have room for
        beside the samples, 21 for one.
    layout: "morton" interleaves the bits of i - lower, x highest in each triple; "zyx" is linear, x
        fastest. The sample stands above them, so that keys ascend sample by sample.
    batch_offsets, num_valid: as in `voxelize`.

    Returns `VoxelKeys`. Not differentiable.
    Raises ValueError (shapes, sizes, options) and TypeError (dtypes).
    """
    keys, counts = torch.ops.torchvox.voxel_keys(
        points,
        voxel_size,
        origin=origin,
        lower=lower,
        bits=bits,
        layout=layout,
        batch_offsets=batch_offsets,
        num_valid=num_valid,
    )
    return VoxelKeys(keys, counts)


def voxel_cells(
    keys: Tensor, bits: int, lower: Sequence[int], *, layout: KeyLayout = "morton"
) -> Tensor:
    """The inverse of `voxel_keys`: [R, 4] int32 (b, z, y, x) of keys [R] int64, -1 for key -1.

    bits, lower, layout: those of the keys; cells must fit int32, else ValueError.
    """
    return torch.ops.torchvox.voxel_cells(keys, bits, lower, layout=layout)


def voxel_group(
    keys: Tensor, *, key_bits: int = 63, order: KeyOrder = "first", backend: Backend = "auto"
) -> VoxelGroups:
    """The points of each distinct key.

    keys: [N] int64; below 0, or of more than key_bits bits: dropped.
    key_bits: 1 to 63; fewer bits cost less.
    order: rows by their "first" points, or by ascending "key".
    backend: "sort", "hash" or "auto", one answer.

    Returns `VoxelGroups`; the points of a row ascend. Not differentiable.
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    return VoxelGroups(
        *torch.ops.torchvox.voxel_group(keys, key_bits=key_bits, order=order, backend=backend)
    )


def voxel_sum(values: Tensor, offsets: Tensor, perm: Tensor) -> Tensor:
    """Exact sums over the rows that `voxel_group` lists, as int64 words that may be added.

    values: [N, C] float16, bfloat16, float32, float64, int32 or int64.
    offsets: [R + 1] int32, perm: [N] int32, of `voxel_group`.

    Returns [R, C] for integers: the sum, modulo 2^64. For floats [R, 3 * C]; column c has at 3 * c
    the sum of floor(f), then the sum of f - floor(f) in units of 2^-32 (each rounded half to even),
    then the number of finite values plus 2^32 for each of 2^31 or more, which adds nothing to the
    first two. NaN and infinities are left out. Only integers are added: any order, split or device
    gives the same bits. Not differentiable.
    Raises ValueError (shapes) and TypeError (dtypes).
    """
    return torch.ops.torchvox.voxel_sum(values, offsets, perm)


def voxel_mean(values: Tensor, offsets: Tensor, perm: Tensor) -> Tensor:
    """Means [R, C] of the rows of `voxel_sum`, in the dtype of the values.

    Integers: floor(mean + 1/2). Floats: the mean of the finite values in units of 2^-32, rounded
    once; NaN where a row has none, or one of 2^31 or more; 0 for rows without points.
    """
    return torch.ops.torchvox.voxel_mean(values, offsets, perm)


def voxel_mean_of_sums(sums: Tensor, num_points: Tensor, dtype: torch.dtype) -> Tensor:
    """Means [R, C] of words [R, W] of `voxel_sum`, as `voxel_mean` has them.

    num_points: [R] int32 or int64, points of each row. dtype: that of the values.
    """
    return torch.ops.torchvox.voxel_mean_of_sums(sums, num_points, dtype)


def _report_points_outside(
    points: Tensor,
    voxel_size: Sequence[float],
    origin: Optional[Sequence[float]],
    bits: int,
    counts: Tensor,
    trim: bool,
) -> None:
    """Warns or raises: the cells that the points need, and arguments that would do."""
    if bits < 0:
        bits = (63 - max(counts.shape[0] - 2, 0).bit_length()) // 3  # of a key, beside the samples
    xyz = points[:, :3].double()
    xyz = xyz[torch.isfinite(xyz).all(1)]
    shift = [0.0, 0.0, 0.0] if origin is None else origin
    cells = torch.floor((xyz - xyz.new_tensor(shift)) / xyz.new_tensor(voxel_size))
    low, high = cells.min(0).values, cells.max(0).values
    axis = int((high - low).argmax())
    span = float(high[axis] - low[axis]) + 1
    needed = f"points lie in cells {low.tolist()} to {high.tolist()} (x, y, z)"
    if span <= 1 << bits:
        remedy = "give the lowest of them as lower"
    else:
        xs = xyz[:, axis]
        size = float(xs.max() - xs.min()) / max((1 << bits) - 2, 1)  # float32 may round two away
        digits = 10.0 ** (math.floor(math.log10(size)) - 1)
        size = math.ceil(size / digits) * digits
        remedy = f"take voxel_size >= {size:.2g} on axis {'xyz'[axis]}, and the lowest as lower"
    message = (
        f"voxel_downsample: points must lie in 2^{bits} cells per axis from lower on, "
        f"got {needed}: {remedy}"
    )
    if trim:
        raise ValueError(message)
    warnings.warn(f"{message}; {int(counts[0, 2])} points are dropped", stacklevel=3)


def _is_readable(counts: Tensor) -> bool:
    """Whether counts hold numbers that can be read without a wait for the device."""
    if torch.jit.is_scripting():
        return False
    else:  # not compiled there
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        return counts.device.type == "cpu" and not traced and type(counts) is Tensor


def voxel_downsample(
    points: Tensor,
    voxel_size: Sequence[float],
    *,
    origin: Optional[Sequence[float]] = None,
    lower: Optional[Sequence[int]] = None,
    bits: int = -1,
    order: KeyOrder = "first",
    backend: Backend = "auto",
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    trim: bool = False,
) -> DownsampledPoints:
    """One point per voxel: the exact mean of every column.

    The arguments are those of `voxel_keys` and `voxel_group`; keys are in Morton layout, and cells
    must fit int32.
    trim: narrow to the rows in use, and refuse points outside the cells that keys name. Reads
        `counts`, the only host synchronization. Without it such points are dropped and counted, on
        the CPU with a warning.

    Returns `DownsampledPoints`, out as of `voxel_mean`. With one origin every mean lies in its own
    cell, and filtering the output again returns it, for coordinates that are multiples of 2^-32
    below 2^31. Not differentiable (`voxel_map` and `voxel_scatter` are).
    Raises ValueError (shapes, sizes, options) and TypeError (dtypes).

    >>> points = torch.tensor([[0.25, 0.25, 0.0], [0.75, 0.25, 0.0], [2.5, 0.5, 0.0]])
    >>> torchvox.voxel_downsample(points, [1, 1, 1], trim=True).out
    tensor([[0.5000, 0.2500, 0.0000],
            [2.5000, 0.5000, 0.0000]])
    """
    result = DownsampledPoints(
        *torch.ops.torchvox.voxel_downsample(
            points,
            voxel_size,
            origin=origin,
            lower=lower,
            bits=bits,
            order=order,
            backend=backend,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
        )
    )
    if not trim and not _is_readable(result.counts):
        return result
    counts: List[int] = result.counts[0].tolist()
    if counts[2] > 0:
        _report_points_outside(points, voxel_size, origin, bits, result.counts, trim)
    if not trim:
        return result
    rows = counts[0]
    return DownsampledPoints(
        result.out[:rows],
        result.indices[:rows],
        result.num_points[:rows],
        result.representative[:rows],
        result.point_voxel,
        result.counts,
    )
