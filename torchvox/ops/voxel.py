# SPDX-License-Identifier: Apache-2.0
"""Points to voxels, and reductions over voxels."""

import warnings
from typing import List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from torchvox.ops.annotations import Bounds, Finite, Overflow, Reduce, Reduction, RowOrder, Sequence

__all__ = [
    "VoxelCSR",
    "VoxelMap",
    "Voxels",
    "grid_size",
    "trim_voxels",
    "voxel_csr",
    "voxel_map",
    "voxel_scatter",
    "voxelize",
]

# The operator without its Python wrapper, for eager calls with default options: the shell and
# the options cost a seventh of a small call. Compilers look for the shell.
_voxelize = getattr(torch.ops.torchvox.voxelize, "_op", torch.ops.torchvox.voxelize)


class Voxels(NamedTuple):
    """Result of `voxelize`, with C rows for the voxels of all B samples.

    features: [C, P, F] points, or [C, F] one reduced row per voxel.
    indices: [C, 4] int32, (batch, z, y, x); -1 in unused rows.
    num_points: [C] int32, points stored in each voxel.
    point_voxel: [N] int32, the row of each point; -1: dropped.
    counts: [B + 1, 8] int32, of the call and of each sample: voxels kept, voxels found, points
        stored, points past max_points, in dropped voxels, out of range, not finite, 0.
    """

    features: Tensor
    indices: Tensor
    num_points: Tensor
    point_voxel: Tensor
    counts: Tensor


class VoxelMap(NamedTuple):
    """Result of `voxel_map`, with C rows for the voxels of all B samples.

    indices: [C, 4] int32, (batch, z, y, x); -1 in unused rows.
    num_points: [C] int32, points stored in each voxel.
    point_voxel: [N] int32, the row of each point; -1: dropped.
    point_slot: [N] int32, the slot of a stored point in its voxel, else -1.
    counts: [B + 1, 8] int32, as in `Voxels`.
    """

    indices: Tensor
    num_points: Tensor
    point_voxel: Tensor
    point_slot: Tensor
    counts: Tensor


def grid_size(
    voxel_size: Sequence[float], point_cloud_range: Sequence[float]
) -> Tuple[int, int, int]:
    """Cells (nx, ny, nz) of a grid: the one rule, so that no model rounds for itself.

    voxel_size: (x, y, z) in meters. point_cloud_range: (x0, y0, z0, x1, y1, z1) in meters. Both are
    rounded to float32; an axis has round((upper - lower) / size) cells in float32, half away from
    zero, as in the mmcv and spconv kernels (`torch.round` and `np.round` go half to even).
    Raises ValueError when an axis has none, or more than 2^24.
    """
    nx, ny, nz = torch.ops.torchvox.grid_size(voxel_size, point_cloud_range)
    return nx, ny, nz


def rows_in_use(count: Tensor, capacity: int) -> int:
    """Reads a count, as a bounded symbolic size where a program is traced."""
    if torch.jit.is_scripting():
        return int(count.item())
    rows = count.item()  # int() would pin a symbolic size
    torch._check(rows >= 0)
    torch._check(rows <= capacity)
    return rows


def trim_voxels(voxels: Voxels) -> Voxels:
    """The rows of `voxels` that are in use, as views that keep the whole buffers alive.

    Reads counts[0, 0], the only host synchronization. Under torch.export and
    torch.compile(fullgraph=True) it becomes a bounded symbolic size; without fullgraph the graph
    breaks here, unless torch._dynamo.config.capture_scalar_outputs is True.
    """
    rows = rows_in_use(voxels.counts[0, 0], voxels.indices.shape[0])
    return Voxels(
        voxels.features.narrow(0, 0, rows),
        voxels.indices.narrow(0, 0, rows),
        voxels.num_points.narrow(0, 0, rows),
        voxels.point_voxel,
        voxels.counts,
    )


def _report_overflow(counts: Tensor, on_overflow: Overflow) -> None:
    row: List[int] = counts[0].tolist()
    if row[1] <= row[0]:
        return
    message = (
        f"voxelize: kept {row[0]} of {row[1]} voxels, so {row[4]} points were dropped: "
        "raise max_voxels (-1 never overflows)"
    )
    if on_overflow == "raise":
        raise RuntimeError(message)
    warnings.warn(message, stacklevel=3)


