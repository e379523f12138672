# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.roipoint_pool3d.roipoint_pool3d_cuda`. z of a box is its center."""

from torchvox.compat._pooling import roipoint_pool
from torchvox.compat._shared import put
from torchvox.compat.pcdet_ops.roiaware_pool3d_cuda import MARGIN

__all__ = ["forward"]


def forward(xyz, boxes3d, pts_feature, pooled_features, pooled_empty_flag, /):
    """[B, M, k, 3 + C]: the first k points of each box, repeated; [B, M]: 1 if it has none."""
    pooled, empty = roipoint_pool(xyz, pts_feature, boxes3d, pooled_features.size(2), MARGIN)
    put("forward: pooled_features", pooled_features, pooled)
    put("forward: pooled_empty_flag", pooled_empty_flag, empty)
    return 1
