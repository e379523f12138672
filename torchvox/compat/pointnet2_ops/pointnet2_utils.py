# SPDX-License-Identifier: Apache-2.0
"""Stands for `pointnet2_ops.pointnet2_utils`: the functions with gradients."""

from torchvox.compat._shared import *
from torchvox.compat._shared import function_class
from torchvox.compat.pointnet2_ops._ext import furthest_point_sampling

# fmt: off
__all__ = [
    "BallQuery", "FurthestPointSampling", "GatherOperation", "GroupAll", "GroupingOperation",
    "QueryAndGroup", "ThreeInterpolate", "ThreeNN", "ball_query", "furthest_point_sample",
    "gather_operation", "grouping_operation", "three_interpolate", "three_nn",
]
# fmt: on
NOT_COVERED = ()

furthest_point_sample = furthest_point_sampling
FurthestPointSampling = function_class(furthest_point_sample)