def warn_about_large_grid(voxel_size: Sequence[float], point_cloud_range: Sequence[float]) -> None:
    # With every bound at most r from 0, an axis has at most 2 r / size cells, and rounding.
    # Asking grid_size costs a sixth of a small call.
    reach = max(max(point_cloud_range), -min(point_cloud_range))
    if torch.compiler.is_compiling() or reach < 2097152.0 * min(voxel_size):  # 2^21
        return
    cells = max(grid_size(voxel_size, point_cloud_range))
    if cells > 1 << 23:
        warnings.warn(
            f"voxelize: an axis has {cells} cells; above 2^23 float32 coordinates are too coarse "
            "for them: take larger voxels or a local origin",
            stacklevel=3,
        )


def voxelize(
    points: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_points: int = -1,
    max_voxels: int = -1,
    *,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    reduce: Reduce = "none",
    order: RowOrder = "first",
    bounds: Bounds = "grid",
    finite: Finite = "xyz",
    out_dtype: Optional[torch.dtype] = None,
    center_relative: bool = False,
    trim: bool = False,
    on_overflow: Overflow = "ignore",
) -> Voxels:
    """Group points into voxels: padded rows of points, or one reduced row per voxel.

    points: [N, F] float16, bfloat16, float32 or float64, F >= 3; columns 0-2 are x, y, z in meters.
        Non-finite and out-of-range points are dropped and counted. Half coordinates are widened
        before the cell is found; 1 to 6 % of the points of a real scan change cell by being half.
    voxel_size: (x, y, z) in meters. point_cloud_range: (x0, y0, z0, x1, y1, z1) in meters. A point
        lies in cell floor((p - lower) / size), computed in float32 (float64 for float64 points),
        and is kept when that is in [0, grid_size) on every axis.
    max_points: stored points per voxel, P, the first ones in input order; only they enter a
        reduction. -1: no limit, not with reduce="none".
    max_voxels: voxels per sample, V; -1: no limit. When a sample is full, points of new voxels are
        dropped and its voxels keep filling. Sorted orders keep the lowest cells, a spatial bias.
    batch_offsets: [B + 1] int32 or int64 on the points' device; sample b owns rows
        batch_offsets[b] to batch_offsets[b + 1]. None: one sample. Other rows are padding.
    num_valid: [B] int32 or int64 on the points' device; rows of a sample past it are padding.
    reduce: "none" pads; "mean", "sum", "max" and "min" reduce. Sums run in input order as a base-32
        cascade, in float32 (float64 for float64 points), rounded once to out_dtype. max and min
        propagate NaN as torch.amax does.
    order: rows by "first" point, by ascending (b, z, y, x) "zyx", or by ascending (b, x, y, z)
        "xyz". Points in a voxel are always in input order.
    bounds: "grid" tests the cell only; "range" also needs lower <= p < upper.
    finite: columns that must be finite, "xyz" or "all"; other points are dropped and counted.
    out_dtype: float16, bfloat16, float32 or float64; None: that of the points. A half mean of
        absolute coordinates is lossy (3 cm steps at 32-64 m); center_relative avoids it.
    center_relative: x, y, z of stored points become offsets from their voxel's center.
    trim: narrow to the rows in use (`trim_voxels`), views that keep the whole buffers alive.
    on_overflow: "ignore", or "warn" or "raise" when a sample had more than max_voxels voxels.
        trim and the latter two read `counts`, the only host synchronizations.

    Returns `Voxels`, C = B * V, or N for V = -1; point_voxel names the row also of points past
    max_points. Used rows come first, sample after sample; in the rest indices are -1 and everything
    else 0. Differentiable in points (every column), not twice; the choice of the cell has no
    gradient.
    Raises ValueError (shapes, ranges, options), TypeError (dtypes) and, for on_overflow="raise",
    RuntimeError. Semantics of mmcv's deterministic Voxelization where both are defined.

    >>> points = torch.tensor([[0.2, 0.2, 0.0], [0.4, 0.6, 0.0], [2.5, 0.5, 0.0]])
    >>> torchvox.voxelize(points, [1, 1, 1], [0, 0, -1, 4, 4, 1], reduce="mean", trim=True).features
    tensor([[0.3000, 0.4000, 0.0000],
            [2.5000, 0.5000, 0.0000]])
    """
    if on_overflow not in ("ignore", "warn", "raise"):
        raise ValueError(
            f"voxelize: on_overflow must be 'ignore', 'warn' or 'raise', got '{on_overflow}'"
        )
    if (
        not torch.compiler.is_compiling()
        and batch_offsets is None
        and num_valid is None
        and order == "first"
        and bounds == "grid"
        and finite == "xyz"
        and out_dtype is None
        and not center_relative
    ):
        voxels = Voxels(
            *_voxelize(points, voxel_size, point_cloud_range, max_points, max_voxels, reduce=reduce)
        )
    else:
        voxels = Voxels(
            *torch.ops.torchvox.voxelize(
                points,
                voxel_size,
                point_cloud_range,
                max_points,
                max_voxels,
                batch_offsets=batch_offsets,
                num_valid=num_valid,
                reduce=reduce,
                order=order,
                bounds=bounds,
                finite=finite,
                out_dtype=out_dtype,
                center_relative=center_relative,
            )
        )
    warn_about_large_grid(voxel_size, point_cloud_range)
    if on_overflow != "ignore":
        _report_overflow(voxels.counts, on_overflow)
    return trim_voxels(voxels) if trim else voxels


