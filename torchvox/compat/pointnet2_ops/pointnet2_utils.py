# SPDX-License-Identifier: Apache-2.0
"""Replaces `pointnet2_ops.pointnet2_utils`: the functions with gradients."""

from torchvox.compat._shared import *
from torchvox.compat._shared import function_class
from torchvox.compat.pointnet2_ops._ext import furthest_point_sampling

__all__ = [
    "BallQuery", "FurthestPointSampling", "GatherOperation", "GroupAll", "GroupingOperation",
    "QueryAndGroup", "ThreeInterpolate", "ThreeNN", "ball_query", "furthest_point_sample",
    "gather_operation", "grouping_operation", "three_interpolate", "three_nn",
]  # fmt: skip


def furthest_point_sample(xyz, npoint):
    """[B, npoint] int32; points with |p|^2 <= 1e-3 are never chosen, except the first."""
    return furthest_point_sampling(xyz, npoint)


FurthestPointSampling = function_class(furthest_point_sample)
