# SPDX-License-Identifier: Apache-2.0
"""The grid of the voxel ops: its size, and the cell of a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchvox.reference.definition import define_op

__all__ = ["grid_size"]


@dataclass(frozen=True)
class VoxelGrid:
    """lo, hi and size are float32 (x, y, z); cells is (nx, ny, nz)."""

    lo: np.ndarray
    hi: np.ndarray
    size: np.ndarray
    cells: tuple[int, int, int]

    @staticmethod
    def make(voxel_size: Sequence[float], point_cloud_range: Sequence[float]) -> VoxelGrid:
        size, lo, hi = (
            np.array(values, np.float64).astype(np.float32)
            for values in (voxel_size, point_cloud_range[:3], point_cloud_range[3:])
        )
        quotient = (hi - lo) / size  # two float32 operations
        # Round half away from zero, exactly: the fraction of a float32 is a float32.
        whole = np.trunc(quotient)
        nx, ny, nz = (int(w) + int(q - w >= 0.5) for q, w in zip(quotient, whole, strict=True))
        return VoxelGrid(lo, hi, size, (nx, ny, nz))

    def decode(self, xyz: np.ndarray, bounds: str) -> tuple[np.ndarray, np.ndarray]:
        """Cell (N, 3) int64 in x, y, z and whether the point is in range, for finite points.

        All operations are in the precision of xyz; lo, hi and size are widened float32 values.
        """
        lo, hi, size = (a.astype(xyz.dtype) for a in (self.lo, self.hi, self.size))
        q = np.floor((xyz - lo) / size)
        kept = (q >= 0) & (q < np.array(self.cells, xyz.dtype))  # before becoming an integer
        if bounds == "range":
            kept &= (xyz >= lo) & (xyz < hi)
        inside = kept.all(axis=1)
        return np.where(inside[:, None], q, 0).astype(np.int64), inside

    def center(self, cell_xyz: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """lo + (i + 0.5) * size, each operation rounded."""
        half = np.asarray(cell_xyz).astype(dtype) + dtype.type(0.5)
        return self.lo.astype(dtype) + half * self.size.astype(dtype)


@define_op
def grid_size(
    voxel_size: Sequence[float], point_cloud_range: Sequence[float]
) -> tuple[int, int, int]:
    """Number of cells (nx, ny, nz), rounded half away from zero."""
    return VoxelGrid.make(voxel_size, point_cloud_range).cells
