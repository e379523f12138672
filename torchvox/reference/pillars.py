# SPDX-License-Identifier: Apache-2.0
"""Pillars: decorated points, their moments, one layer of a pillar feature net, the canvas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import cascade_sum, extreme, from_working, to_working
from torchvox.reference.definition import define_op
from torchvox.reference.fma import fma
from torchvox.reference.voxel_grid import VoxelGrid

__all__ = ["pillar_encode", "pillar_moments", "pillar_norm", "pillar_scatter"]


@dataclass(frozen=True)
class Pillar:
    """One row of a map: its cell (b, z, y, x), its stored points in slot order."""

    row: int
    cell: tuple[int, int, int, int]
    points: list[int]


def _pillars(
    size: tuple, indices: Tensor, num_points: Tensor, point_voxel: Tensor, point_slot: Tensor
) -> list[Pillar]:
    """The rows whose cell lies in `size` = (batches, ny, nx)."""
    slots: dict[tuple[int, int], int] = {
        key: i for i, key in enumerate(zip(point_voxel.tolist(), point_slot.tolist(), strict=True))
    }
    pillars = []
    for row, (b, z, y, x) in enumerate(indices.tolist()):
        if all(0 <= i < n for i, n in zip((b, y, x), size, strict=True)):
            points = [slots[row, s] for s in range(int(num_points[row]))]
            pillars.append(Pillar(row, (b, z, y, x), points))
    return pillars


def _frame(pillar: Pillar, values: np.ndarray, grid: VoxelGrid) -> tuple[np.ndarray, np.ndarray]:
    """Center and mean, (3,) each."""
    center = grid.center(np.array(pillar.cell[:0:-1]), values.dtype)
    if not pillar.points:
        return center, np.zeros(3, values.dtype)
    total = cascade_sum(values[pillar.points, :3])
    return center, total / values.dtype.type(len(pillar.points))


def _decorated(
    rows: np.ndarray, center: np.ndarray, mean: np.ndarray, center_axes: int, legacy: bool
) -> np.ndarray:
    """(n, F) points to (n, F + 3 + center_axes)."""
    offset = rows[:, :3] - center
    own = rows.copy()
    if legacy:
        own[:, :center_axes] = offset[:, :center_axes]
    return np.concatenate([own, rows[:, :3] - mean, offset[:, :center_axes]], 1)


def tree_sum(values: np.ndarray) -> np.ndarray:
    """Of rows (n, E): neighbors by 32, left to right from +0, then such sums by 32, ..."""
    while True:
        groups = -(-len(values) // 32) or 1
        padded = np.zeros((32 * groups, values.shape[1]))
        padded[: len(values)] = values
        values = np.zeros((groups, values.shape[1]))
        for k in range(32):
            values += padded[k::32]
        if groups == 1:
            return values[0]


@define_op
def pillar_moments(
    points,
    voxel_size,
    point_cloud_range,
    max_points,
    *,
    center_axes,
    legacy,
    pad_semantics,
    **voxels,
) -> Tensor:
    """Upper triangle, row by row, of the sum of g g^T over the stored points in the order of their
    index, g = (1, decorated point), in float64. With padding the first entry counts slots."""
    grid = VoxelGrid.make(voxel_size, point_cloud_range)
    values = to_working(points)
    size = (2**31 - 1, grid.cells[1], grid.cells[0])
    pillars = _pillars(size, **voxels)
    width = points.size(1) + 4 + center_axes
    left, right = np.triu_indices(width)
    products = np.zeros((len(values), len(left)))
    for pillar in pillars:
        rows = _decorated(values[pillar.points], *_frame(pillar, values, grid), center_axes, legacy)
        g = np.concatenate([np.ones((len(rows), 1)), rows.astype(np.float64)], 1)
        products[pillar.points] = g[:, left] * g[:, right]
    moments = tree_sum(products)
    if pad_semantics == "reference" and max_points >= 0:
        moments[0] = float(len(pillars)) * float(max_points)
    return torch.from_numpy(moments)


@define_op
def pillar_norm(
    moments: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(weight [O, D], bias [O]) with batch norm fused in, its mean and unbiased variance [O]; in
    float64, sums over the columns in their order."""
    values = moments.numpy()
    w, g, b = (to_working(t).astype(np.float64) for t in (weight, gamma, beta))
    outputs, columns = w.shape
    count = max(values[0], 1.0)
    first = values[1 : columns + 1] / count
    second = np.zeros((columns, columns))
    second[np.triu_indices(columns)] = values[columns + 1 :] / count
    covariance = np.triu(second) + np.triu(second, 1).T - first[:, None] * first
    mean, var = np.zeros(outputs), np.zeros(outputs)
    for j in range(columns):
        mean = mean + w[:, j] * first[j]
        product = np.zeros(outputs)
        for k in range(columns):
            product = product + w[:, k] * covariance[j, k]
        var = var + w[:, j] * product
    var = np.where(var <= 0, 0.0, var)
    scale = g * (1 / np.sqrt(var + eps))
    unbiased = var * (count / max(values[0] - 1, 1.0))
    fused = scale[:, None] * w, b - scale * mean, mean, unbiased
    return tuple(from_working(v, weight.dtype) for v in fused)


