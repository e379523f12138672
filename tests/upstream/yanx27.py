# SPDX-License-Identifier: Apache-2.0
"""The networks of yanx27/Pointnet_Pointnet2_pytorch, rewritten in plain torch from their published
behavior: same parameters by the same names, same results. Nothing of torchvox is used, so that an
imported checkpoint can be compared with them.

Two things are arguments here. Sampling starts at point 0 instead of a random one. `exact` takes
distances from differences; without it they are expanded, |a|^2 - 2 ab + |b|^2, as there, which
decides points at the rim of a ball by rounding.
"""

from itertools import pairwise
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .pointnet2 import (
    first_inside,
    furthest_points,
    rows_of,
    squared_distances,
)


def distances(a: Tensor, b: Tensor, exact: bool) -> Tensor:
    if exact:
        return squared_distances(a, b)
    expanded = -2 * torch.matmul(a, b.transpose(1, 2))
    expanded += a.square().sum(-1)[:, :, None]
    expanded += b.square().sum(-1)[:, None]
    return expanded


class Layers(nn.Module):
    """1x1 convolutions with bias, batch norms and ReLUs, kept in two lists."""

    def __init__(self, conv: type, norm: type, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.convs = nn.ModuleList(conv(a, b, 1) for a, b in pairs)
        self.norms = nn.ModuleList(norm(b) for _, b in pairs)


def through(convs: nn.ModuleList, norms: nn.ModuleList, x: Tensor) -> Tensor:
    for conv, norm in zip(convs, norms, strict=True):
        x = F.relu(norm(conv(x)))
    return x


class Abstraction(nn.Module):
    """One scale; count None: all points. Coordinates come before features."""

    def __init__(
        self, count: Optional[int], radius: float, k: int, channels: int, widths: Sequence[int]
    ) -> None:
        super().__init__()
        self.count, self.radius, self.k = count, radius, k
        layers = Layers(nn.Conv2d, nn.BatchNorm2d, [channels + 3, *widths])
        self.mlp_convs, self.mlp_bns = layers.convs, layers.norms

    def forward(self, xyz: Tensor, features: Optional[Tensor], exact: bool) -> Tuple[Tensor, ...]:
        if self.count is None:
            centers = torch.zeros_like(xyz[:, :1])
            parts = [xyz[:, None]] + ([] if features is None else [features[:, None]])
        else:
            centers = rows_of(xyz, furthest_points(xyz, self.count))
            idx = ball(self.radius, self.k, xyz, centers, exact)
            parts = [rows_of(xyz, idx) - centers[:, :, None]]
            parts += [] if features is None else [rows_of(features, idx)]
        grouped = torch.cat(parts, -1).permute(0, 3, 2, 1)  # [B, C, k, S]
        return centers, through(self.mlp_convs, self.mlp_bns, grouped).amax(2).transpose(1, 2)


class ScaleAbstraction(nn.Module):
    """Several scales; features come before coordinates."""

    def __init__(
        self,
        count: int,
        radii: Sequence[float],
        ks: Sequence[int],
        channels: int,
        widths: Sequence[Sequence[int]],
    ) -> None:
        super().__init__()
        self.count, self.radii, self.ks = count, radii, ks
        blocks = [Layers(nn.Conv2d, nn.BatchNorm2d, [channels + 3, *w]) for w in widths]
        self.conv_blocks = nn.ModuleList(block.convs for block in blocks)
        self.bn_blocks = nn.ModuleList(block.norms for block in blocks)

    def forward(self, xyz: Tensor, features: Optional[Tensor], exact: bool) -> Tuple[Tensor, ...]:
        centers = rows_of(xyz, furthest_points(xyz, self.count))
        pooled = []
        for radius, k, convs, norms in zip(
            self.radii, self.ks, self.conv_blocks, self.bn_blocks, strict=True
        ):
            idx = ball(radius, k, xyz, centers, exact)
            parts = [] if features is None else [rows_of(features, idx)]
            parts += [rows_of(xyz, idx) - centers[:, :, None]]
            grouped = torch.cat(parts, -1).permute(0, 3, 2, 1)
            pooled.append(through(convs, norms, grouped).amax(2))
        return centers, torch.cat(pooled, 1).transpose(1, 2)


def ball(radius: float, k: int, xyz: Tensor, centers: Tensor, exact: bool) -> Tensor:
    """[B, S, k]: the first k points with d^2 <= r^2, the first of them repeated."""
    found = first_inside(~(distances(centers, xyz, exact) > radius**2), k)
    return torch.where(found == xyz.size(1), found[..., :1], found)


class Propagation(nn.Module):
    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        layers = Layers(nn.Conv1d, nn.BatchNorm1d, [channels, *widths])
        self.mlp_convs, self.mlp_bns = layers.convs, layers.norms

    def forward(
        self, xyz: Tensor, centers: Tensor, skip: Optional[Tensor], features: Tensor, exact: bool
    ) -> Tensor:
        if centers.size(1) == 1:
            spread = features.expand(-1, xyz.size(1), -1)
        else:
            d, idx = distances(xyz, centers, exact).sort(dim=-1)
            inverse = 1.0 / (d[..., :3] + 1e-8)
            weight = inverse / inverse.sum(-1, keepdim=True)
            spread = (rows_of(features, idx[..., :3]) * weight[..., None]).sum(2)
        rows = spread if skip is None else torch.cat([skip, spread], -1)
        return through(self.mlp_convs, self.mlp_bns, rows.transpose(1, 2)).transpose(1, 2)


def object_levels(scales: str, channels: int, parts: bool) -> List[nn.Module]:
    """The two levels and the global one of the object nets."""
    if scales == "ssg":
        first = Abstraction(512, 0.2, 32, channels, (64, 64, 128))
        second = Abstraction(128, 0.4, 64, 128, (128, 128, 256))
        return [first, second, Abstraction(None, 0.0, 0, 256, (256, 512, 1024))]
    near = ((32, 32, 64), (64, 64, 128), (64, 96, 128))
    ks = (32, 64, 128) if parts else (16, 32, 128)
    first = ScaleAbstraction(512, (0.1, 0.2, 0.4), ks, channels, near)
    if parts:
        far = [(128, 128, 256), (128, 196, 256)]
        second = ScaleAbstraction(128, (0.4, 0.8), (64, 128), 320, far)
        return [first, second, Abstraction(None, 0.0, 0, 512, (256, 512, 1024))]
    far = [(64, 64, 128), (128, 128, 256), (128, 128, 256)]
    second = ScaleAbstraction(128, (0.2, 0.4, 0.8), (32, 64, 128), 320, far)
    return [first, second, Abstraction(None, 0.0, 0, 640, (256, 512, 1024))]


class Classifier(nn.Module):
    """models/pointnet2_cls_{ssg,msg}.py. forward(points [B, N, C]) -> log-probabilities."""

    def __init__(self, num_classes: int, in_channels: int, scales: str) -> None:
        super().__init__()
        self.exact = False
        self.sa1, self.sa2, self.sa3 = object_levels(scales, in_channels - 3, False)
        self.fc1, self.bn1 = nn.Linear(1024, 512), nn.BatchNorm1d(512)
        self.fc2, self.bn2 = nn.Linear(512, 256), nn.BatchNorm1d(256)
        self.drops = [0.4, 0.4 if scales == "ssg" else 0.5]
        self.fc3 = nn.Linear(256, num_classes)

    def forward(self, points: Tensor) -> Tensor:
        xyz = points[..., :3]
        features: Any = points[..., 3:] if points.size(-1) > 3 else None
        for level in (self.sa1, self.sa2, self.sa3):
            xyz, features = level(xyz, features, self.exact)
        x = F.dropout(F.relu(self.bn1(self.fc1(features[:, 0]))), self.drops[0], self.training)
        x = F.dropout(F.relu(self.bn2(self.fc2(x))), self.drops[1], self.training)
        return F.log_softmax(self.fc3(x), -1)


class _Dense(nn.Module):
    """The last two layers of the segmenters."""

    def _add_head(self, num_classes: int) -> None:
        self.conv1, self.bn1 = nn.Conv1d(128, 128, 1), nn.BatchNorm1d(128)
        self.conv2 = nn.Conv1d(128, num_classes, 1)

    def _scores(self, features: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(features.transpose(1, 2))))
        x = self.conv2(F.dropout(x, 0.5, self.training))
        return F.log_softmax(x, 1).transpose(1, 2)


