# SPDX-License-Identifier: Apache-2.0
"""Replaces `pytorch3d.ops` 0.7.9: three searches and their gathers.

Names, signatures, layouts, dtypes and padding are the peer's. `sample_farthest_points` reads the
largest length, and K if it is a tensor, from the device, as the peer does.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

import torchvox
from torchvox.compat._errors import stubs
from torchvox.compat._shared import check_index

__all__ = [
    "_KNN", "ball_query", "knn_gather", "knn_points", "masked_gather", "sample_farthest_points",
]  # fmt: skip
NOT_COVERED = """
GraphConv SubdivideMeshes add_pointclouds_to_volumes
add_points_features_to_volume_densities_features box3d_overlap convert_pointclouds_to_tensor
corresponding_cameras_alignment corresponding_points_alignment cot_laplacian cubify efficient_pnp
estimate_pointcloud_local_coord_frames estimate_pointcloud_normals eyes get_point_covariances
interpolate_face_attributes is_pointclouds iterative_closest_point laplacian mesh_face_areas_normals
norm_laplacian packed_to_padded padded_to_packed sample_points_from_meshes taubin_smoothing
vert_align wmean
"""
DIFFERS = {
    "ball_query": "skip_points_outside_cube is ignored: it only makes the peer faster.",
    "knn_points": "Always sorted, equal distances by index; version is ignored.",
    "sample_farthest_points": "Random starts come from torch's generator of the points' device.",
}
__getattr__ = stubs("pytorch3d.ops", NOT_COVERED)


class _KNN(NamedTuple):
    dists: Tensor
    idx: Tensor
    knn: Optional[Tensor]


def _same(p1, p2):
    if p1.shape[0] != p2.shape[0]:
        raise ValueError("pts1 and pts2 must have the same batch dimension.")
    if p1.shape[2] != p2.shape[2]:
        raise ValueError("pts1 and pts2 must have the same point dimension.")


def sample_farthest_points(points, lengths=None, K=50, random_start_point=False):
    """(points [N, max K, D] float32, int64 rows [N, max K]), 0 and -1 past K and past a length."""
    points, clouds = points.float(), points.shape[0]
    if lengths is None:
        lengths = torch.full((clouds,), points.shape[1], device=points.device)
    elif lengths.shape != (clouds,):
        raise ValueError("points and lengths must have same batch dimension.")
    elif clouds and lengths.max() > points.shape[1]:
        raise ValueError("A value in lengths was too large.")
    if not isinstance(K, int) and len(K) != clouds:
        raise ValueError("K and points must have the same batch dimension")
    if isinstance(K, int):
        most, counts = K, lengths.clamp(max=K)
    else:
        most = max(K if isinstance(K, list) else K.tolist(), default=0)
        counts = torch.minimum(torch.as_tensor(K, device=points.device).long(), lengths)
    idx = torchvox.furthest_point_sample(
        points,
        most,
        lengths=lengths,
        counts=counts,
        start="random" if random_start_point else 0,
        convention="pytorch3d",
    ).idx
    return torchvox.gather_points(points, idx), idx.long()


def ball_query(
    p1,
    p2,
    lengths1=None,
    lengths2=None,
    K=500,
    radius=0.2,
    return_nn=True,
    skip_points_outside_cube=False,
):
    """The first K points of p2 by index in the ball of each p1: squared distances, int64 rows and
    points; 0, -1 and 0 where there are fewer."""
    _same(p1, p2)
    dist2, idx, _ = torchvox.ball_query(
        p2, p1, radius, K, lengths=lengths2, query_lengths=lengths1, convention="pytorch3d"
    )
    return _KNN(dist2, idx.long(), torchvox.group_points(p2, idx) if return_nn else None)


def knn_points(
    p1,
    p2,
    lengths1=None,
    lengths2=None,
    norm=2,
    K=1,
    version=-1,
    return_nn=False,
    return_sorted=True,
):
    """The K nearest points of p2 to each p1, nearest first: squared distances (L1 for norm 1) and
    int64 rows, both 0 where there are fewer, and points."""
    _same(p1, p2)
    if norm not in (1, 2):
        raise ValueError("Support for 1 or 2 norm.")
    dist2, idx = torchvox.knn(
        p2, p1, K, norm=norm, lengths=lengths2, query_lengths=lengths1, convention="pytorch3d"
    )
    rows = idx.clamp(min=0).long()
    points = knn_gather(p2, rows, lengths2) if return_nn else None
    return _KNN(dist2.masked_fill(idx < 0, 0), rows, points)


def knn_gather(x, idx, lengths=None):
    """[N, L, K, U] of [N, M, U], 0 in the slots past the length."""
    if x.shape[0] != idx.shape[0]:
        raise ValueError("x and idx must have same batch dimension.")
    if x.shape[1] > 0:
        check_index("knn_gather", idx, 0, x.shape[1])
    if lengths is not None or idx.shape[2] > x.shape[1]:
        length = x.shape[1] if lengths is None else lengths[:, None, None]
        idx = idx.masked_fill(torch.arange(idx.shape[2], device=idx.device) >= length, -1)
    return torchvox.group_points(x, idx)


def masked_gather(points, idx):
    """Rows of [N, P, D] by [N, K] or [N, L, K], 0 where the index is -1."""
    if len(idx) != len(points):
        raise ValueError("points and idx must have the same batch dimension")
    if idx.ndim not in (2, 3):
        raise ValueError(f"idx format is not supported {idx.shape!r}")
    check_index("masked_gather", idx, -1, points.shape[1])
    return (torchvox.gather_points if idx.ndim == 2 else torchvox.group_points)(points, idx)
