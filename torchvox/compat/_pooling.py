# SPDX-License-Identifier: Apache-2.0
"""RoI pooling over `box_query`. Boxes have their center's z."""

from typing import Sequence, Tuple

import torch
from torch import Tensor

import torchvox

__all__ = ["roiaware_pool", "roipoint_pool"]


def roipoint_pool(
    points: Tensor, features: Tensor, boxes: Tensor, k: int, margin: float = 0.0
) -> Tuple[Tensor, Tensor]:
    """points [B, N, 3], features [B, N, C], boxes [B, G, 7] -> pooled [B, G, k, 3 + C] and empty
    [B, G] int32: the first k points of each box, repeated cyclically where there are fewer; zeros
    and 1 where there are none. Differentiable in points and features."""
    index, count = torchvox.box_query(points.detach(), boxes.detach(), k, margin=margin)
    slots = torch.arange(k, device=index.device) % count[..., None].clamp(1, max(k, 1))
    index = index.gather(2, slots)  # slot 0 of an empty box is -1, and gives zeros
    return torchvox.group_points(torch.cat([points, features], -1), index), (count == 0).int()


def roiaware_pool(
    rois: Tensor,
    points: Tensor,
    features: Tensor,
    out_size: Sequence[int],
    max_pts: int,
    mode: str,
    margin: float = 0.0,
) -> Tensor:
    """rois [G, 7], points [N, 3], features [N, C] -> [G, ox, oy, oz, C]: "max" or "avg" of the
    first max_pts - 1 points of each cell of a box, 0 where there are none. Differentiable in
    features."""
    k = max_pts - 1
    index, _ = torchvox.box_query(
        points.detach()[None], rois.detach()[None], k, grid=list(out_size), margin=margin
    )
    cells = len(rois) * out_size[0] * out_size[1] * out_size[2]
    offsets = torch.arange(cells + 1, device=index.device) * k
    reduce = {"max": "max", "avg": "mean"}[mode]
    pooled, _ = torchvox.segment_reduce(features, offsets, reduce, index=index.flatten())
    return pooled.view(len(rois), *out_size, -1)
