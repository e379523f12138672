# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view rasters of point clouds."""

import copy
from numbers import Integral
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

from torchvox.ops.annotations import Orientation, Sequence

__all__ = [
    "BEVHeight",
    "BEVHeightWithIndex",
    "BEVImage",
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
    "bev_preset",
    "bev_rasterize",
]

# The operators without their Python shells, for eager calls that leave most options alone, as in
# voxel.py. Compilers look for the shells.
_bev_max_height = getattr(
    torch.ops.torchvox.bev_max_height, "_op", torch.ops.torchvox.bev_max_height
)
_bev_max_height_with_index = getattr(
    torch.ops.torchvox.bev_max_height_with_index,
    "_op",
    torch.ops.torchvox.bev_max_height_with_index,
)


class BEVHeight(NamedTuple):
    """Result of `bev_max_height`.

    height: [B, H, W], the highest point of each cell in meters, or its code.
    counts: [B + 1, 4] int32, of the call and of each sample: cells filled, points used, out of
        range, not finite.
    """

    height: Tensor
    counts: Tensor


class BEVHeightWithIndex(NamedTuple):
    """Result of `bev_max_height_with_index`.

    height: [B, H, W], the highest point of each cell in meters, or its code.
    top_index: [B, H, W] int32, the row of that point; -1 in empty cells.
    counts: [B + 1, 4] int32, as in `BEVHeight`.
    """

    height: Tensor
    top_index: Tensor
    counts: Tensor


class BEVImage(NamedTuple):
    """Result of `bev_rasterize`.

    image: [B, planes, H, W] float32.
    counts: [B + 1, 4] int32, as in `BEVHeight`.
    """

    image: Tensor
    counts: Tensor


def bev_max_height(
    points: Tensor,
    point_cloud_range: Sequence[float],
    size: Sequence[int],
    *,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    orientation: Orientation = "grid",
    out_dtype: Optional[torch.dtype] = None,
    fill: float = 0.0,
    lowest_code: int = 1,
) -> BEVHeight:
    """Height of the highest point in each cell of a bird's-eye-view grid.

    points: [N, C] float16, bfloat16, float32 or float64, C >= 3; columns 0-2 are x, y, z in meters.
    point_cloud_range: (x0, y0, z0, x1, y1, z1) in meters. A point counts when it is finite and
        lower <= p < upper holds on all three axes.
    size: (nx, ny) cells. A cell is fp32(upper - lower) / fp32(n) wide, and point x lies in cell
        floor((x - x0) / width), which must be below n too.
    batch_offsets, num_valid: as in `voxelize`.
    orientation: "grid" gives row iy, column ix, [B, ny, nx]; "image" has forward (+x) up and left
        (+y) left, [B, nx, ny]; "north_up" has +y up, [B, ny, nx].
    out_dtype: torch.float32 (default) stores the height in meters, `fill` where a cell is empty.
        torch.uint8 stores lowest_code + floor(t * (255 - lowest_code)), t = (z - z0) / (z1 - z0),
        and 0 where empty. torch.uint16 stores 1 + floor(1000 * (z - z0)), saturating, and 0 where
        empty. torch 2.11 has few CPU operations for uint16.

    Returns `BEVHeight`. Points of equal height: the lowest index is the top. Differentiable in
    points for float32 output: a cell's gradient goes to its top point's z.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> points = torch.tensor([[0.5, 0.5, 1.25], [0.6, 0.4, 1.75], [1.5, 0.5, 0.5]])
    >>> torchvox.bev_max_height(points, [0, 0, 0, 2, 1, 4], size=[1, 2]).height.flatten()
    tensor([1.7500, 1.2500])
    """
    if (
        not torch.compiler.is_compiling()
        and batch_offsets is None
        and num_valid is None
        and orientation == "grid"
    ):
        height, counts = _bev_max_height(
            points, point_cloud_range, size, out_dtype=out_dtype, fill=fill, lowest_code=lowest_code
        )
    else:
        height, counts = torch.ops.torchvox.bev_max_height(
            points,
            point_cloud_range,
            size,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
            orientation=orientation,
            out_dtype=out_dtype,
            fill=fill,
            lowest_code=lowest_code,
        )
    return BEVHeight(height, counts)


def bev_max_height_with_index(
    points: Tensor,
    point_cloud_range: Sequence[float],
    size: Sequence[int],
    *,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    orientation: Orientation = "grid",
    out_dtype: Optional[torch.dtype] = None,
    fill: float = 0.0,
    lowest_code: int = 1,
) -> BEVHeightWithIndex:
    """`bev_max_height` and, for each cell, the row of its highest point.

    The arguments are those of `bev_max_height`. Returns `BEVHeightWithIndex`: top_index tells an
    empty cell from a low one whatever `fill` is, and fetches any attribute of the highest point.
    """
    if (
        not torch.compiler.is_compiling()
        and batch_offsets is None
        and num_valid is None
        and orientation == "grid"
    ):
        height, top_index, counts = _bev_max_height_with_index(
            points, point_cloud_range, size, out_dtype=out_dtype, fill=fill, lowest_code=lowest_code
        )
    else:
        height, top_index, counts = torch.ops.torchvox.bev_max_height_with_index(
            points,
            point_cloud_range,
            size,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
            orientation=orientation,
            out_dtype=out_dtype,
            fill=fill,
            lowest_code=lowest_code,
        )
    return BEVHeightWithIndex(height, top_index, counts)


