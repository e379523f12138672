# SPDX-License-Identifier: Apache-2.0
"""Voxel modules."""

from numbers import Integral
from typing import List, Optional, Sequence

import torch
from torch import Tensor, nn

from torchvox._util.errors import expect
from torchvox.ops.annotations import Bounds, Finite, Reduce, RowOrder
from torchvox.ops.voxel import Voxels, trim_voxels, warn_about_large_grid


class Voxelize(nn.Module):
    """`torchvox.voxelize` with its grid and caps fixed; scriptable.

    forward(points [N, F], batch_offsets [B + 1] or None, num_valid [B] or None) returns `Voxels`.
    With trim=True it narrows to the rows in use, which synchronizes with the host. max_voxels may
    be (cap in training, cap in evaluation), chosen by `self.training`.
    """

    out_dtype: Optional[torch.dtype]

    def __init__(
        self,
        voxel_size: Sequence[float],
        point_cloud_range: Sequence[float],
        max_points: int = -1,
        max_voxels: int | Sequence[int] = -1,
        *,
        reduce: Reduce = "mean",
        order: RowOrder = "first",
        bounds: Bounds = "grid",
        finite: Finite = "xyz",
        out_dtype: Optional[torch.dtype] = None,
        center_relative: bool = False,
        trim: bool = False,
    ) -> None:
        super().__init__()
        self.voxel_size = [float(v) for v in voxel_size]
        self.point_cloud_range = [float(v) for v in point_cloud_range]
        self.max_points = int(max_points)
        caps = [max_voxels] * 2 if isinstance(max_voxels, (int, Integral)) else list(max_voxels)
        rule = "Voxelize: max_voxels must be one cap or (training, evaluation)"
        expect(len(caps) == 2, rule, max_voxels)
        self.max_voxels_train, self.max_voxels_eval = (int(cap) for cap in caps)
        self.reduce = reduce
        self.order = order
        self.bounds = bounds
        self.finite = finite
        self.out_dtype = out_dtype
        self.center_relative = bool(center_relative)
        self.trim = bool(trim)
        warn_about_large_grid(self.voxel_size, self.point_cloud_range)

    @property
    def grid_size(self) -> List[int]:
        """Cells (nx, ny, nz)."""
        return torch.ops.torchvox.grid_size(self.voxel_size, self.point_cloud_range)

    def forward(
        self,
        points: Tensor,
        batch_offsets: Optional[Tensor] = None,
        num_valid: Optional[Tensor] = None,
    ) -> Voxels:
        features, indices, num_points, point_voxel, counts = torch.ops.torchvox.voxelize(
            points,
            self.voxel_size,
            self.point_cloud_range,
            self.max_points,
            self.max_voxels_train if self.training else self.max_voxels_eval,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
            reduce=self.reduce,
            order=self.order,
            bounds=self.bounds,
            finite=self.finite,
            out_dtype=self.out_dtype,
            center_relative=self.center_relative,
        )
        voxels = Voxels(features, indices, num_points, point_voxel, counts)
        return trim_voxels(voxels) if self.trim else voxels

    def extra_repr(self) -> str:
        return (
            f"voxel_size={self.voxel_size}, range={self.point_cloud_range}, "
            f"max_points={self.max_points}, "
            f"max_voxels=({self.max_voxels_train}, {self.max_voxels_eval}), "
            f"reduce={self.reduce!r}, order={self.order!r}"
        )
