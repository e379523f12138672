# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.pointnet2.pointnet2_batch.pointnet2_batch_cuda`, and openpoints' copy."""

import torchvox
from torchvox.compat._shared import compiled
from torchvox.compat.pointnet2_ops import _ext

__all__ = [
    "ball_query_wrapper", "farthest_point_sampling_wrapper", "furthest_point_sampling_wrapper",
    "gather_points_grad_wrapper", "gather_points_wrapper", "group_points_grad_wrapper",
    "group_points_wrapper", "three_interpolate_grad_wrapper", "three_interpolate_wrapper",
    "three_nn_wrapper",
]  # fmt: skip
DIFFERS = {"farthest_point_sampling_wrapper": "temp is neither read nor written."}


def _ball_query(radius, nsample, new_xyz, xyz):
    """int32 indices; the row of an empty ball keeps its values."""
    balls = torchvox.ball_query(xyz, new_xyz, radius, nsample, convention="openpcdet")
    return balls.idx, balls.count[..., None] > 0


def _sample(xyz, m):
    return torchvox.furthest_point_sample(xyz, m, convention="openpcdet").idx


# fmt: off
ball_query_wrapper = compiled(
    "ball_query_wrapper(b, n, m, radius, nsample, new_xyz, xyz -> idx) = 1", _ball_query)
farthest_point_sampling_wrapper = compiled(
    "farthest_point_sampling_wrapper(b, n, m, xyz, temp -> idx) = 1", _sample)
furthest_point_sampling_wrapper = farthest_point_sampling_wrapper  # openpoints, older versions
group_points_wrapper = compiled(
    "group_points_wrapper(b, c, n, m, nsample, features, idx -> out) = 1", _ext.group_points)
group_points_grad_wrapper = compiled(
    "group_points_grad_wrapper(b, c, n, m, nsample, grad_out, idx -> +grad_points) = 1",
    _ext.group_points_grad)
gather_points_wrapper = compiled(
    "gather_points_wrapper(b, c, n, m, features, idx -> out) = 1", _ext.gather_points)
gather_points_grad_wrapper = compiled(
    "gather_points_grad_wrapper(b, c, n, m, grad_out, idx -> +grad_points) = 1",
    _ext.gather_points_grad)
three_nn_wrapper = compiled(
    "three_nn_wrapper(b, n, m, unknown, known -> dist2, idx)", _ext.three_nn)
three_interpolate_wrapper = compiled(
    "three_interpolate_wrapper(b, c, m, n, points, idx, weight -> out)", _ext.three_interpolate)
three_interpolate_grad_wrapper = compiled(
    "three_interpolate_grad_wrapper(b, c, n, m, grad_out, idx, weight -> +grad_points)",
    _ext.three_interpolate_grad)