def bev_rasterize(
    points: Tensor,
    point_cloud_range: Sequence[float],
    size: Sequence[int],
    channels: Sequence[str],
    *,
    features: Optional[Tensor] = None,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    orientation: Orientation = "grid",
    fill: float = 0.0,
    density_base: int = 64,
) -> BEVImage:
    """A bird's-eye-view image of a cloud with the requested channels.

    points, point_cloud_range, size, batch_offsets, num_valid, orientation: as `bev_max_height`.
    channels: of "height_max", "height_min", "height_mean", "height_range" (meters), "height_norm"
        (0 at z0, 1 at z1), "intensity_top" (of the highest point), "intensity_mean",
        "intensity_max", "count", "density" (min(1, log(n + 1) / log(density_base))),
        "occupancy:K" (K planes, 1 where a point lies in that height slice) and "slices:K" (K
        planes, the greatest height in that slice). At most 256 planes.
    features: [N] or [N, 1], the intensities. None: column 3 of points.
    fill: value of empty cells in height and intensity planes; the other planes hold 0 there.

    Returns `BEVImage`. In means, heights add up as integers, intensities in input order.
    Differentiable in points and features through height_max, height_norm, height_mean,
    intensity_top and intensity_mean. docs/bev.md has every rule.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    image, counts = torch.ops.torchvox.bev_rasterize(
        points,
        point_cloud_range,
        size,
        channels,
        features=features,
        batch_offsets=batch_offsets,
        num_valid=num_valid,
        orientation=orientation,
        fill=fill,
        density_base=density_base,
    )
    return BEVImage(image, counts)


# Published encodings; docs/bev.md names the papers and what differs from common code.
_PRESETS: Dict[str, Dict[str, Any]] = {
    "mv3d": {
        "point_cloud_range": [0.0, -40.0, -2.0, 70.4, 40.0, 0.4],
        "size": [704, 800],
        "channels": ["slices:6", "intensity_top", "density"],
        "orientation": "image",
        "density_base": 64,
    },
    "complex_yolo": {
        "point_cloud_range": [0.0, -25.0, -2.73, 50.0, 25.0, 1.27],
        "size": [608, 608],
        "channels": ["density", "height_norm", "intensity_top"],
        "orientation": "image",
        "density_base": 64,
    },
    "pixor": {
        "point_cloud_range": [0.0, -40.0, -2.5, 70.0, 40.0, 1.0],
        "size": [700, 800],
        "channels": ["occupancy:35", "intensity_mean"],
        "orientation": "grid",
    },
    "birdnet": {
        "point_cloud_range": [0.0, -17.5, -1.73, 35.0, 17.5, 1.27],
        "size": [700, 700],
        "channels": ["height_max", "intensity_mean", "count"],
        "orientation": "image",
    },
    "second": {
        "point_cloud_range": [0.0, -40.0, -3.0, 70.4, 40.0, 1.0],
        "size": [352, 400],
        "channels": ["slices:10", "intensity_top", "count"],
        "orientation": "grid",
    },
}


def bev_preset(name: str) -> Dict[str, Any]:
    """Keyword arguments of `bev_rasterize` for a published encoding, to be changed at will.

    name: "mv3d", "complex_yolo", "pixor", "birdnet" or "second".
    """
    if not isinstance(name, str) or name not in _PRESETS:
        raise ValueError(f"bev_preset: name must be one of {', '.join(_PRESETS)}, got {name!r}")
    return copy.deepcopy(_PRESETS[name])


def bev_affine(
    point_cloud_range: Sequence[float], size: Sequence[int], orientation: Orientation = "grid"
) -> Tensor:
    """The matrix from pixels to meters: (x, y, 1) = A @ (column, row, 1), [3, 3] float64.

    Whole pixel coordinates are cell centers. Arguments as for `bev_max_height`; the inverse maps
    meters to pixels.
    """
    try:
        bounds = np.asarray(point_cloud_range, dtype=np.float32)
    except (TypeError, ValueError):
        bounds = np.empty(0, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        extent = bounds[3:] - bounds[:3] if bounds.shape == (6,) else np.array([np.nan])
    if not np.isfinite(extent).all() or (extent <= 0).any():
        raise ValueError(
            "bev_affine: point_cloud_range must be (x0, y0, z0, x1, y1, z1), finite, with each "
            f"lower bound below its upper bound, got {point_cloud_range!r}"
        )
    cells: List[Any] = list(size) if hasattr(size, "__iter__") else [size]
    if len(cells) != 2 or any(not isinstance(n, Integral) or int(n) < 1 for n in cells):
        raise ValueError(f"bev_affine: size must be (nx, ny), each at least 1, got {size!r}")
    width, height = (extent[:2] / np.asarray(cells, dtype=np.float32)).tolist()
    x0, y0 = bounds[:2].tolist()
    nx, ny = cells
    first_x, last_x = x0 + 0.5 * width, x0 + (nx - 0.5) * width
    first_y, last_y = y0 + 0.5 * height, y0 + (ny - 0.5) * height
    if orientation == "grid":
        rows = [[width, 0.0, first_x], [0.0, height, first_y]]
    elif orientation == "image":
        rows = [[0.0, -width, last_x], [-height, 0.0, last_y]]
    elif orientation == "north_up":
        rows = [[width, 0.0, first_x], [0.0, -height, last_y]]
    else:
        raise ValueError(
            f"bev_affine: orientation must be 'grid', 'image' or 'north_up', got {orientation!r}"
        )
    return torch.tensor([*rows, [0.0, 0.0, 1.0]], dtype=torch.float64)
