# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.roiaware_pool3d.roiaware_pool3d_cuda`. z of a box is its center."""

import torch

import torchvox
from torchvox.compat._pooling import box_query, pool_cells
from torchvox.compat._shared import compiled, put, widened

__all__ = ["backward", "forward", "points_in_boxes_cpu", "points_in_boxes_gpu"]

MARGIN, MARGIN_CPU = 1e-5, 1e-2


def _first_box(boxes, pts):
    """The first box of each point; points in no box keep their value."""
    first = torchvox.points_in_boxes(widened(pts), widened(boxes), margin=MARGIN)
    return first, first >= 0


def box_mask(boxes, pts):
    """[N, M] bool: which box contains which point."""
    clouds = widened(pts)[None], widened(boxes)[None]
    return torchvox.points_in_boxes(*clouds, mode="mask", margin=MARGIN_CPU)[0]


points_in_boxes_gpu = compiled(
    "points_in_boxes_gpu(boxes, pts -> box_idx_of_points) = 1", _first_box
)
points_in_boxes_cpu = compiled("points_in_boxes_cpu(boxes, pts -> pts_indices) = 1", box_mask)


def forward(rois, pts, pts_feature, argmax, pts_idx_of_voxels, pooled_features, pool_method, /):
    """pts_idx_of_voxels [N, x, y, z, k] gets a count and the first k - 1 points of each cell, and
    pooled_features their maximum (0) or mean (1); argmax gets the points of the maximum, or -1."""
    *cells, k = pts_idx_of_voxels.shape
    rows, count = box_query(pts[None], rois[None], k - 1, MARGIN, cells[1:])
    lists = torch.cat([count.clamp(max=k - 1)[..., None], rows.clamp(min=0)], -1)
    put("forward: pts_idx_of_voxels", pts_idx_of_voxels, lists.view(*cells, k))
    pooled, best = pool_cells(pts_feature.detach(), rows, "avg" if pool_method else "max")
    put("forward: pooled_features", pooled_features, pooled.view(*cells, pooled.size(1)))
    if not pool_method:
        put("forward: argmax", argmax, best.view(*cells, best.size(1)))
    return 1


def backward(pts_idx_of_voxels, argmax, grad_out, grad_in, pool_method, /):
    """Add the gradients to grad_in [M, C], in order."""
    points, channels = grad_in.shape
    if pool_method:
        lists = pts_idx_of_voxels.flatten(0, 3)
        count, slot = lists[:, :1], torch.arange(lists.size(1) - 1, device=lists.device)
        rows = torch.where(slot < count, lists[:, 1:], -1)
        each = (grad_out.flatten(0, 3) / count.clamp(min=1))[:, None].expand(*rows.shape, -1)
        value = torch.ops.torchvox._group_points_backward(each[None], rows[None], points)[0]
    else:
        channel = torch.arange(channels, device=argmax.device)
        entry = torch.where(argmax < 0, -1, argmax.long() * channels + channel).view(1, -1)
        gather = torch.ops.torchvox._gather_points_backward
        value = gather(grad_out.reshape(1, -1, 1), entry, points * channels).view_as(grad_in)
    put("backward: grad_in", grad_in, value, add=True)
    return 1
