# SPDX-License-Identifier: Apache-2.0
"""The grid of the voxel ops: its size, and the cell of a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchvox.reference.checks import fail

__all__ = ["grid_size"]

MAX_CELLS_PER_AXIS = 2**24  # float32 names no more cells than this


@dataclass(frozen=True)
class VoxelGrid:
    """lo, hi and size are float32 (x, y, z); cells is (nx, ny, nz)."""

    lo: np.ndarray
    hi: np.ndarray
    size: np.ndarray
    cells: tuple[int, int, int]

    @staticmethod
    def make(op: str, voxel_size: Sequence[float], point_cloud_range: Sequence[float]) -> VoxelGrid:
        sizes, bounds = list(voxel_size), list(point_cloud_range)
        if len(sizes) != 3:
            fail(ValueError, op, "voxel_size must have 3 values (x, y, z)", sizes)
        if len(bounds) != 6:
            words = "point_cloud_range must have 6 values (x0, y0, z0, x1, y1, z1)"
            fail(ValueError, op, words, bounds)
        with np.errstate(all="ignore"):
            size, lo, hi = (
                np.array(values, np.float64).astype(np.float32)
                for values in (sizes, bounds[:3], bounds[3:])
            )
            if not (np.isfinite(size).all() and (size > 0).all()):
                fail(ValueError, op, "voxel_size must be positive and finite", sizes)
            quotient = (hi - lo) / size  # two float32 operations
            if not np.isfinite(quotient).all():
                fail(ValueError, op, "point_cloud_range must be finite", bounds)
        # Round half away from zero, exactly: the fraction of a float32 is a float32.
        whole = np.trunc(quotient)
        cells = [int(w) + int(q - w >= 0.5) for q, w in zip(quotient, whole, strict=True)]
        if min(cells) < 1:
            words = "point_cloud_range must hold at least one voxel along each axis"
            fail(ValueError, op, words, f"a grid of {cells} from {bounds} and {sizes}")
        if max(cells) > MAX_CELLS_PER_AXIS:
            words = f"voxel_size must give at most {MAX_CELLS_PER_AXIS} cells along an axis"
            fail(ValueError, op, words, f"a grid of {cells}")
        return VoxelGrid(lo, hi, size, (cells[0], cells[1], cells[2]))

    def decode(self, xyz: np.ndarray, bounds: str) -> tuple[np.ndarray, np.ndarray]:
        """Cell (N, 3) int64 in x, y, z and whether the point is in range, for finite points.

        All operations are in the precision of xyz; lo, hi and size are widened float32 values.
        """
        lo, hi, size = (a.astype(xyz.dtype) for a in (self.lo, self.hi, self.size))
        with np.errstate(all="ignore"):
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


def grid_size(
    voxel_size: Sequence[float], point_cloud_range: Sequence[float]
) -> tuple[int, int, int]:
    """Number of cells (nx, ny, nz), rounded half away from zero."""
    return VoxelGrid.make("grid_size", voxel_size, point_cloud_range).cells
