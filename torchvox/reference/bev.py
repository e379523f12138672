# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view rasters, written as their definition: point by point, then cell by cell.

The prose contract is docs/bev.md.
"""

import numpy as np
import torch
from torch import Tensor

from . import bev_grid as raster
from .bev_grid import F32
from .definition import define_op
from .voxel_grid import sample_ranges

__all__ = [
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
    "bev_rasterize",
    "bev_rasterize_backward",
]


@define_op
def bev_max_height(points: Tensor, **options) -> tuple[Tensor, Tensor]:
    """(height [B, H, W], counts [B + 1, 4]): the height of the highest point of each cell."""
    return bev_max_height_with_index(points, **options)[::2]


@define_op
def bev_max_height_with_index(
    points: Tensor, point_cloud_range, size, *, orientation, out_dtype, fill, lowest_code, **samples
) -> tuple[Tensor, Tensor, Tensor]:
    """(height, top_index [B, H, W] int32, counts): also the row of the top point, -1 if none."""
    grid = raster.make_grid(point_cloud_range, size, orientation)
    dtype = torch.float32 if out_dtype is None else out_dtype

    ranges = sample_ranges(points.size(0), **samples)
    z = raster.heights(points)
    height = np.full((len(ranges), grid.nx * grid.ny), fill, F32)
    top_index = np.full(height.shape, -1, np.int32)
    counts = np.zeros((len(ranges) + 1, 4), np.int32)
    for b, rows in enumerate(ranges):
        cells = raster.cells_of(points, rows, grid, counts[b + 1])
        for pixel, members in cells.items():
            top = members[np.argmax(z[members])]  # argmax: the first of equals
            height[b, pixel] = z[top]
            top_index[b, pixel] = top
    counts[0] = counts[1:].sum(0)

    empty = top_index < 0
    if dtype == torch.uint8:
        codes = lowest_code + np.floor(raster.unit_height(height, grid) * F32(255 - lowest_code))
        height = np.where(empty, 0, codes).astype(np.uint8)
    elif dtype == torch.uint16:
        millimeters = np.floor((height - grid.lo[2]) * F32(1000))
        height = np.where(empty, 0, np.minimum(millimeters + F32(1), 65535)).astype(np.uint16)
    shape = (len(ranges), *grid.shape)
    return (
        torch.from_numpy(height.reshape(shape)),
        torch.from_numpy(top_index.reshape(shape)),
        torch.from_numpy(counts),
    )


@define_op
def bev_rasterize(
    points,
    point_cloud_range,
    size,
    channels,
    *,
    features,
    orientation,
    fill,
    density_base,
    **samples,
) -> tuple[Tensor, Tensor]:
    """(image [B, C, H, W] float32, counts [B + 1, 4]): planes in the order of `channels`."""
    grid = raster.make_grid(point_cloud_range, size, orientation)
    planes = raster.parse_planes(channels)
    intensity = raster.intensity_of(points, features, planes)
    density = raster.density_table(density_base)

    ranges = sample_ranges(points.size(0), **samples)
    z = raster.heights(points)
    empty = np.array([0 if name in raster.ZERO_WHERE_EMPTY else fill for name, _, _ in planes], F32)
    image = np.tile(empty[None, :, None], (len(ranges), 1, grid.nx * grid.ny))
    counts = np.zeros((len(ranges) + 1, 4), np.int32)
    for b, rows in enumerate(ranges):
        for pixel, members in raster.cells_of(points, rows, grid, counts[b + 1]).items():
            cell = raster.Cell(
                z=z[members], intensity=intensity[members], top=int(np.argmax(z[members]))
            )
            for p, (name, k, of) in enumerate(planes):
                value = raster.value_of(cell, name, k, of, grid, density)
                if value is not None:
                    image[b, p, pixel] = value
    counts[0] = counts[1:].sum(0)
    image = image.reshape(len(ranges), len(planes), *grid.shape)
    return torch.from_numpy(image), torch.from_numpy(counts)


@np.errstate(all="ignore")
def bev_rasterize_backward(
    grad_image,
    points,
    point_cloud_range,
    size,
    channels,
    *,
    features=None,
    orientation="grid",
    **samples,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `bev_rasterize` to points and features (None when features is None).

    height_max, height_norm and intensity_top reach the highest point, height_mean and
    intensity_mean every point of the cell; nothing else has a gradient. Each point belongs to one
    cell: its terms are added in float32 in channel order from +0, then rounded to its dtype.
    """
    grid = raster.make_grid(point_cloud_range, size, orientation)
    planes = raster.parse_planes(channels)
    z = raster.heights(points)
    ranges = sample_ranges(points.size(0), **samples)
    grad = grad_image.detach().float().numpy()
    grad = grad.reshape(len(ranges), len(planes), grid.nx * grid.ny)
    to_z, to_intensity = np.zeros(len(z), F32), np.zeros(len(z), F32)
    for b, rows in enumerate(ranges):
        for pixel, members in raster.cells_of(points, rows, grid, np.zeros(4, np.int32)).items():
            top, n = members[np.argmax(z[members])], F32(len(members))
            for p, (name, _, _) in enumerate(planes):
                g = grad[b, p, pixel]
                if name == "height_max":
                    to_z[top] += g
                elif name == "height_norm":
                    to_z[top] += g / (grid.hi[2] - grid.lo[2])
                elif name == "height_mean":
                    to_z[members] += g / n
                elif name == "intensity_top":
                    to_intensity[top] += g
                elif name == "intensity_mean":
                    to_intensity[members] += g / n
    grad_points = torch.zeros_like(points)
    grad_points[:, 2] = torch.from_numpy(to_z).to(points.dtype)
    if features is not None:
        return grad_points, torch.from_numpy(to_intensity).to(features.dtype).view(features.shape)
    if points.size(1) > 3:
        grad_points[:, 3] = torch.from_numpy(to_intensity).to(points.dtype)
    return grad_points, None


def bev_affine(
    point_cloud_range: list[float], size: list[int], orientation: str = "grid"
) -> Tensor:
    """[3, 3] float64: (col, row, 1) to (x, y, 1) in meters; whole pixels are cell centers."""
    grid = raster.make_grid(point_cloud_range, size, orientation)
    x0, y0 = (float(v) for v in grid.lo[:2])
    dx, dy = (float(v) for v in grid.res)
    first_x, last_x = x0 + 0.5 * dx, x0 + (grid.nx - 0.5) * dx
    first_y, last_y = y0 + 0.5 * dy, y0 + (grid.ny - 0.5) * dy
    rows = {
        "grid": [[dx, 0, first_x], [0, dy, first_y]],
        "image": [[0, -dx, last_x], [-dy, 0, last_y]],
        "north_up": [[dx, 0, first_x], [0, -dy, last_y]],
    }[orientation]
    return torch.tensor([*rows, [0, 0, 1]], dtype=torch.float64)
