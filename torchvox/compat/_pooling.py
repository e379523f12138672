# SPDX-License-Identifier: Apache-2.0
"""RoI pooling by `box_query`. z of a box is its center."""

from typing import Literal, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

import torchvox
from torchvox.compat._shared import widened
from torchvox.ops.boxes import BoxPoints


def box_query(
    points: Tensor, boxes: Tensor, k: int, margin: float, grid: Optional[Sequence[int]] = None
) -> BoxPoints:
    """`torchvox.box_query` of points in any precision."""
    rows = widened(points.detach())
    return torchvox.box_query(rows, boxes.detach().to(rows.dtype), k, grid=grid, margin=margin)


def roipoint_pool(
    points: Tensor, features: Tensor, boxes: Tensor, k: int, margin: float = 0.0
) -> Tuple[Tensor, Tensor]:
    """points [B, N, 3], features [B, N, C], boxes [B, G, 7] -> pooled [B, G, k, 3 + C] and empty
    [B, G] int32: the first k points of each box, repeated cyclically if there are fewer; zeros
    and 1 if there are none. Differentiable in points and features."""
    index, count = box_query(points, boxes, k, margin)
    slots = torch.arange(k, device=index.device) % count[..., None].clamp(1, max(k, 1))
    index = index.gather(2, slots)  # slot 0 of an empty box is -1, and gives zeros
    rows = torch.cat([points, features], -1)  # in the wider of their dtypes
    return torchvox.group_points(rows, index), (count == 0).int()


def pool_cells(features: Tensor, index: Tensor, mode: str) -> Tuple[Tensor, Tensor]:
    """The "max" or "avg" of the rows in the last dimension of index, and the row of the maximum."""
    rows = index.flatten()
    offsets = torch.arange(index.shape[:-1].numel() + 1, device=rows.device) * index.size(-1)
    reduce: Literal["max", "mean"] = "max" if mode == "max" else "mean"
    return torchvox.segment_reduce(features, offsets, reduce, index=rows)


def roiaware_pool(
    rois: Tensor,
    points: Tensor,
    features: Tensor,
    out_size: Union[int, Sequence[int]],
    max_pts: int,
    mode: str,
    margin: float = 0.0,
) -> Tensor:
    """rois [G, 7], points [N, 3], features [N, C] -> [G, ox, oy, oz, C]: "max" or "avg" of the
    first max_pts - 1 points of each cell of a box, 0 if there are none. out_size: one number for
    all axes or three. Differentiable in features."""
    size = [out_size] * 3 if isinstance(out_size, int) else list(out_size)
    cells = box_query(points[None], rois[None], max_pts - 1, margin, size)
    return pool_cells(features, cells.index, mode)[0].view(len(rois), *size, features.size(1))
