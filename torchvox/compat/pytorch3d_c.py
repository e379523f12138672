# SPDX-License-Identifier: Apache-2.0
"""Replaces `pytorch3d._C` 0.7.9, under the peer's own Python.

`knn_check_version` is absent, as in the peer's builds without CUDA: callers test for it.
"""

import torch

import torchvox
from torchvox.compat import pytorch3d_ops as ops
from torchvox.compat._errors import stubs

__all__ = [
    "EPS", "MAX_FLOAT", "MAX_INT", "MAX_UINT", "MAX_USHORT", "PULSAR_MAX_GRAD_SPHERES",
    "ball_query", "knn_points_backward", "knn_points_idx", "sample_farthest_points",
]  # fmt: skip
NOT_COVERED = """
PulsarRenderer accum_alphacomposite accum_alphacomposite_backward accum_weightedsum
accum_weightedsum_backward accum_weightedsumnorm accum_weightedsumnorm_backward
edge_point_dist_backward edge_point_dist_forward face_areas_normals_backward
face_areas_normals_forward face_point_dist_backward face_point_dist_forward gather_scatter
interp_face_attrs_backward interp_face_attrs_forward iou_box3d marching_cubes
mesh_normal_consistency_find_verts packed_to_padded padded_to_packed point_edge_array_dist_backward
point_edge_array_dist_forward point_edge_dist_backward point_edge_dist_forward
point_face_array_dist_backward point_face_array_dist_forward point_face_dist_backward
point_face_dist_forward points_to_volumes_backward points_to_volumes_forward
pulsar_sphere_ids_from_result_info_nograd rasterize_meshes rasterize_meshes_backward
rasterize_points rasterize_points_backward sample_pdf sigmoid_alpha_blend
sigmoid_alpha_blend_backward
"""
__getattr__ = stubs("pytorch3d._C", NOT_COVERED)

# The peer reads these at import.
EPS, MAX_FLOAT, PULSAR_MAX_GRAD_SPHERES = 1e-6, 3.4e38, 128
MAX_INT, MAX_UINT, MAX_USHORT = 2**31 - 1, 2**32 - 1, 2**16 - 1


@torch.no_grad()
def knn_points_idx(p1, p2, lengths1, lengths2, norm, K, version):
    """(int64 rows, distances) of `pytorch3d_ops.knn_points`."""
    dists, idx, _ = ops.knn_points(p1, p2, lengths1, lengths2, norm, K)
    return idx, dists


def knn_points_backward(p1, p2, lengths1, lengths2, idxs, norm, grad_dists):
    """Gradients of p1 and p2; 0 for slots past the lengths and for rows -1."""
    valid = torch.arange(p1.shape[1], device=p1.device) < lengths1[:, None]
    backward, count = torch.ops.torchvox._neighbor_distance_backward, valid * lengths2[:, None]
    grad_p2, grad_p1 = backward(grad_dists, p2, p1, idxs, norm=norm, count=count)
    return grad_p1, grad_p2


@torch.no_grad()
def ball_query(p1, p2, lengths1, lengths2, K, radius, skip_points_outside_cube=False):
    """(int64 rows, squared distances) of `pytorch3d_ops.ball_query`."""
    dists, idx, _ = ops.ball_query(p1, p2, lengths1, lengths2, K, radius, return_nn=False)
    return idx, dists


def sample_farthest_points(points, lengths, K, start_idxs, max_K=-1):
    """int64 rows [N, max K], -1 past K and past a length. max_K: the largest K, or -1."""
    return torchvox.furthest_point_sample(
        points,
        max(K.tolist(), default=0) if max_K < 0 else max_K,
        lengths=lengths,
        counts=torch.minimum(K, lengths),
        start_idx=start_idxs,
        convention="pytorch3d",
    ).idx.long()