def voxel_map(
    points: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_points: int = -1,
    max_voxels: int = -1,
    *,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    order: RowOrder = "first",
    bounds: Bounds = "grid",
    finite: Finite = "xyz",
) -> VoxelMap:
    """`voxelize` without features: where each point goes.

    The arguments are those of `voxelize`. Returns `VoxelMap`. Not differentiable.
    """
    voxels = VoxelMap(
        *torch.ops.torchvox.voxel_map(
            points,
            voxel_size,
            point_cloud_range,
            max_points,
            max_voxels,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
            order=order,
            bounds=bounds,
            finite=finite,
        )
    )
    warn_about_large_grid(voxel_size, point_cloud_range)
    return voxels


class VoxelCSR(NamedTuple):
    """Result of `voxel_csr`: the points of each row.

    offsets: [num_rows + 1] int32.
    perm: [N] int32; row r owns the points perm[offsets[r] : offsets[r + 1]]; the tail is -1.
    """

    offsets: Tensor
    perm: Tensor


def voxel_csr(point_voxel: Tensor, num_rows: int) -> VoxelCSR:
    """Lists the points of each voxel row, so that many reductions share one grouping.

    point_voxel: [N] int32, the row of each point; outside [0, num_rows): dropped.
    Returns `VoxelCSR`, the points of a row in ascending order. Not differentiable.
    Raises ValueError (shapes, ranges) and TypeError (dtypes).
    """
    offsets, perm = torch.ops.torchvox.voxel_csr(point_voxel, num_rows)
    return VoxelCSR(offsets, perm)


def voxel_scatter(
    feats: Tensor,
    point_voxel: Tensor,
    num_rows: int,
    reduce: Reduction = "mean",
    *,
    offsets: Optional[Tensor] = None,
    perm: Optional[Tensor] = None,
) -> Tuple[Tensor, Tensor]:
    """Reduces point features over the rows of a voxel map.

    feats: [N, C] float16, bfloat16, float32 or float64. point_voxel: [N] int32, the row of each
        point; outside [0, num_rows): dropped.
    reduce: "mean", "sum", "max" or "min". Sums run in point order as a base-32 cascade, in float32
        (float64 for float64), rounded once. max and min propagate NaN as torch.amax does; among
        equals, and -0.0 equals +0.0, the lowest point wins.
    offsets, perm: from `voxel_csr` of the same point_voxel, to save the grouping; both or none.

    Returns (out [num_rows, C] in the dtype of feats, arg): arg is [num_rows, C] int32, the winning
    point, for max and min, and [0] for mean and sum. A row without points is 0, its arg -1.
    Differentiable in feats.
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    return torch.ops.torchvox.voxel_scatter(
        feats, point_voxel, num_rows, reduce, offsets=offsets, perm=perm
    )