class PartSegmenter(_Dense):
    """models/pointnet2_part_seg_{ssg,msg}.py. category: [B] of 16 kinds of objects."""

    def __init__(self, num_classes: int, in_channels: int, scales: str) -> None:
        super().__init__()
        self.exact = False
        self.sa1, self.sa2, self.sa3 = object_levels(scales, in_channels, True)
        one, two = (128, 256) if scales == "ssg" else (320, 512)
        last = (128, 128, 128) if scales == "ssg" else (128, 128)
        self.fp3 = Propagation(1024 + two, (256, 256))
        self.fp2 = Propagation(256 + one, (256, 128))
        self.fp1 = Propagation(128 + 16 + 3 + in_channels, last)
        self._add_head(num_classes)

    def forward(self, points: Tensor, category: Tensor) -> Tensor:
        xyz = points[..., :3]
        xyz1, f1 = self.sa1(xyz, points, self.exact)
        xyz2, f2 = self.sa2(xyz1, f1, self.exact)
        xyz3, f3 = self.sa3(xyz2, f2, self.exact)
        f2 = self.fp3(xyz2, xyz3, f2, f3, self.exact)
        f1 = self.fp2(xyz1, xyz2, f1, f2, self.exact)
        kind = F.one_hot(category, 16).to(points)[:, None].expand(-1, points.size(1), -1)
        skip = torch.cat([kind, xyz, points], -1)
        return self._scores(self.fp1(xyz, xyz1, skip, f1, self.exact))


