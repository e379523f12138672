# SPDX-License-Identifier: Apache-2.0
"""Replaces `pointnet2_ops.pointnet2_modules`: its parameters have the peer's names, so that its
checkpoints load."""

from typing import List, Optional

import torch
from torch import nn

import torchvox
from torchvox.compat.pointnet2_ops import pointnet2_utils

__all__ = ["PointnetFPModule", "PointnetSAModule", "PointnetSAModuleMSG", "build_shared_mlp"]


def build_shared_mlp(mlp_spec, bn=True):
    """1 x 1 convolutions of these widths, each with batch norm and ReLU."""
    layers: List[nn.Module] = []
    for i in range(1, len(mlp_spec)):
        layers.append(nn.Conv2d(mlp_spec[i - 1], mlp_spec[i], 1, bias=not bn))
        layers += [nn.BatchNorm2d(mlp_spec[i]), nn.ReLU(True)] if bn else [nn.ReLU(True)]
    return nn.Sequential(*layers)


class _PointnetSAModuleBase(nn.Module):
    """forward(xyz [B, N, 3], features [B, C, N] or None): centers [B, M, 3] and their features
    [B, sum of the last widths, M]; without npoint, None and [.., 1]."""

    npoint: Optional[int]
    groupers: nn.ModuleList
    mlps: nn.ModuleList

    def forward(self, xyz, features):
        new_xyz = None
        if self.npoint is not None:
            idx = pointnet2_utils.furthest_point_sample(xyz, self.npoint)
            new_xyz = torchvox.gather_points(xyz, idx)
        pooled = [
            mlp(grouper(xyz, new_xyz, features)).max(3)[0]
            for grouper, mlp in zip(self.groupers, self.mlps, strict=True)
        ]
        return new_xyz, torch.cat(pooled, 1)


class PointnetSAModuleMSG(_PointnetSAModuleBase):
    """Set abstraction with several radii. As in the peer, use_xyz adds 3 to the first width of each
    list of mlps, in place."""

    def __init__(self, npoint, radii, nsamples, mlps, bn=True, use_xyz=True):
        super().__init__()
        assert len(radii) == len(nsamples) == len(mlps), "one radius, number and list per scale"
        self.npoint, self.groupers, self.mlps = npoint, nn.ModuleList(), nn.ModuleList()
        for radius, nsample, widths in zip(radii, nsamples, mlps, strict=True):
            if radius is None or nsample is None or npoint is None:
                self.groupers.append(pointnet2_utils.GroupAll(use_xyz))
            else:
                self.groupers.append(pointnet2_utils.QueryAndGroup(radius, nsample, use_xyz))
            widths[0] += 3 if use_xyz else 0
            self.mlps.append(build_shared_mlp(widths, bn))


class PointnetSAModule(PointnetSAModuleMSG):
    """Set abstraction with one radius, or of all points."""

    def __init__(self, mlp, npoint=None, radius=None, nsample=None, bn=True, use_xyz=True):
        super().__init__(npoint, [radius], [nsample], [mlp], bn, use_xyz)


class PointnetFPModule(nn.Module):
    """Feature propagation: [B, mlp[-1], n] of the unknown points; one feature for all if known is
    None."""

    def __init__(self, mlp, bn=True):
        super().__init__()
        self.mlp = build_shared_mlp(mlp, bn)

    def forward(self, unknown, known, unknow_feats, known_feats):
        if known is None:
            columns = known_feats.expand(-1, -1, unknown.size(1))
        else:
            dist2, idx = torchvox.three_nn(unknown.detach(), known.detach(), convention="pointnet2")
            weight = torchvox.interpolation_weights(dist2)
            columns = torchvox.three_interpolate(known_feats, idx, weight, channels_first=True)
        if unknow_feats is not None:
            columns = torch.cat([columns, unknow_feats], 1)
        return self.mlp(columns.unsqueeze(-1)).squeeze(-1)
