# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.pointnet2.pointnet2_stack.pointnet2_stack_cuda`: packed clouds, with the
number of rows of each in `cnt`."""

import torch

import torchvox
from torchvox.compat._errors import stubs
from torchvox.compat._shared import compiled, group_packed, offsets_of, packed_clouds, put
from torchvox.compat.pcdet_ops.pointnet2_batch_cuda import farthest_point_sampling_wrapper

__all__ = [
    "ball_query_wrapper", "farthest_point_sampling_wrapper", "furthest_point_sampling_wrapper",
    "group_points_grad_wrapper", "group_points_wrapper", "stack_farthest_point_sampling_wrapper",
    "three_interpolate_grad_wrapper", "three_interpolate_wrapper", "three_nn_wrapper",
]  # fmt: skip
NOT_COVERED = """
query_stacked_local_neighbor_idxs_wrapper_stack query_three_nn_by_stacked_local_idxs_wrapper_stack
vector_pool_grad_wrapper vector_pool_wrapper voxel_query_wrapper
"""
__getattr__ = stubs("pcdet.ops.pointnet2.pointnet2_stack.pointnet2_stack_cuda", NOT_COVERED)
DIFFERS = {
    "farthest_point_sampling_wrapper stack_farthest_point_sampling_wrapper": "temp is neither read "
    "nor written."
}

furthest_point_sampling_wrapper = farthest_point_sampling_wrapper


def ball_query(radius, nsample, new_xyz, new_cnt, xyz, cnt):
    """Indices within each cloud. An empty ball gets -1 in column 0, its other columns stay."""
    options = packed_clouds(cnt, new_cnt)
    balls = torchvox.ball_query(xyz, new_xyz, radius, nsample, convention="openpcdet", **options)
    hit = balls.count[:, None] > 0
    return torch.where(hit, balls.idx, -1), hit | (torch.arange(nsample, device=hit.device) == 0)


def _group_grad(n, grad_out, idx, idx_cnt, cnt):
    rows = torchvox.neighbor_rows(idx, n, **packed_clouds(cnt, idx_cnt))[None]
    return torch.ops.torchvox._group_points_backward(grad_out.transpose(1, 2)[None], rows, n)[0]


def three_nn(unknown, unknown_cnt, known, known_cnt):
    """Squared distances and rows of known; inf and the first row of a cloud of fewer than three
    points."""
    clouds = packed_clouds(known_cnt, unknown_cnt)
    del clouds["local_index"]
    dist2, idx = torchvox.three_nn(unknown, known, convention="pointnet2", **clouds)
    query = torch.arange(len(idx), device=idx.device)
    cloud = torch.bucketize(query, unknown_cnt.cumsum(0), right=True)
    first = clouds["batch_offsets"][cloud.clamp(max=len(unknown_cnt) - 1)]
    return [dist2, torch.where(idx < 0, first[:, None], idx)]


def _interpolate(features, idx, weight):
    return torchvox.three_interpolate(features[None], idx[None], weight[None])[0]


# fmt: off
ball_query_wrapper = compiled(
    "ball_query_wrapper(b, m, radius, nsample, new_xyz, new_cnt, xyz, cnt -> idx) = 1", ball_query)
group_points_wrapper = compiled(
    "group_points_wrapper(b, m, c, nsample, features, cnt, idx, idx_cnt -> out) = 1", group_packed)
group_points_grad_wrapper = compiled(
    "group_points_grad_wrapper(b, m, c, n, nsample, grad_out, idx, idx_cnt, cnt"
    " -> +grad_features) = 1", _group_grad)
three_nn_wrapper = compiled(
    "three_nn_wrapper(unknown, unknown_cnt, known, known_cnt -> dist2, idx)", three_nn)
three_interpolate_wrapper = compiled(
    "three_interpolate_wrapper(features, idx, weight -> out)", _interpolate)
# fmt: on


def stack_farthest_point_sampling_wrapper(xyz, temp, cnt, idx, npoint, /):
    """Rows of xyz."""
    places = offsets_of(cnt), offsets_of(npoint), len(idx)
    sample = torchvox.furthest_point_sample_ragged(xyz, *places, convention="openpcdet")
    put("stack_farthest_point_sampling_wrapper: idx", idx, sample.idx)
    return 1


def three_interpolate_grad_wrapper(grad_out, idx, weight, grad_features, /):
    tensors = (one.detach()[None] for one in (grad_out, grad_features, idx, weight))
    backward = torch.ops.torchvox._three_interpolate_backward
    grad_features.data.add_(backward(*tensors, for_weight=False)[0][0])
