# SPDX-License-Identifier: Apache-2.0
"""segment_reduce, written as its definition: one segment after another; and voxel_csr and
voxel_scatter, whose segments are the points of a row."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import (
    cascade_sum,
    extreme,
    from_working,
    spread_gradient,
    to_working,
)
from torchvox.reference.definition import define_op

__all__ = ["segment_reduce", "voxel_csr", "voxel_scatter", "voxel_scatter_backward"]


@define_op
def segment_reduce(
    src: Tensor, offsets: Tensor, reduce: str, *, index: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(out [R, C], arg): arg is [R, C] int32 for max and min, else of shape [0]."""
    values = to_working(src)
    named = np.arange(len(values)) if index is None else index.numpy()
    bounds = offsets.clamp(0, len(named)).tolist()
    shape = (len(bounds) - 1, values.shape[1])
    out = np.zeros(shape, values.dtype)
    arg = np.full(shape if reduce in ("max", "min") else (0,), -1, np.int32)
    for s, (begin, end) in enumerate(pairwise(bounds)):
        rows = named[begin:end]
        inside = (rows >= 0) & (rows < len(values))
        if reduce in ("sum", "mean"):
            listed = np.zeros((len(rows), shape[1]), values.dtype)  # places of rows outside add 0
            listed[inside] = values[rows[inside]]
            out[s] = cascade_sum(listed)
            if reduce == "mean" and inside.any():
                out[s] /= values.dtype.type(inside.sum())
        elif inside.any():
            candidates = np.unique(rows[inside])
            out[s], rank = extreme(values[candidates], largest=reduce == "max")
            arg[s] = candidates[rank]
    return from_working(out, src.dtype), torch.from_numpy(arg)


@define_op
def voxel_csr(point_voxel: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """(offsets [num_rows + 1], perm [N]), int32: row r holds perm[offsets[r]:offsets[r + 1]].

    The points of a row ascend; a point with a row outside [0, num_rows) is in none.
    """
    rows: list[list[int]] = [[] for _ in range(num_rows)]
    for i, row in enumerate(point_voxel.tolist()):
        if 0 <= row < num_rows:
            rows[row].append(i)
    offsets = [0, *accumulate(map(len, rows))]
    perm = [i for members in rows for i in members]
    perm += [-1] * (len(point_voxel) - len(perm))
    return torch.tensor(offsets, dtype=torch.int32), torch.tensor(perm, dtype=torch.int32)


@define_op
def voxel_scatter(
    feats: Tensor, point_voxel: Tensor, num_rows: int, reduce: str, *, offsets, perm
) -> tuple[Tensor, Tensor]:
    """(out [num_rows, C], arg): arg is [num_rows, C] int32 for max and min, else of shape [0]."""
    if offsets is None or perm is None:
        offsets, perm = voxel_csr(point_voxel, num_rows)
    return segment_reduce(feats, offsets, reduce, index=perm)


@np.errstate(all="ignore")
def voxel_scatter_backward(
    grad_out: Tensor,
    feats: Tensor,
    point_voxel,
    num_rows,
    reduce="mean",
    *,
    offsets=None,
    perm=None,
) -> Tensor:
    """Gradient of feats, given that of out: sum, mean over the count, or only the extreme."""
    if offsets is None or perm is None:
        offsets, perm = voxel_csr(point_voxel, num_rows)
    values = to_working(feats)
    incoming = to_working(grad_out).astype(values.dtype)
    grad = np.zeros_like(values)
    for row, (begin, end) in enumerate(pairwise(offsets.tolist())):
        members = perm[begin:end].numpy()
        if len(members):
            grad[members] = spread_gradient(incoming[row], values[members], reduce)
    return from_working(grad, feats.dtype)
