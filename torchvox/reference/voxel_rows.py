# SPDX-License-Identifier: Apache-2.0
"""voxel_csr and voxel_scatter: points by row, and reductions over the points of a row."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import from_working, spread_gradient, to_working
from torchvox.reference.definition import define_op
from torchvox.reference.segments import segment_reduce

__all__ = ["voxel_csr", "voxel_scatter", "voxel_scatter_backward"]


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
    point_voxel: Tensor,
    num_rows: int,
    reduce: str = "mean",
    *,
    offsets: Tensor | None = None,
    perm: Tensor | None = None,
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
