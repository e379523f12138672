# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view rasters of point clouds."""

from typing import List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor


class BEVHeight(NamedTuple):
    height: Tensor
    counts: Tensor


class BEVHeightWithIndex(NamedTuple):
    height: Tensor
    top_index: Tensor
    counts: Tensor


def bev_max_height(
    points: Tensor,
    point_cloud_range: List[float],
    size: List[int],
    *,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    orientation: str = "grid",
    out_dtype: Optional[torch.dtype] = None,
    fill: float = 0.0,
    lowest_code: int = 1,
) -> BEVHeight:
    """Height of the highest point in each cell of a bird's-eye-view grid.

    points: [N, C] float16, bfloat16, float32 or float64, C >= 3; columns 0-2 are x, y, z in metres.
    point_cloud_range: (x0, y0, z0, x1, y1, z1) in metres. A point counts when it is finite and
        lower <= p < upper holds on all three axes.
    size: (nx, ny) cells. A cell is fp32(upper - lower) / fp32(n) wide, and point x lies in cell
        floor((x - x0) / width), which must be below n too.
    batch_offsets: [B + 1] int32 or int64 on the points' device; sample b owns rows
        batch_offsets[b] to batch_offsets[b + 1]. None: one sample.
    num_valid: [B] int32 or int64 on the points' device; rows of a sample past it are padding.
    orientation: "grid" gives row iy, column ix, [B, ny, nx]; "image" has forward (+x) up and left
        (+y) left, [B, nx, ny]; "north_up" has +y up, [B, ny, nx].
    out_dtype: torch.float32 (default) stores the height in metres, `fill` where a cell is empty.
        torch.uint8 stores lowest_code + floor(t * (255 - lowest_code)), t = (z - z0) / (z1 - z0),
        and 0 where empty. torch.uint16 stores 1 + floor(1000 * (z - z0)), saturating, and 0 where
        empty. torch 2.11 has few CPU operations for uint16.

    Returns (height [B, H, W], counts [B + 1, 4] int32). Row 0 of counts is the whole call and row
    1 + b sample b: cells filled, points used, points out of range, points not finite.

    Deterministic; CPU and CUDA give the same bits; no host synchronisation. Points of equal height:
    the lowest index is the top. Differentiable in points for float32 output: a cell's gradient goes
    to its top point's z.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
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
    point_cloud_range: List[float],
    size: List[int],
    *,
    batch_offsets: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
    orientation: str = "grid",
    out_dtype: Optional[torch.dtype] = None,
    fill: float = 0.0,
    lowest_code: int = 1,
) -> BEVHeightWithIndex:
    """`bev_max_height` and, for each cell, the row of its highest point.

    The arguments are those of `bev_max_height`. Returns (height [B, H, W], top_index [B, H, W]
    int32, counts [B + 1, 4] int32). top_index is -1 where a cell is empty, so it tells an empty
    cell from a low one whatever `fill` is, and it fetches any attribute of the highest point.
    """
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


def bev_affine(
    point_cloud_range: Sequence[float], size: Sequence[int], orientation: str = "grid"
) -> Tensor:
    """The matrix from pixels to metres: (x, y) = A @ (row, column, 1), at the pixels' centres.

    Returns [2, 3] float64 on the CPU. Arguments as for `bev_max_height`.
    """
    x0, y0, x1, y1 = (float(point_cloud_range[i]) for i in (0, 1, 3, 4))
    nx, ny = size
    dx, dy = (x1 - x0) / nx, (y1 - y0) / ny
    if orientation == "grid":
        rows = [[0.0, dx, x0 + dx / 2], [dy, 0.0, y0 + dy / 2]]
    elif orientation == "image":
        rows = [[-dx, 0.0, x1 - dx / 2], [0.0, -dy, y1 - dy / 2]]
    elif orientation == "north_up":
        rows = [[0.0, dx, x0 + dx / 2], [-dy, 0.0, y1 - dy / 2]]
    else:
        raise ValueError(
            f"bev_affine: orientation must be 'grid', 'image' or 'north_up', got {orientation!r}"
        )
    return torch.tensor(rows, dtype=torch.float64)
