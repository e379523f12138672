# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.pointnet2.pointnet2_batch.pointnet2_utils`, on every device."""

import torchvox
from torchvox.compat._shared import *
from torchvox.compat._shared import function_class

__all__ = [
    "BallQuery", "FarthestPointSampling", "GatherOperation", "GroupAll", "GroupingOperation",
    "QueryAndGroup", "ThreeInterpolate", "ThreeNN", "ball_query", "farthest_point_sample",
    "furthest_point_sample", "gather_operation", "grouping_operation", "three_interpolate",
    "three_nn",
]  # fmt: skip


def farthest_point_sample(xyz, npoint):
    """[B, npoint] int32."""
    return torchvox.furthest_point_sample(xyz, npoint, convention="openpcdet").idx


furthest_point_sample = farthest_point_sample
FarthestPointSampling = function_class(farthest_point_sample)
