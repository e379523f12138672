# SPDX-License-Identifier: Apache-2.0
"""Sampling, neighbors and their features of `mmcv.ops`."""

import torch
from torch import nn

import torchvox
from torchvox.compat._errors import refuse
from torchvox.compat._shared import GroupAll as GroupAll
from torchvox.compat._shared import gather_operation as gather_points  # noqa: F401
from torchvox.compat._shared import group_packed, packed_clouds, widened
from torchvox.compat._shared import three_interpolate as three_interpolate
from torchvox.compat._shared import three_nn as three_nn


def furthest_point_sample(points_xyz, num_points):
    """[B, num_points] int32 of [B, N, 3]."""
    return torchvox.furthest_point_sample(points_xyz, num_points, convention="mmcv").idx


def furthest_point_sample_with_dist(points_dist, num_points):
    """[B, num_points] int32 of squared distances [B, N, N]."""
    fps = torchvox.furthest_point_sample_with_dist
    return fps(widened(points_dist), num_points, convention="mmcv")


class _DFPS(nn.Module):
    def forward(self, points, features, npoint):
        return furthest_point_sample(points, npoint)


class _FFPS(nn.Module):
    def forward(self, points, features, npoint):
        assert features is not None, "feature input to FFPS_Sampler should not be None"
        rows = torch.cat([points, features.transpose(1, 2)], dim=2).detach()
        return furthest_point_sample_with_dist(torch.cdist(rows, rows).square(), npoint)


class _FS(nn.Module):
    def forward(self, points, features, npoint):
        return torch.cat([one()(points, features, npoint) for one in (_FFPS, _DFPS)], dim=1)


_SAMPLERS = {"D-FPS": _DFPS, "F-FPS": _FFPS, "FS": _FS}


def get_sampler_cls(sampler_type):
    """The class of a sampler, D-FPS, F-FPS or FS. Raises KeyError."""
    if sampler_type not in _SAMPLERS:
        raise KeyError(f"Supported `sampler_type` are {list(_SAMPLERS)}, but got {sampler_type}")
    return _SAMPLERS[sampler_type]


class PointsSampler(nn.Module):
    """[B, sum of num_point] int32: samples of consecutive ranges of points, concatenated."""

    def __init__(
        self,
        num_point,
        fps_mod_list=["D-FPS"],  # noqa: B006
        fps_sample_range_list=[-1],  # noqa: B006
    ):
        super().__init__()
        assert len(num_point) == len(fps_mod_list) == len(fps_sample_range_list)
        self.num_point, self.fps_sample_range_list = num_point, fps_sample_range_list
        self.samplers = nn.ModuleList(get_sampler_cls(mode)() for mode in fps_mod_list)

    def forward(self, points_xyz, features):
        begin, parts = 0, []
        parts_of = zip(self.fps_sample_range_list, self.samplers, self.num_point, strict=True)
        for end, sampler, count in parts_of:
            assert end < points_xyz.shape[1]
            part = slice(begin, None if end == -1 else end)
            columns = None if features is None else widened(features)[:, :, part]
            parts.append(sampler(widened(points_xyz)[:, part], columns, count) + begin)
            begin = end
        return torch.cat(parts, dim=1)


def ball_query(
    min_radius,
    max_radius,
    sample_num,
    xyz,
    center_xyz,
    xyz_batch_cnt=None,
    center_xyz_batch_cnt=None,
):
    """[B, M, sample_num] int32; stacked, local [M, sample_num], which begin with -1 if empty."""
    assert min_radius < max_radius
    ball = (xyz, center_xyz, max_radius, sample_num)
    if xyz_batch_cnt is None or center_xyz_batch_cnt is None:
        return torchvox.ball_query(*ball, min_radius=min_radius, convention="mmcv").idx
    _, idx, count = torchvox.ball_query(
        *ball,
        convention="openpcdet",  # the stacked kernel has no core and no inner radius
        **packed_clouds(xyz_batch_cnt, center_xyz_batch_cnt),
    )
    idx[:, :1].masked_fill_(count[:, None] == 0, -1)
    return idx


