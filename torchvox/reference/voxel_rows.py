# SPDX-License-Identifier: Apache-2.0
"""voxel_csr and voxel_scatter: points by row, and reductions over the points of a row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import (
    FLOAT_DTYPES,
    extreme,
    from_working,
    reduce_values,
    spread_gradient,
    to_working,
)
from torchvox.reference.checks import check_index_tensor, fail

__all__ = ["voxel_csr", "voxel_scatter", "voxel_scatter_backward"]

SCATTER_REDUCTIONS = ("mean", "max", "min", "sum")


def _check_point_voxel(op: str, point_voxel: Tensor, num_rows: int) -> None:
    check_index_tensor(op, "point_voxel", point_voxel)
    if point_voxel.dim() != 1:
        fail(ValueError, op, "point_voxel must be [N]", list(point_voxel.shape))
    if num_rows < 0:
        fail(ValueError, op, "num_rows must be >= 0", num_rows)


def _points_of_rows(point_voxel: Tensor, num_rows: int) -> list[list[int]]:
    """The points of each row, ascending; a point with a row outside [0, num_rows) is dropped."""
    rows: list[list[int]] = [[] for _ in range(num_rows)]
    for i, row in enumerate(point_voxel.tolist()):
        if 0 <= row < num_rows:
            rows[row].append(i)
    return rows


def voxel_csr(point_voxel: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """(offsets [num_rows + 1], perm [N]), int32: row r holds perm[offsets[r]:offsets[r + 1]]."""
    _check_point_voxel("voxel_csr", point_voxel, num_rows)
    rows = _points_of_rows(point_voxel, num_rows)
    offsets = [0]
    perm: list[int] = []
    for members in rows:
        perm += members
        offsets.append(len(perm))
    perm += [-1] * (len(point_voxel) - len(perm))
    return torch.tensor(offsets, dtype=torch.int32), torch.tensor(perm, dtype=torch.int32)


def _scatter_rows(
    feats: Tensor,
    point_voxel: Tensor,
    num_rows: int,
    reduce: str,
    offsets: Tensor | None,
    perm: Tensor | None,
) -> list[list[int]]:
    op = "voxel_scatter"
    if feats.dtype not in FLOAT_DTYPES:
        fail(TypeError, op, "feats must be float16, bfloat16, float32 or float64", feats.dtype)
    if feats.dim() != 2:
        fail(ValueError, op, "feats must be [N, C]", list(feats.shape))
    _check_point_voxel(op, point_voxel, num_rows)
    if len(point_voxel) != len(feats):
        fail(ValueError, op, f"point_voxel must be [{len(feats)}]", list(point_voxel.shape))
    if reduce not in SCATTER_REDUCTIONS:
        fail(ValueError, op, f"reduce must be one of {SCATTER_REDUCTIONS}", repr(reduce))
    if offsets is None and perm is None:
        return _points_of_rows(point_voxel, num_rows)
    if offsets is None or perm is None:
        fail(ValueError, op, "offsets and perm must be given together", "one of them")
    for name, tensor, length in (("offsets", offsets, num_rows + 1), ("perm", perm, len(feats))):
        if tensor.dtype != torch.int32:
            fail(TypeError, op, f"{name} must be int32", tensor.dtype)
        if list(tensor.shape) != [length]:
            fail(ValueError, op, f"{name} must be [{length}]", list(tensor.shape))
    ends = offsets.tolist()
    points = perm.tolist()
    return [points[begin:end] for begin, end in pairwise(ends)]


def voxel_scatter(
    feats: Tensor,
    point_voxel: Tensor,
    num_rows: int,
    reduce: str = "mean",
    *,
    offsets: Tensor | None = None,
    perm: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out [num_rows, C], arg): arg is [num_rows, C] int32 for max and min, else of shape [0]."""
    rows = _scatter_rows(feats, point_voxel, num_rows, reduce, offsets, perm)
    values = to_working(feats)
    out = np.zeros((num_rows, feats.shape[1]), values.dtype)
    ordered = reduce in ("max", "min")
    arg = np.full((num_rows, feats.shape[1]) if ordered else (0,), -1, np.int32)
    for row, members in enumerate(rows):
        if members:
            out[row] = reduce_values(values[members], reduce)
            if ordered:
                _, rank = extreme(values[members], largest=reduce == "max")
                arg[row] = np.array(members)[rank]
    return from_working(out, feats.dtype), torch.from_numpy(arg)


def voxel_scatter_backward(
    grad_out: Tensor,
    feats: Tensor,
    point_voxel: Tensor,
    num_rows: int,
    reduce: str = "mean",
    *,
    offsets: Tensor | None = None,
    perm: Tensor | None = None,
) -> Tensor:
    """Gradient of feats, given that of out: sum, mean over the count, or only the extreme."""
    rows = _scatter_rows(feats, point_voxel, num_rows, reduce, offsets, perm)
    values = to_working(feats)
    incoming = to_working(grad_out).astype(values.dtype)
    grad = np.zeros_like(values)
    for row, members in enumerate(rows):
        if members:
            grad[members] = spread_gradient(incoming[row], values[members], reduce)
    return from_working(grad, feats.dtype)
