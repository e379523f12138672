# SPDX-License-Identifier: Apache-2.0
"""Sizes and balls of both re-implemented PointNet++ networks, in plain torch."""

from typing import Sequence, Tuple

import torch
from torch import nn

from torchvox.reference import furthest_point_sample

Scales = Sequence[Tuple[float, int, Sequence[int]]]  # radius, k, widths
WHOLE: Scales = ((0.0, 0, (256, 512, 1024)),)
# Centers, input channels and scales of a level; the first level takes the features, 0.
NEAR_WIDTHS = ((32, 32, 64), (64, 64, 128), (64, 96, 128))


def object_ssg(k):
    far = (128, 128, ((0.4, 64, (128, 128, 256)),))
    return (512, 0, ((0.2, k, (64, 64, 128)),)), far, (None, 256, WHOLE)


def near(ks):
    return tuple(zip((0.1, 0.2, 0.4), ks, NEAR_WIDTHS, strict=True))


OBJECT_MSG = (
    (512, 0, near((16, 32, 128))),
    (
        *(128, 320),
        ((0.2, 32, (64, 64, 128)), (0.4, 64, (128, 128, 256)), (0.8, 128, (128, 128, 256))),
    ),
    (None, 640, WHOLE),
)
PART_MSG = (
    (512, 0, near((32, 64, 128))),
    (128, 320, ((0.4, 64, (128, 128, 256)), (0.8, 128, (128, 196, 256)))),
    (None, 512, WHOLE),
)
ROOM_SSG = (
    (1024, 0, ((0.1, 32, (32, 32, 64)),)),
    (256, 64, ((0.2, 32, (64, 64, 128)),)),
    (64, 128, ((0.4, 32, (128, 128, 256)),)),
    (16, 256, ((0.8, 32, (256, 256, 512)),)),
)
ROOM_MSG = (
    (1024, 0, ((0.05, 16, (16, 16, 32)), (0.1, 32, (32, 32, 64)))),
    (256, 96, ((0.1, 16, (64, 64, 128)), (0.2, 32, (64, 96, 128)))),
    (64, 256, ((0.2, 16, (128, 196, 256)), (0.4, 32, (128, 196, 256)))),
    (16, 512, ((0.4, 16, (256, 256, 512)), (0.8, 32, (256, 384, 512)))),
)


def rows_of(values, idx):
    """values [B, N, C], idx [B, ...] -> [B, ..., C]."""
    batch = torch.arange(len(values), device=values.device)
    return values[batch.view(-1, *[1] * (idx.dim() - 1)), idx]


def squared_distances(a, b):
    """[B, N, 3] and [B, M, 3] -> [B, N, M], from differences."""
    return (a[:, :, None] - b[:, None]).square().sum(-1)


def first_inside(inside, k):
    """The first k columns that hold True in each row, [..., N] -> [..., k], the first of them
    repeated, column 0 where there is none."""
    n = inside.size(-1)
    column = torch.arange(n, device=inside.device).expand_as(inside)
    found = torch.where(inside, column, n).sort(-1)[0][..., :k]
    found = nn.functional.pad(found, (0, k - found.size(-1)), value=n)
    return torch.where(found == n, found[..., :1] % n, found)


def interpolated(distance, features):
    """[B, N, C] of the three nearest [B, M, C] by their inverse distances [B, N, M]."""
    near, idx = distance.sort(dim=-1)
    inverse = 1.0 / (near[..., :3] + 1e-8)
    weight = inverse / inverse.sum(-1, keepdim=True)
    return (rows_of(features, idx[..., :3]) * weight[..., None]).sum(2)


class Abstraction(nn.Module):
    """count None: all points, with absolute coordinates. Centers are those of torchvox.reference.
    Subclasses say which points lie in a ball, and what follows: through(scale, rows [B, C, S, k]).
    """

    SKIP_ORIGIN = False

    def __init__(self, count, scales, features_first=False, use_xyz=True):
        super().__init__()
        self.count, self.scales = count, scales
        self.features_first, self.use_xyz = features_first, use_xyz

    def forward(self, xyz, features, exact=True):
        centers = torch.zeros_like(xyz[:, :1])
        idx = torch.arange(xyz.size(1)).expand(len(xyz), 1, -1)
        if self.count is not None:
            how = {"exhausted": "repeat", "skip_origin": self.SKIP_ORIGIN}
            centers = rows_of(xyz, furthest_point_sample(xyz, self.count, **how)[0].long())
        pooled = []
        for scale, (radius, k, _) in enumerate(self.scales):
            if self.count is not None:
                idx = first_inside(self.inside(centers, xyz, radius, exact), k)
            parts = [rows_of(xyz, idx) - centers[:, :, None]] if self.use_xyz else []
            if features is not None:
                parts.insert(0 if self.features_first else 1, rows_of(features, idx))
            rows = torch.cat(parts, -1).permute(0, 3, 1, 2)
            pooled.append(self.through(scale, rows).amax(-1))
        return centers, torch.cat(pooled, 1).transpose(1, 2)
