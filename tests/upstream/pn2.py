# SPDX-License-Identifier: Apache-2.0
"""The networks of erikwijmans/Pointnet2_PyTorch, rewritten in plain torch from their published
behavior: same parameters by the same names, same results, segmenter scores as [B, N, classes].
No op of torchvox is used, so that an imported checkpoint can be compared with them.
"""

from itertools import pairwise

import torch
from torch import nn

from . import pointnet2 as base
from .pointnet2 import Abstraction, interpolated, object_ssg, squared_distances


def layer(a, b):
    return nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()


def shared_mlp(widths):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class Level(Abstraction):
    SKIP_ORIGIN = True

    def __init__(self, count, channels, scales, use_xyz=True):
        super().__init__(count, scales, use_xyz=use_xyz)
        first = channels + (3 if use_xyz else 0)
        self.mlps = nn.ModuleList(shared_mlp([first, *widths]) for _, _, widths in scales)

    def inside(self, centers, xyz, radius, exact):
        d2 = squared_distances(centers, xyz)
        return d2 < torch.tensor(radius).square().to(d2)

    def through(self, scale, rows):
        return self.mlps[scale](rows)


def levels(sizes, in_channels, use_xyz):
    return nn.ModuleList(
        Level(count, inputs or in_channels - 3, scales, use_xyz) for count, inputs, scales in sizes
    )


class Propagation(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.mlp = shared_mlp(widths)

    def forward(self, xyz, centers, skip, features):
        rows = interpolated(squared_distances(xyz, centers).sqrt(), features)
        if skip is not None:
            rows = torch.cat([rows, skip], -1)
        return self.mlp(rows.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)


class Classifier(nn.Module):
    """PointNet2ClassificationSSG and -MSG."""

    def __init__(self, num_classes, in_channels, scales, use_xyz=True):
        super().__init__()
        self.SA_modules = levels(
            object_ssg(64) if scales == "ssg" else base.OBJECT_MSG, in_channels, use_xyz
        )
        last = nn.Dropout(0.5), nn.Linear(256, num_classes)
        self.fc_layer = nn.Sequential(*layer(1024, 512), *layer(512, 256), *last)

    def forward(self, points):
        xyz = points[..., :3]
        features = points[..., 3:] if points.size(-1) > 3 else None
        for level in self.SA_modules:
            xyz, features = level(xyz, features)
        return self.fc_layer(features[:, 0])


class Segmenter(nn.Module):
    """PointNet2SemSegSSG and -MSG."""

    def __init__(self, num_classes, in_channels, scales, use_xyz=True):
        super().__init__()
        c = in_channels - 3
        if scales == "ssg":
            up = [(128 + c, 128, 128, 128), (320, 256, 128), (384, 256, 256), (768, 256, 256)]
        else:
            up = [(256 + c, 128, 128), (608, 256, 256), (768, 512, 512), (1536, 512, 512)]
        self.SA_modules = levels(
            base.ROOM_SSG if scales == "ssg" else base.ROOM_MSG, in_channels, use_xyz
        )
        self.FP_modules = nn.ModuleList(Propagation(widths) for widths in up)
        self.fc_lyaer = nn.Sequential(  # so spelled there
            nn.Conv1d(128, 128, 1, bias=False),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv1d(128, num_classes, 1),
        )

    def forward(self, points):
        xyz = [points[..., :3]]
        features = [points[..., 3:] if points.size(-1) > 3 else None]
        for level in self.SA_modules:
            centers, pooled = level(xyz[-1], features[-1])
            xyz.append(centers)
            features.append(pooled)
        for at in reversed(range(len(self.FP_modules))):
            up = self.FP_modules[at]
            features[at] = up(xyz[at], xyz[at + 1], features[at], features[at + 1])
        return self.fc_lyaer(features[0].transpose(1, 2)).transpose(1, 2)
