# SPDX-License-Identifier: Apache-2.0
"""Which point is in which voxel: samples, range, order of the voxels, caps, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import FLOAT_DTYPES, to_working
from torchvox.reference.checks import check_index_tensor, fail
from torchvox.reference.voxel_grid import VoxelGrid

MAX_KEYS = 2**63 - 1

ORDERS = ("first", "zyx", "xyz")
BOUNDS = ("grid", "range")

# Columns of counts.
KEPT, FOUND, STORED, OVER_POINTS, OVER_VOXELS, OUT_OF_RANGE, NON_FINITE = range(7)


@dataclass
class Voxel:
    sample: int
    cell: tuple[int, int, int]  # x, y, z
    points: list[int]  # every point of the voxel, in input order


def sample_ranges(
    op: str, num_points: int, batch_offsets: Tensor | None, num_valid: Tensor | None
) -> list[tuple[int, int]]:
    """The rows [begin, end) of each sample; every row in none of them is padding."""
    offsets = [0, num_points]
    if batch_offsets is not None:
        check_index_tensor(op, "batch_offsets", batch_offsets)
        if batch_offsets.dim() != 1 or len(batch_offsets) < 1:
            fail(ValueError, op, "batch_offsets must be [B + 1]", list(batch_offsets.shape))
        offsets = [min(max(o, 0), num_points) for o in batch_offsets.tolist()]
    num_samples = len(offsets) - 1
    ranges = [(begin, max(begin, end)) for begin, end in pairwise(offsets)]
    if num_valid is not None:
        check_index_tensor(op, "num_valid", num_valid)
        if num_valid.dim() > 1 or num_valid.numel() != num_samples:
            fail(ValueError, op, f"num_valid must be [{num_samples}]", list(num_valid.shape))
        valid = num_valid.reshape(-1).tolist()
        ranges = [(b, b + min(max(v, 0), e - b)) for (b, e), v in zip(ranges, valid, strict=True)]
    return ranges


def group_points(
    op: str,
    points: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_points: int,
    max_voxels: int,
    batch_offsets: Tensor | None,
    num_valid: Tensor | None,
    order: str,
    bounds: str,
) -> tuple[VoxelGrid, list[Voxel], Tensor, int]:
    """The grid, the kept voxels in row order, counts [B + 1, 8], and the capacity in rows."""
    check_arguments(op, points, max_points, max_voxels, order, bounds)
    grid = VoxelGrid.make(op, voxel_size, point_cloud_range)
    ranges = sample_ranges(op, len(points), batch_offsets, num_valid)
    keys = max(len(ranges), 1) * grid.cells[0] * grid.cells[1] * grid.cells[2]
    if keys > MAX_KEYS:
        numbers = f"{len(ranges)} samples of {list(grid.cells)} cells"
        fail(ValueError, op, "voxel_size must give cell keys that fit in int64", numbers)

    xyz = to_working(points[:, :3])
    finite = np.isfinite(xyz).all(axis=1)
    cells, inside = grid.decode(xyz, bounds)
    counts = np.zeros((len(ranges) + 1, 8), np.int64)
    rows: list[Voxel] = []
    for sample, (begin, end) in enumerate(ranges):
        count = counts[1 + sample]
        voxels: dict[tuple[int, int, int], list[int]] = {}  # in order of first appearance
        for i in range(begin, end):
            if not finite[i]:
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
    return grid, rows, torch.from_numpy(counts.astype(np.int32)), capacity


def stored_points(members: list[int], max_points: int) -> list[int]:
    return members if max_points < 0 else members[:max_points]


def check_arguments(
    op: str, points: Tensor, max_points: int, max_voxels: int, order: str, bounds: str
) -> None:
    if points.dtype not in FLOAT_DTYPES:
        fail(TypeError, op, "points must be float16, bfloat16, float32 or float64", points.dtype)
    if points.dim() != 2 or points.shape[1] < 3:
        fail(ValueError, op, "points must be [N, C] with C >= 3", list(points.shape))
    if max_points < -1:
        fail(ValueError, op, "max_points must be >= -1", max_points)
    if max_voxels < -1:
        fail(ValueError, op, "max_voxels must be >= -1", max_voxels)
    if order not in ORDERS:
        fail(ValueError, op, f"order must be one of {ORDERS}", repr(order))
    if bounds not in BOUNDS:
        fail(ValueError, op, f"bounds must be one of {BOUNDS}", repr(bounds))
