# SPDX-License-Identifier: Apache-2.0
"""Stands for `pcdet.ops.roiaware_pool3d.roiaware_pool3d_cuda`. Boxes have their center's z."""

import torch

import torchvox
from torchvox.compat._shared import writes

__all__ = ["backward", "forward", "points_in_boxes_cpu", "points_in_boxes_gpu"]
NOT_COVERED = ()

MARGIN, MARGIN_CPU = 1e-5, 1e-2


@writes("box_idx_of_points")
def points_in_boxes_gpu(boxes, pts):
    """The first box of each point; points in none stay as they are."""
    found = torchvox.points_in_boxes(pts, boxes, margin=MARGIN)
    return found, found >= 0


@writes("pts_indices")
def points_in_boxes_cpu(boxes, pts):
    """[N, M], 1 or 0."""
    return torchvox.points_in_boxes(pts[None], boxes[None], mode="mask", margin=MARGIN_CPU)[0]


def forward(rois, pts, pts_feature, argmax, pts_idx_of_voxels, pooled_features, pool_method, /):
    """pts_idx_of_voxels [N, x, y, z, k]: a number and the first k - 1 points of each cell. Pools
    them, the maximum (0) or mean (1); argmax holds the points that have it, -1 where none is. The
    number of hits is one read of the device."""
    *cells, k = pts_idx_of_voxels.shape
    found = torchvox.box_query(pts[None], rois[None], k - 1, grid=cells[1:], margin=MARGIN)
    lists = torch.cat([found.count.clamp(max=k - 1)[..., None], found.index.clamp(min=0)], -1)
    pts_idx_of_voxels.copy_(lists.view_as(pts_idx_of_voxels))
    index = found.index.flatten()
    slots = (index >= 0).nonzero()[:, 0]
    cell, rows = (slots // (k - 1)).int(), index[slots].long()
    size, reduce = argmax[..., 0].numel(), "mean" if pool_method else "max"
    pooled, best = torchvox.voxel_scatter(pts_feature.detach()[rows], cell, size, reduce)
    pooled_features.copy_(pooled.view_as(pooled_features))
    if not pool_method:
        named = torch.cat([rows, rows.new_full((1,), -1)])  # -1 names the last
        argmax.copy_(named[best.long()].view_as(argmax))
    return 1


@writes("grad_in", add=True)
def _max_backward(argmax, grad_out, grad_in):
    points, channels = grad_in.shape
    channel = torch.arange(channels, device=argmax.device)
    entry = torch.where(argmax < 0, -1, argmax.long() * channels + channel).view(1, -1)
    grad = torch.ops.torchvox._gather_points_backward(
        grad_out.reshape(1, -1, 1), entry, points * channels
    )
    return grad.view(points, channels)


@writes("grad_in", add=True)
def _mean_backward(lists, grad_out, grad_in):
    count, k = lists[..., :1], lists.size(-1) - 1
    rows = torch.where(torch.arange(k, device=lists.device) < count, lists[..., 1:], -1)
    slots = (grad_out / count.clamp(min=1))[..., None, :].expand(*rows.shape, -1)
    slots, rows = slots.reshape(1, -1, k, slots.size(-1)), rows.reshape(1, -1, k)
    return torch.ops.torchvox._group_points_backward(slots, rows, len(grad_in))[0]


def backward(pts_idx_of_voxels, argmax, grad_out, grad_in, pool_method, /):
    """grad_in [M, C] gets the sums, in order."""
    if pool_method:
        return _mean_backward(pts_idx_of_voxels, grad_out, grad_in, grad_in)
    return _max_backward(argmax, grad_out, grad_in, grad_in)