def _of_rows(
    rows: np.ndarray, center: np.ndarray, weight: np.ndarray, center_axes: int
) -> np.ndarray:
    """(n, O): the part of the layer that differs between the points of a pillar."""
    columns = rows.shape[1]
    offset = rows[:, :3] - center
    terms = []
    for axis in range(3):
        a = weight[:, axis] + weight[:, columns + axis]
        if axis < center_axes:
            a = a + weight[:, columns + 3 + axis]
        terms.append((a, offset[:, axis, None]))
    terms += [(weight[:, column], rows[:, column, None]) for column in range(3, columns)]
    y = terms[0][0] * terms[0][1]
    for a, u in terms[1:]:
        y = fma(a, u, y)
    return y


def _of_pillar(
    columns: int,
    center: np.ndarray,
    mean: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    replaced: int,
) -> np.ndarray:
    """(O,): the part that they share. `replaced`: how many coordinates legacy replaces."""
    k = bias
    for axis in range(3):
        own = weight[:, axis] if axis >= replaced else np.zeros_like(bias)
        k = fma(own, center[axis], k)
        k = fma(weight[:, columns + axis], center[axis] - mean[axis], k)
    return k


@define_op
def pillar_encode(
    points,
    weight,
    bias,
    voxel_size,
    point_cloud_range,
    max_points,
    batch_size,
    *,
    center_axes,
    legacy,
    pad_semantics,
    out_dtype,
    **voxels,
) -> Tensor:
    """[B, O, ny, nx], channels_last: the largest relu(weight f + bias) of a pillar's points."""
    grid = VoxelGrid.make(voxel_size, point_cloud_range)
    wide = torch.float64 in (points.dtype, weight.dtype)
    real = np.float64 if wide else np.float32
    values, w, b = (to_working(t).astype(real) for t in (points, weight, bias))
    nx, ny, _ = grid.cells
    canvas = np.zeros((batch_size, ny, nx, len(b)), real)
    pillars = _pillars((batch_size, ny, nx), **voxels)
    for pillar in reversed(pillars):  # of rows with one cell the lowest stays
        best = np.zeros_like(b)
        n = len(pillar.points)
        if n > 0:
            center, mean = _frame(pillar, values, grid)
            rows = values[pillar.points]
            best, _ = extreme(_of_rows(rows, center, w, center_axes), largest=True)
            shared = _of_pillar(rows.shape[1], center, mean, w, b, center_axes if legacy else 0)
            best = best + shared
        if pad_semantics == "reference" and n < max_points:
            best = np.where((b > best) | (n == 0), b, best)
        at = pillar.cell
        canvas[at[0], at[2], at[3]] = np.where(best <= 0, real(0), best)
    out = from_working(canvas, weight.dtype if out_dtype is None else out_dtype)
    return out.permute(0, 3, 1, 2)


@define_op
def pillar_scatter(feats: Tensor, indices: Tensor, batch_size: int, size: Sequence[int]) -> Tensor:
    """[B, C, ny, nx], channels_last: row r of feats in the cell of row r of indices."""
    nx, ny = size
    canvas = torch.zeros(batch_size, ny, nx, feats.size(1), dtype=feats.dtype)
    for row, (b, _, y, x) in reversed(list(enumerate(indices.tolist()))):
        if 0 <= b < batch_size and 0 <= y < ny and 0 <= x < nx:
            canvas[b, y, x] = feats[row]
    return canvas.permute(0, 3, 1, 2)
