# SPDX-License-Identifier: Apache-2.0
"""The raster of the BEV reference: its arguments, and which points fall into which cell."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .arithmetic import to_working

F32 = np.float32
USED, OUT_OF_RANGE, NON_FINITE = 1, 2, 3  # also the columns of counts


@dataclass(frozen=True)
class Grid:
    """The raster: bounds and cell size in meters, rounded to float32 once for every dtype."""

    lo: np.ndarray  # [3] x, y, z
    hi: np.ndarray  # [3]
    res: np.ndarray  # [2] meters per cell along x and y
    nx: int
    ny: int
    orientation: str

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the output."""
        return (self.nx, self.ny) if self.orientation == "image" else (self.ny, self.nx)

    def pixel(self, ix: np.ndarray, iy: np.ndarray) -> np.ndarray:
        """Flat output position of cell (ix, iy)."""
        row, col = {
            "grid": (iy, ix),
            "image": (self.nx - 1 - ix, self.ny - 1 - iy),
            "north_up": (self.ny - 1 - iy, ix),
        }[self.orientation]
        return row * self.shape[1] + col


def classify(points: Tensor, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Outcome (USED, OUT_OF_RANGE, NON_FINITE) and flat pixel (-1 if unused) of every point."""
    xyz = to_working(points[:, :3])  # [N, 3] float32, or float64 for float64 points
    t = xyz.dtype.type
    finite = np.isfinite(xyz).all(1)
    inside = ((grid.lo.astype(t) <= xyz) & (xyz < grid.hi.astype(t))).all(1)
    cell = np.floor((xyz[:, :2] - grid.lo[:2].astype(t)) / grid.res.astype(t))
    n = np.array([grid.nx, grid.ny], t)
    used = finite & inside & ((cell >= 0) & (cell < n)).all(1)
    cell = np.where(used[:, None], cell, 0).astype(np.int64)
    outcome = np.where(used, USED, np.where(finite, OUT_OF_RANGE, NON_FINITE))
    return outcome, np.where(used, grid.pixel(cell[:, 0], cell[:, 1]), -1)


def cells_of(
    points: Tensor, rows: tuple[int, int], grid: Grid, counts: np.ndarray
) -> dict[int, np.ndarray]:
    """Pixel -> rows of its points in input order, for one sample; fills its row of counts."""
    begin, end = rows
    outcome, pixel = classify(points[begin:end], grid)
    used = np.flatnonzero(outcome == USED)
    order = used[np.argsort(pixel[used], kind="stable")]
    pixels, first = np.unique(pixel[order], return_index=True)
    counts[:] = [len(pixels)] + [(outcome == o).sum() for o in (USED, OUT_OF_RANGE, NON_FINITE)]
    members = np.split(order + begin, first[1:])
    return dict(zip(pixels.tolist(), members, strict=False))


def heights(points: Tensor) -> np.ndarray:
    """[N] z rounded to float32, -0.0 turned into +0.0."""
    return to_working(points[:, 2]).astype(F32) + F32(0)


def make_grid(point_cloud_range: list[float], size: list[int], orientation: str) -> Grid:
    bounds = np.array(point_cloud_range, np.float64).astype(F32)
    lo, hi = bounds[:3], bounds[3:]
    return Grid(lo, hi, (hi[:2] - lo[:2]) / np.array(size, F32), size[0], size[1], orientation)
