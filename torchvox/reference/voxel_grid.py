# SPDX-License-Identifier: Apache-2.0
"""The grid of the voxel ops: its size, the cell of a point, and which point is in which voxel:
samples, range, order of the voxels, caps, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import to_working
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


# Columns of counts.
KEPT, FOUND, STORED, OVER_POINTS, OVER_VOXELS, OUT_OF_RANGE, NON_FINITE = range(7)


@dataclass
class Voxel:
    sample: int
    cell: tuple[int, int, int]  # x, y, z
    points: list[int]  # every point of the voxel, in input order


def sample_ranges(
    num_points: int, batch_offsets: Tensor | None = None, num_valid: Tensor | None = None
) -> list[tuple[int, int]]:
    """The rows [begin, end) of each sample; every row in none of them is padding."""
    offsets = [0, num_points] if batch_offsets is None else batch_offsets.tolist()
    bounds = [min(max(offset, 0), num_points) for offset in offsets]
    ranges = [(begin, max(begin, end)) for begin, end in pairwise(bounds)]
    if num_valid is not None:
        valid = num_valid.reshape(-1).tolist()
        ranges = [(b, b + min(max(v, 0), e - b)) for (b, e), v in zip(ranges, valid, strict=True)]
    return ranges


def group_points(
    points: Tensor,
    grid: VoxelGrid,
    max_points: int,
    max_voxels: int,
    *,
    batch_offsets: Tensor | None = None,
    num_valid: Tensor | None = None,
    order: str = "first",
    bounds: str = "grid",
    finite: str = "xyz",
) -> tuple[list[Voxel], Tensor, int]:
    """The kept voxels in row order, counts [B + 1, 8], and the capacity in rows."""
    ranges = sample_ranges(len(points), batch_offsets, num_valid)
    xyz = to_working(points[:, :3])
    tested = xyz if finite == "xyz" else to_working(points)
    is_number = np.isfinite(tested).all(axis=1)
    cells, inside = grid.decode(xyz, bounds)
    counts = np.zeros((len(ranges) + 1, 8), np.int64)
    rows: list[Voxel] = []
    for sample, (begin, end) in enumerate(ranges):
        count = counts[1 + sample]
        voxels: dict[tuple[int, int, int], list[int]] = {}  # in order of first appearance
        for i in range(begin, end):
            if not is_number[i]:
                count[NON_FINITE] += 1
            elif not inside[i]:
                count[OUT_OF_RANGE] += 1
            else:
                x, y, z = cells[i].tolist()
                voxels.setdefault((x, y, z), []).append(i)
        in_order = list(voxels)
        if order == "zyx":
            in_order.sort(key=lambda cell: cell[::-1])
        elif order == "xyz":
            in_order.sort()
        kept = len(in_order) if max_voxels < 0 else min(max_voxels, len(in_order))
        count[KEPT], count[FOUND] = kept, len(in_order)
        count[OVER_VOXELS] = sum(len(voxels[cell]) for cell in in_order[kept:])
        for cell in in_order[:kept]:
            stored = len(stored_points(voxels[cell], max_points))
            count[STORED] += stored
            count[OVER_POINTS] += len(voxels[cell]) - stored
            rows.append(Voxel(sample, cell, voxels[cell]))
    counts[0] = counts[1:].sum(axis=0)
    capacity = len(points) if max_voxels < 0 else len(ranges) * max_voxels
    return rows, torch.from_numpy(counts.astype(np.int32)), capacity


def stored_points(members: list[int], max_points: int) -> list[int]:
    return members if max_points < 0 else members[:max_points]
