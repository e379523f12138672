# SPDX-License-Identifier: Apache-2.0
"""Points to voxels, and reductions over voxels."""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor


class VoxelCSR(NamedTuple):
    offsets: Tensor
    perm: Tensor


def voxel_csr(point_voxel: Tensor, num_rows: int) -> VoxelCSR:
    """Lists the points of each voxel row, so that many reductions share one grouping.

    point_voxel: [N] int32, the row of each point; outside [0, num_rows): dropped.
    Returns (offsets [num_rows + 1] int32, perm [N] int32): row r owns the points
    perm[offsets[r]:offsets[r + 1]], in ascending order; the tail of perm is -1.
    Deterministic, no host synchronisation, not differentiable.
    Raises ValueError (shapes, ranges) and TypeError (dtypes).
    """
    offsets, perm = torch.ops.torchvox.voxel_csr(point_voxel, num_rows)
    return VoxelCSR(offsets, perm)


def voxel_scatter(
    feats: Tensor,
    point_voxel: Tensor,
    num_rows: int,
    reduce: str = "mean",
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
    Deterministic, CPU and CUDA give the same bits, no host synchronisation. Differentiable in
    feats.
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    return torch.ops.torchvox.voxel_scatter(
        feats, point_voxel, num_rows, reduce, offsets=offsets, perm=perm
    )
