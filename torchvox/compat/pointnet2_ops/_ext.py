# SPDX-License-Identifier: Apache-2.0
"""Replaces `pointnet2_ops._ext`, the compiled functions: tensors in, tensors out."""

import torch

import torchvox
from torchvox.compat import _shared
from torchvox.compat._shared import gather_operation as gather_points
from torchvox.compat._shared import grouping_operation as group_points

__all__ = [
    "ball_query", "furthest_point_sampling", "gather_points", "gather_points_grad", "group_points",
    "group_points_grad", "three_interpolate", "three_interpolate_grad", "three_nn",
]  # fmt: skip


def furthest_point_sampling(points, nsamples):
    """[B, nsamples] int32; points with |p|^2 <= 1e-3 are never chosen, except the first."""
    return torchvox.furthest_point_sample(points, nsamples, convention="pointnet2").idx


def gather_points_grad(grad_out, idx, n):
    return torch.ops.torchvox._gather_points_backward(grad_out, idx, n, channels_first=True)


def group_points_grad(grad_out, idx, n):
    return torch.ops.torchvox._group_points_backward(grad_out, idx, n, channels_first=True)


def ball_query(new_xyz, xyz, radius, nsample):
    return _shared.ball_query(radius, nsample, xyz, new_xyz)


def three_nn(unknown, known):
    """Squared distances and int32 indices; inf and 0 for missing points."""
    dist2, idx = torchvox.three_nn(unknown, known, convention="pointnet2")
    return [dist2, idx.clamp(min=0)]


def three_interpolate(points, idx, weight):
    return torchvox.three_interpolate(points, idx, weight, channels_first=True)


def three_interpolate_grad(grad_out, idx, weight, m):
    features = grad_out.new_empty(1).expand(*grad_out.shape[:2], m)  # only its shape is read
    return torch.ops.torchvox._three_interpolate_backward(
        grad_out, features, idx, weight, channels_first=True, for_weight=False
    )[0]
