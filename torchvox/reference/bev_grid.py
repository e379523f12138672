# SPDX-License-Identifier: Apache-2.0
"""The raster of the BEV reference: its arguments, which points fall into which cell, the requested
planes, and what a cell comes to."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from .arithmetic import cascade_sum, to_working

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


INTENSITIES = ("intensity_top", "intensity_mean", "intensity_max")
ZERO_WHERE_EMPTY = ("count", "density", "occupancy")


@dataclass(frozen=True)
class Cell:
    """The used points of one cell, in input order."""

    z: np.ndarray  # [n] float32, never -0.0
    intensity: np.ndarray  # [n] float32
    top: int  # position of the highest point, the first among equals


def value_of(cell: Cell, name: str, k: int, of: int, grid: Grid, density: np.ndarray) -> Any:
    """One channel of one cell; None leaves the value of an empty cell."""
    n = len(cell.z)
    if name == "height_max":
        return cell.z[cell.top]
    if name == "height_min":
        return cell.z.min()
    if name == "height_mean":
        return _height_mean(cell.z, grid)
    if name == "height_range":
        return cell.z.max() - cell.z.min()
    if name == "height_norm":
        return unit_height(cell.z[cell.top], grid)
    if name == "intensity_top":
        return cell.intensity[cell.top]
    if name == "intensity_mean":
        return cascade_sum(cell.intensity) / F32(n)
    if name == "intensity_max":
        return (cell.intensity + F32(0)).max()  # NaN wins, as in torch.amax; zero is +0
    if name == "count":
        return F32(n)
    if name == "density":
        return density[n] if n < len(density) else F32(1)
    in_slice = cell.z[_slice(cell.z, of, grid) == k]
    if len(in_slice) == 0:
        return None
    return F32(1) if name == "occupancy" else in_slice.max()


def _slice(z: np.ndarray, of: int, grid: Grid) -> np.ndarray:
    """Which of `of` equal slices of the range a height lies in; the last takes the round-off."""
    thickness = (grid.hi[2] - grid.lo[2]) / F32(of)
    k = np.floor((z - grid.lo[2]) / thickness)
    return np.minimum(k, F32(of - 1)).astype(np.int64)


def unit_height(z: np.ndarray, grid: Grid) -> np.ndarray:
    """0 at the bottom of the range, below 1 except for rounding at its top; all in float32."""
    return (z - grid.lo[2]) / (grid.hi[2] - grid.lo[2])


def _height_mean(z: np.ndarray, grid: Grid) -> np.float32:
    """Mean height from an integer sum, hence free of any order.

    The step is 2^(e - 31) m with 2^e the first power of two above the range: a height takes at
    most 2^31 steps, so 2^31 of them still fit an int64.
    """
    z0 = float(grid.lo[2])
    _, e = math.frexp(float(grid.hi[2]) - z0)
    steps_per_meter = math.ldexp(1.0, 31 - e)
    q = np.rint((z.astype(np.float64) - z0) * steps_per_meter)  # half to even
    total = int(q.astype(np.int64).sum())
    return F32(z0 + (float(total) / len(z)) / steps_per_meter)


def density_table(base: int) -> np.ndarray:
    """min(1, log(n + 1) / log(base)) for n = 0 .. base - 1, computed in double."""
    table = [min(1.0, math.log(n + 1) / math.log(base)) for n in range(base)]
    return np.array(table, np.float64).astype(F32)


def intensity_of(points, features, planes) -> np.ndarray:
    if not any(name in INTENSITIES for name, _, _ in planes):
        return np.zeros(points.size(0), F32)
    return to_working(points[:, 3] if features is None else features.reshape(-1)).astype(F32)


def parse_planes(channels: list[str]) -> list[tuple[str, int, int]]:
    """(channel name, slice, number of slices) of every output plane."""
    planes: list[tuple[str, int, int]] = []
    for channel in channels:
        name, _, number = channel.partition(":")
        of = int(number or 1)
        planes += [(name, k, of) for k in range(of)]
    return planes
