# SPDX-License-Identifier: Apache-2.0
"""The networks of yanx27/Pointnet_Pointnet2_pytorch, rewritten in plain torch from their published
behavior: same parameters by the same names, same results. No op of torchvox is used, so that an
imported checkpoint can be compared with them.

Two things are arguments here. Sampling starts at point 0 instead of a random one. `exact` takes
distances from differences; without it they are expanded, |a|^2 - 2 ab + |b|^2, as there, which
decides points at the rim of a ball by rounding.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from . import pointnet2 as base
from .pointnet2 import Abstraction, interpolated, object_ssg, squared_distances

OBJECT_SSG = object_ssg(32)


def distances(a, b, exact):
    if exact:
        return squared_distances(a, b)
    expanded = -2 * torch.matmul(a, b.transpose(1, 2))
    expanded += a.square().sum(-1)[:, :, None]
    expanded += b.square().sum(-1)[:, None]
    return expanded


def layers(conv, norm, widths):
    """1x1 convolutions with bias, and their batch norms."""
    pairs = list(pairwise(widths))
    return nn.ModuleList(conv(a, b, 1) for a, b in pairs), nn.ModuleList(norm(b) for _, b in pairs)


def through(convs, norms, x):
    for conv, norm in zip(convs, norms, strict=True):
        x = F.relu(norm(conv(x)))
    return x


class Level(Abstraction):
    """Coordinates come before features, with several scales after them."""

    def __init__(self, count, channels, scales, several):
        super().__init__(count, scales, features_first=several)
        blocks = [layers(nn.Conv2d, nn.BatchNorm2d, [channels + 3, *w]) for _, _, w in scales]
        self.blocks = blocks
        if several:
            self.conv_blocks = nn.ModuleList(convs for convs, _ in blocks)
            self.bn_blocks = nn.ModuleList(norms for _, norms in blocks)
        else:
            self.mlp_convs, self.mlp_bns = blocks[0]

    def inside(self, centers, xyz, radius, exact):
        return ~(distances(centers, xyz, exact) > radius**2)

    def through(self, scale, rows):
        return through(*self.blocks[scale], rows)


class Propagation(nn.Module):
    def __init__(self, channels, *widths):
        super().__init__()
        self.mlp_convs, self.mlp_bns = layers(nn.Conv1d, nn.BatchNorm1d, [channels, *widths])

    def forward(self, xyz, centers, skip, features, exact):
        if centers.size(1) == 1:
            spread = features.expand(-1, xyz.size(1), -1)
        else:
            spread = interpolated(distances(xyz, centers, exact), features)
        rows = spread if skip is None else torch.cat([skip, spread], -1)
        return through(self.mlp_convs, self.mlp_bns, rows.transpose(1, 2)).transpose(1, 2)


class Network(nn.Module):
    """Levels sa1, sa2, .. of abstraction over all of the features, and propagations fp1, fp2, .."""

    def __init__(self, levels, channels, ups):
        super().__init__()
        self.exact, self.levels, self.ups = False, [], []
        several = len(levels[0][2]) > 1
        for i, (count, inputs, scales) in enumerate(levels, 1):
            more = several and count is not None
            level = Level(count, inputs or channels, scales, more)
            self.add_module(f"sa{i}", level)
            self.levels.append(level)
        for i, widths in enumerate(ups, 1):
            self.add_module(f"fp{i}", Propagation(*widths))
            self.ups.append(getattr(self, f"fp{i}"))

    def encode(self, xyz, features):
        all_xyz, all_features = [xyz], [features]
        for level in self.levels:
            xyz, features = level(xyz, features, self.exact)
            all_xyz.append(xyz)
            all_features.append(features)
        return all_xyz, all_features

    def scores(self, points, skip):
        """Of every point: propagation and the last two layers."""
        xyz, features = self.encode(points[..., :3], points)
        features[0] = skip
        for at in reversed(range(len(self.ups))):
            up = self.ups[at]
            features[at] = up(xyz[at], xyz[at + 1], features[at], features[at + 1], self.exact)
        x = F.relu(self.bn1(self.conv1(features[0].transpose(1, 2))))
        x = self.conv2(F.dropout(x, 0.5, self.training))
        return F.log_softmax(x, 1).transpose(1, 2)

    def add_head(self, num_classes):
        self.conv1, self.bn1 = nn.Conv1d(128, 128, 1), nn.BatchNorm1d(128)
        self.conv2 = nn.Conv1d(128, num_classes, 1)


class Classifier(Network):
    """models/pointnet2_cls_{ssg,msg}.py. forward(points [B, N, C]) -> log-probabilities."""

    def __init__(self, num_classes, in_channels, scales):
        super().__init__(OBJECT_SSG if scales == "ssg" else base.OBJECT_MSG, in_channels - 3, ())
        self.fc1, self.bn1 = nn.Linear(1024, 512), nn.BatchNorm1d(512)
        self.fc2, self.bn2 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.drops = [0.4, 0.4 if scales == "ssg" else 0.5]
        self.fc3 = nn.Linear(256, num_classes)

    def forward(self, points):
        features = points[..., 3:] if points.size(-1) > 3 else None
        x = self.encode(points[..., :3], features)[1][-1][:, 0]
        x = F.dropout(F.relu(self.bn1(self.fc1(x))), self.drops[0], self.training)
        x = F.dropout(F.relu(self.bn2(self.fc2(x))), self.drops[1], self.training)
        return F.log_softmax(self.fc3(x), -1)


class PartSegmenter(Network):
    """models/pointnet2_part_seg_{ssg,msg}.py. category: [B] of 16 kinds of objects."""

    def __init__(self, num_classes, in_channels, scales):
        one, two = (128, 256) if scales == "ssg" else (320, 512)
        last = (128, 128, 128) if scales == "ssg" else (128, 128)
        ups = [(128 + 16 + 3 + in_channels, *last), (256 + one, 256, 128), (1024 + two, 256, 256)]
        super().__init__(OBJECT_SSG if scales == "ssg" else base.PART_MSG, in_channels, ups)
        self.add_head(num_classes)

    def forward(self, points, category):
        kind = F.one_hot(category, 16).to(points)[:, None].expand(-1, points.size(1), -1)
        return self.scores(points, torch.cat([kind, points[..., :3], points], -1))


class Segmenter(Network):
    """models/pointnet2_sem_seg.py and pointnet2_sem_seg_msg.py."""

    def __init__(self, num_classes, in_channels, scales):
        ins = (320, 384, 768) if scales == "ssg" else (352, 512, 1536)
        ups = [(128, 128, 128, 128), *((a, 256, b) for a, b in zip(ins, (128, 256, 256)))]  # noqa: B905
        super().__init__(base.ROOM_SSG if scales == "ssg" else base.ROOM_MSG, in_channels, ups)
        self.add_head(num_classes)

    def forward(self, points):
        return self.scores(points, None)
