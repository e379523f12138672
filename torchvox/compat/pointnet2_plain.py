# SPDX-License-Identifier: Apache-2.0
"""Replaces the functions of yanx27's PointNet++ in plain torch, of which projects have copies:
`install("pointnet2_plain", at="models.pointnet2_utils")` puts them into that module."""

import torch

import torchvox
from torchvox.compat._shared import check_index

__all__ = [
    "farthest_point_sample", "index_points", "query_ball_point", "sample_and_group",
    "sample_and_group_all", "square_distance",
]  # fmt: skip
DIFFERS = {
    "farthest_point_sample": "Random starts come from torch's generator of the points' device.",
    "query_ball_point": "Distances are computed from differences, not from expanded squares; "
    "an empty ball holds 0, where the peer has an index past the points.",
}


def square_distance(src, dst):
    """[B, N, M] squared distances of [B, N, C] and [B, M, C], by expanded squares as the peer."""
    squares = (src**2).sum(-1)[:, :, None] + (dst**2).sum(-1)[:, None]
    return torch.baddbmm(squares, src, dst.transpose(1, 2), alpha=-2)


def index_points(points, idx):
    """[B, .., C]: rows of [B, N, C] by [B, ..]; negative indices count from the end."""
    check_index("index_points", idx, -points.size(1), points.size(1))
    rows = torch.where(idx < 0, idx + points.size(1), idx)
    return torchvox.gather_points(points, rows.flatten(1)).unflatten(1, idx.shape[1:])


def farthest_point_sample(xyz, npoint):
    """[B, npoint] int64; the first is random."""
    start = torch.randint(max(xyz.size(1), 1), (xyz.size(0),), device=xyz.device)
    return torchvox.furthest_point_sample(
        xyz, npoint, start_idx=start, convention="pytorch3d"
    ).idx.long()


def query_ball_point(radius, nsample, xyz, new_xyz):
    """[B, S, nsample] int64: the first by index with d <= radius, the first hit repeated."""
    return torchvox.query_and_group(
        xyz, new_xyz, None, [radius], [nsample], convention="yanx27"
    ).idx.long()


def sample_and_group(npoint, radius, nsample, xyz, points, returnfps=False):
    """(centers [B, S, 3], [B, S, nsample, 3 + D]), with returnfps grouped xyz and the samples."""
    fps_idx = farthest_point_sample(xyz, npoint)
    new_xyz = index_points(xyz, fps_idx)
    grouped, idx, _ = torchvox.query_and_group(
        xyz, new_xyz, points, [radius], [nsample], convention="yanx27"
    )
    return (new_xyz, grouped, index_points(xyz, idx), fps_idx) if returnfps else (new_xyz, grouped)


def sample_and_group_all(xyz, points):
    """(origin [B, 1, 3], [B, 1, N, 3 + D])."""
    rows = xyz if points is None else torch.cat([xyz, points], -1)
    return torch.zeros_like(xyz[:, :1]), rows[:, None]