def grouping_operation(features, indices, features_batch_cnt=None, indices_batch_cnt=None):
    """[B, C, M, k] of [B, C, N]; stacked, [M, C, k] of [N, C] by local indices."""
    if features_batch_cnt is None or indices_batch_cnt is None:
        return torchvox.group_points(features, indices, channels_first=True)
    packed = features, features_batch_cnt, indices, indices_batch_cnt
    return group_packed(*packed).contiguous()


class QueryAndGroup(nn.Module):
    """[B, 3 + C, M, sample_num]: neighbors within max_radius, or the nearest for None."""

    def __init__(
        self,
        max_radius,
        sample_num,
        min_radius=0.0,
        use_xyz=True,
        return_grouped_xyz=False,
        normalize_xyz=False,
        uniform_sample=False,
        return_unique_cnt=False,
        return_grouped_idx=False,
    ):
        super().__init__()
        if uniform_sample or return_unique_cnt:
            refuse("QueryAndGroup: uniform_sample=True")
        assert max_radius is not None or not normalize_xyz, (
            "can not normalize grouped xyz when max_radius is None"
        )
        self.min_radius, self.max_radius, self.sample_num = min_radius, max_radius, sample_num
        self.use_xyz, self.normalize_xyz = use_xyz, normalize_xyz
        self.return_grouped_xyz, self.return_grouped_idx = return_grouped_xyz, return_grouped_idx

    def _one_op(self, points, query, features):
        rows = None if features is None else features.transpose(1, 2)
        scaled = self.normalize_xyz
        grouped, idx, _ = torchvox.query_and_group(
            points, query, rows, [self.max_radius], [self.sample_num], normalize_xyz=scaled
        )
        return [grouped.permute(0, 3, 1, 2).contiguous(), idx]

    def _steps(self, points, query, features):
        if self.max_radius is None:
            idx = knn(self.sample_num, points, query).transpose(1, 2)
        else:
            idx = ball_query(self.min_radius, self.max_radius, self.sample_num, points, query)
        xyz = grouping_operation(points.transpose(1, 2), idx)
        assert features is not None or self.use_xyz, "features or use_xyz must be given"
        parts = [] if features is None else [grouping_operation(features, idx)]
        if self.use_xyz:
            relative = xyz - query.transpose(1, 2).unsqueeze(-1)
            parts.insert(0, relative / self.max_radius if self.normalize_xyz else relative)
        return [torch.cat(parts, dim=1), *([xyz] if self.return_grouped_xyz else []), idx]

    def forward(self, points_xyz, center_xyz, features=None):
        clouds = (points_xyz, center_xyz, features)
        ball = self.max_radius is not None and not self.min_radius
        same = features is None or features.dtype == points_xyz.dtype
        fits = ball and same and self.use_xyz and not self.return_grouped_xyz
        result = self._one_op(*clouds) if fits else self._steps(*clouds)
        result = result if self.return_grouped_idx else result[:-1]
        return tuple(result) if len(result) > 1 else result[0]


def knn(k, xyz, center_xyz=None, transposed=False):
    """[B, k, M] int32, 0 without a neighbor. transposed: xyz and center_xyz are [B, 3, N]."""
    clouds = (xyz, xyz if center_xyz is None else center_xyz)
    points, query = (cloud.transpose(1, 2) for cloud in clouds) if transposed else clouds
    idx = torchvox.knn(points, query, k, convention="mmcv").idx
    return idx.clamp_(min=0).transpose(1, 2).contiguous()


def chamfer_distance(xyz1, xyz2):
    """Squared distances [B, N], [B, M] to the nearest point of the other, and int32 indices."""
    return tuple(torchvox.chamfer_distance(xyz1, xyz2, convention="mmcv"))
