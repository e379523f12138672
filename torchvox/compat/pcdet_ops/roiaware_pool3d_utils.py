# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.roiaware_pool3d.roiaware_pool3d_utils`, on every device."""

import numpy as np
import torch
from torch import nn

import torchvox
from torchvox.compat._errors import stubs
from torchvox.compat._pooling import roiaware_pool
from torchvox.compat._shared import widened
from torchvox.compat.pcdet_ops.roiaware_pool3d_cuda import MARGIN, box_mask

__all__ = ["RoIAwarePool3d", "points_in_boxes_cpu", "points_in_boxes_gpu"]
NOT_COVERED = "RoIAwarePool3dFunction"
__getattr__ = stubs("pcdet.ops.roiaware_pool3d.roiaware_pool3d_utils", NOT_COVERED)


def points_in_boxes_cpu(points, boxes):
    """[N, M] int32, 1 or 0, for [M, 3] and [N, 7]; arrays give an array. Margin: 1 cm."""
    mask = box_mask(*(torch.as_tensor(one).float() for one in (boxes, points))).int()
    return mask.numpy() if isinstance(boxes, np.ndarray) else mask


def points_in_boxes_gpu(points, boxes):
    """[B, M] int32, the first box of each point or -1, for [B, M, 3] and [B, T, 7]."""
    return torchvox.points_in_boxes(widened(points), widened(boxes), margin=MARGIN)


class RoIAwarePool3d(nn.Module):
    """[N, x, y, z, C]: "max" or "avg" of the first max_pts_each_voxel - 1 points of each cell."""

    def __init__(self, out_size, max_pts_each_voxel=128):
        super().__init__()
        self.out_size, self.max_pts_each_voxel = out_size, max_pts_each_voxel

    def forward(self, rois, pts, pts_feature, pool_method="max"):
        assert pool_method in ("max", "avg"), f"pool_method must be max or avg, got {pool_method}"
        limits = self.out_size, self.max_pts_each_voxel
        return roiaware_pool(rois, pts, pts_feature, *limits, pool_method, MARGIN)
