# SPDX-License-Identifier: Apache-2.0
"""voxelize and voxel_map as sequential definitions.

docs/voxel.md says in words what this file and voxel_grid.py (which cell, which voxels) say in code.
Points are visited one by one, in input order; a voxel is a Python list of point indices.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import from_working, reduce_values, spread_gradient, to_working
from torchvox.reference.definition import define_op
from torchvox.reference.voxel_grid import Voxel, VoxelGrid, group_points, stored_points

__all__ = ["voxel_map", "voxelize", "voxelize_backward"]


@define_op
def voxel_map(
    points: Tensor, voxel_size, point_cloud_range, max_points: int, max_voxels: int, **options
) -> tuple[Tensor, ...]:
    """(indices, num_points, point_voxel, point_slot, counts)."""
    grid = VoxelGrid.make(voxel_size, point_cloud_range)
    rows, counts, capacity = group_points(points, grid, max_points, max_voxels, **options)
    return (*_map_outputs(rows, len(points), capacity, max_points), counts)


def _map_outputs(
    rows: list[Voxel], num_points: int, capacity: int, max_points: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    indices = torch.full((capacity, 4), -1, dtype=torch.int32)
    stored_count = torch.zeros(capacity, dtype=torch.int32)
    point_voxel = torch.full((num_points,), -1, dtype=torch.int32)
    point_slot = torch.full((num_points,), -1, dtype=torch.int32)
    for row, voxel in enumerate(rows):
        x, y, z = voxel.cell
        indices[row] = torch.tensor((voxel.sample, z, y, x))
        stored = stored_points(voxel.points, max_points)
        stored_count[row] = len(stored)
        point_voxel[voxel.points] = row
        point_slot[stored] = torch.arange(len(stored), dtype=torch.int32)
    return indices, stored_count, point_voxel, point_slot


def _stored_values(
    values: np.ndarray, voxel: Voxel, grid: VoxelGrid, max_points: int, center_relative: bool
) -> np.ndarray:
    """(stored points, F) in working precision, the input of every reduction."""
    stored = values[stored_points(voxel.points, max_points)]  # a copy
    if center_relative:
        stored[:, :3] -= grid.center(np.array(voxel.cell), values.dtype)
    return stored


@define_op
def voxelize(
    points: Tensor,
    voxel_size,
    point_cloud_range,
    max_points: int,
    max_voxels: int,
    *,
    reduce: str,
    out_dtype: torch.dtype | None,
    center_relative: bool,
    **options,
) -> tuple[Tensor, ...]:
    """(features, indices, num_points, point_voxel, counts)."""
    grid = VoxelGrid.make(voxel_size, point_cloud_range)
    rows, counts, capacity = group_points(points, grid, max_points, max_voxels, **options)
    values = to_working(points)
    slots = (max_points,) if reduce == "none" else ()
    features = np.zeros((capacity, *slots, points.shape[1]), values.dtype)
    for row, voxel in enumerate(rows):
        stored = _stored_values(values, voxel, grid, max_points, center_relative)
        if reduce == "none":
            features[row, : len(stored)] = stored
        elif len(stored) > 0:
            features[row] = reduce_values(stored, reduce)
    indices, num_points, point_voxel, _ = _map_outputs(rows, len(points), capacity, max_points)
    rounded = from_working(features, points.dtype if out_dtype is None else out_dtype)
    return rounded, indices, num_points, point_voxel, counts


@np.errstate(all="ignore")
def voxelize_backward(
    grad_features: Tensor,
    points: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_points: int,
    max_voxels: int,
    *,
    reduce: str = "none",
    out_dtype: torch.dtype | None = None,
    center_relative: bool = False,
    **options,
) -> Tensor:
    """Gradient of the points, given the gradient of voxelize's features.

    The voxel of a point and the voxel's center are constants. A stored point gets the gradient
    of its slot (none), of its row (sum), of its row over the stored count (mean), or, in each
    column where it is the extreme, of its row (max, min). Every other point gets 0.
    """
    grid = VoxelGrid.make(voxel_size, point_cloud_range)
    rows, _, _ = group_points(points, grid, max_points, max_voxels, **options)
    values = to_working(points)
    incoming = to_working(grad_features).astype(values.dtype)
    grad = np.zeros_like(values)
    for row, voxel in enumerate(rows):
        members = stored_points(voxel.points, max_points)
        if not members:
            continue
        if reduce == "none":
            grad[members] = incoming[row, : len(members)]
        else:
            stored = _stored_values(values, voxel, grid, max_points, center_relative)
            grad[members] = spread_gradient(incoming[row], stored, reduce)
    return from_working(grad, points.dtype)
