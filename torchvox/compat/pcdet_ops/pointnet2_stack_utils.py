# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.pointnet2.pointnet2_stack.pointnet2_utils`, on every device."""

import torch
from torch import Tensor, nn

import torchvox
from torchvox.compat._errors import stubs
from torchvox.compat._shared import function_class, group_packed, offsets_of
from torchvox.compat.pcdet_ops import pointnet2_stack_cuda
from torchvox.compat.pcdet_ops.pointnet2_batch_utils import (
    FarthestPointSampling,
    farthest_point_sample,
)

__all__ = [
    "BallQuery", "FarthestPointSampling", "GroupingOperation", "QueryAndGroup",
    "StackFarthestPointSampling", "ThreeInterpolate", "ThreeNN", "ball_query",
    "farthest_point_sample", "furthest_point_sample", "grouping_operation",
    "stack_farthest_point_sample", "three_interpolate", "three_nn",
]  # fmt: skip
NOT_COVERED = """
ThreeNNForVectorPoolByTwoStep VectorPoolWithVoxelQuery three_nn_for_vector_pool_by_two_step
vector_pool_with_voxel_query_op
"""
__getattr__ = stubs("pcdet.ops.pointnet2.pointnet2_stack.pointnet2_utils", NOT_COVERED)


def ball_query(radius, nsample, xyz, xyz_batch_cnt, new_xyz, new_xyz_batch_cnt):
    """(local indices [M, nsample] int32, which balls are empty [M]); an empty ball holds 0."""
    clouds = new_xyz, new_xyz_batch_cnt, xyz, xyz_batch_cnt
    idx, _ = pointnet2_stack_cuda.ball_query(radius, nsample, *clouds)
    return idx.clamp(min=0), idx[:, 0] < 0


def grouping_operation(features, features_batch_cnt, idx, idx_batch_cnt):
    """[N, C] by local [M, k]: [M, C, k]."""
    return group_packed(features, features_batch_cnt, idx, idx_batch_cnt).contiguous()


class QueryAndGroup(nn.Module):
    """(xyz of each ball relative to its center, then features [M, 3 + C, nsample], indices); an
    empty ball holds zeros."""

    def __init__(self, radius, nsample, use_xyz=True):
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz, xyz_batch_cnt, new_xyz, new_xyz_batch_cnt, features=None):
        assert features is not None or self.use_xyz, "features or use_xyz must be given"
        clouds = xyz, xyz_batch_cnt, new_xyz, new_xyz_batch_cnt
        idx, empty = ball_query(self.radius, self.nsample, *clouds)
        columns = []
        if self.use_xyz:
            near = grouping_operation(xyz, xyz_batch_cnt, idx, new_xyz_batch_cnt)
            columns.append(near - new_xyz[..., None])
        if features is not None:
            columns.append(grouping_operation(features, xyz_batch_cnt, idx, new_xyz_batch_cnt))
        return torch.cat(columns, 1).masked_fill(empty[:, None, None], 0), idx


def stack_farthest_point_sample(xyz, xyz_batch_cnt, npoint):
    """[sum of npoint] int32 rows of xyz. npoint: a number, or one per cloud as a list or a tensor,
    whose sum is read from the device."""
    if not isinstance(npoint, Tensor):
        npoint = npoint if isinstance(npoint, list) else [npoint] * len(xyz_batch_cnt)
    total = int(npoint.sum()) if isinstance(npoint, Tensor) else sum(npoint)
    out_offsets = offsets_of(torch.as_tensor(npoint, device=xyz.device).long())
    return torchvox.furthest_point_sample_ragged(
        xyz, offsets_of(xyz_batch_cnt), out_offsets, total, convention="openpcdet"
    ).idx


def three_nn(unknown, unknown_batch_cnt, known, known_batch_cnt):
    """Distances without gradient, and int32 rows of known."""
    clouds = unknown.detach(), unknown_batch_cnt, known.detach(), known_batch_cnt
    dist2, idx = pointnet2_stack_cuda.three_nn(*clouds)
    return dist2.to(unknown.dtype).sqrt(), idx.int()


def three_interpolate(features, idx, weight):
    """[M, C] by [N, 3]: [N, C]; weight has no gradient."""
    return torchvox.three_interpolate(features[None], idx[None], weight.detach()[None])[0]


furthest_point_sample = farthest_point_sample
BallQuery, ThreeNN = function_class(ball_query), function_class(three_nn)
GroupingOperation = function_class(grouping_operation)
StackFarthestPointSampling = function_class(stack_farthest_point_sample)
ThreeInterpolate = function_class(three_interpolate)
