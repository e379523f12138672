# SPDX-License-Identifier: Apache-2.0
"""Stands for `pcdet.ops.roipoint_pool3d.roipoint_pool3d_cuda`. Boxes have their center's z."""

from torchvox.compat._pooling import roipoint_pool
from torchvox.compat._shared import put
from torchvox.compat.pcdet_ops.roiaware_pool3d_cuda import MARGIN

__all__ = ["forward"]


def forward(xyz, boxes3d, pts_feature, pooled_features, pooled_empty_flag, /):
    """[B, M, k, 3 + C]: the first k points of each box, repeated; [B, M]: 1 where there is none."""
    found = roipoint_pool(xyz, pts_feature, boxes3d, pooled_features.size(2), MARGIN)
    put("forward: pooled_features", pooled_features, found[0])
    put("forward: pooled_empty_flag", pooled_empty_flag, found[1])
    return 1
