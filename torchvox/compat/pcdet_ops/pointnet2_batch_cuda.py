# SPDX-License-Identifier: Apache-2.0
"""Stands for `pcdet.ops.pointnet2.pointnet2_batch.pointnet2_batch_cuda`, and openpoints' copy."""

import torchvox
from torchvox.compat._shared import writes
from torchvox.compat.pointnet2_ops import _ext

__all__ = [
    "ball_query_wrapper", "farthest_point_sampling_wrapper", "furthest_point_sampling_wrapper",
    "gather_points_grad_wrapper", "gather_points_wrapper", "group_points_grad_wrapper",
    "group_points_wrapper", "three_interpolate_grad_wrapper", "three_interpolate_wrapper",
    "three_nn_wrapper",
]  # fmt: skip
DIFFERS = {
    "farthest_point_sampling_wrapper": "temp is neither read nor written.",
}


@writes("idx")
def ball_query_wrapper(b, n, m, radius, nsample, new_xyz, xyz):
    """The row of an empty ball stays as it is."""
    found = torchvox.ball_query(xyz, new_xyz, radius, nsample, convention="openpcdet")
    return found.idx, found.count[..., None] > 0


@writes("out")
def group_points_wrapper(b, c, n, m, nsample, points, idx):
    return _ext.group_points(points, idx)


@writes("grad_points", add=True)
def group_points_grad_wrapper(b, c, n, m, nsample, grad_out, idx):
    return _ext.group_points_grad(grad_out, idx, n)


@writes("out")
def gather_points_wrapper(b, c, n, m, points, idx):
    return _ext.gather_points(points, idx)


@writes("grad_points", add=True)
def gather_points_grad_wrapper(b, c, n, m, grad_out, idx):
    return _ext.gather_points_grad(grad_out, idx, n)


@writes("idx")
def farthest_point_sampling_wrapper(b, n, m, xyz, temp):
    return torchvox.furthest_point_sample(xyz, m, convention="openpcdet").idx


@writes("dist2", "idx", returns=None)
def three_nn_wrapper(b, n, m, unknown, known):
    return _ext.three_nn(unknown, known)


@writes("out", returns=None)
def three_interpolate_wrapper(b, c, m, n, points, idx, weight):
    return _ext.three_interpolate(points, idx, weight)


@writes("grad_points", add=True, returns=None)
def three_interpolate_grad_wrapper(b, c, n, m, grad_out, idx, weight):
    return _ext.three_interpolate_grad(grad_out, idx, weight, m)


furthest_point_sampling_wrapper = farthest_point_sampling_wrapper  # openpoints, older versions