class Segmenter(_Dense):
    """models/pointnet2_sem_seg.py and pointnet2_sem_seg_msg.py."""

    def __init__(self, num_classes: int, in_channels: int, scales: str) -> None:
        super().__init__()
        self.exact = False
        counts, c = (1024, 256, 64, 16), in_channels
        if scales == "ssg":
            widths = ((32, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512))
            levels = [
                Abstraction(n, r, 32, a, w)
                for n, r, a, w in zip(
                    counts, (0.1, 0.2, 0.4, 0.8), (c, 64, 128, 256), widths, strict=True
                )
            ]
            ins = (768, 384, 320)
        else:
            pairs = (
                ((16, 16, 32), (32, 32, 64)),
                ((64, 64, 128), (64, 96, 128)),
                ((128, 196, 256), (128, 196, 256)),
                ((256, 256, 512), (256, 384, 512)),
            )
            levels = [
                ScaleAbstraction(n, (r, 2 * r), (16, 32), a, w)
                for n, r, a, w in zip(
                    counts, (0.05, 0.1, 0.2, 0.4), (c, 96, 256, 512), pairs, strict=True
                )
            ]
            ins = (1536, 512, 352)
        self.sa1, self.sa2, self.sa3, self.sa4 = levels
        self.fp4 = Propagation(ins[0], (256, 256))
        self.fp3 = Propagation(ins[1], (256, 256))
        self.fp2 = Propagation(ins[2], (256, 128))
        self.fp1 = Propagation(128, (128, 128, 128))
        self._add_head(num_classes)

    def forward(self, points: Tensor) -> Tensor:
        xyz, features = [points[..., :3]], [points]
        for level in (self.sa1, self.sa2, self.sa3, self.sa4):
            centers, pooled = level(xyz[-1], features[-1], self.exact)
            xyz.append(centers)
            features.append(pooled)
        for at, up in zip((3, 2, 1, 0), (self.fp4, self.fp3, self.fp2, self.fp1), strict=True):
            skip = features[at] if at else None
            features[at] = up(xyz[at], xyz[at + 1], skip, features[at + 1], self.exact)
        return self._scores(features[0])
