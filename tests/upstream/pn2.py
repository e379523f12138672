# SPDX-License-Identifier: Apache-2.0
"""The networks of erikwijmans/Pointnet2_PyTorch, rewritten in plain torch from their published
behavior: same parameters by the same names, same results, segmenter scores as [B, N, classes].
Nothing of torchvox is used, so that an imported checkpoint can be compared with them.
"""

from itertools import pairwise
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from .pointnet2 import (
    first_inside,
    furthest_points,
    rows_of,
    squared_distances,
)

Scales = Sequence[Tuple[float, int, Sequence[int]]]  # radius, k, widths


def shared_mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: List[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class Abstraction(nn.Module):
    """count None: all points, with absolute coordinates."""

    def __init__(
        self, count: Optional[int], scales: Scales, channels: int, use_xyz: bool = True
    ) -> None:
        super().__init__()
        self.count, self.scales, self.use_xyz = count, scales, use_xyz
        first = channels + (3 if use_xyz else 0)
        self.mlps = nn.ModuleList(shared_mlp([first, *widths]) for _, _, widths in scales)

    def forward(self, xyz: Tensor, features: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        if self.count is None:
            centers = torch.zeros_like(xyz[:, :1])
            grouped = [self.beside(xyz[:, None], None if features is None else features[:, None])]
        else:
            off_origin = xyz.square().sum(-1) > 1e-3
            centers = rows_of(xyz, furthest_points(xyz, self.count, off_origin))
            d2, grouped = squared_distances(centers, xyz), []
            for radius, k, _ in self.scales:
                found = first_inside(d2 < torch.tensor(radius).square().to(d2), k)
                first = torch.where(found[..., :1] == xyz.size(1), 0, found[..., :1])
                idx = torch.where(found == xyz.size(1), first, found)
                near = rows_of(xyz, idx) - centers[:, :, None]
                grouped.append(
                    self.beside(near, None if features is None else rows_of(features, idx))
                )
        pooled = [
            mlp(rows.permute(0, 3, 1, 2)).amax(-1)
            for mlp, rows in zip(self.mlps, grouped, strict=True)
        ]
        return centers, torch.cat(pooled, 1).transpose(1, 2)

    def beside(self, xyz: Tensor, features: Optional[Tensor]) -> Tensor:
        if features is None:
            return xyz
        return torch.cat([xyz, features], -1) if self.use_xyz else features


class Propagation(nn.Module):
    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.mlp = shared_mlp(widths)

    def forward(
        self, xyz: Tensor, centers: Tensor, skip: Optional[Tensor], features: Tensor
    ) -> Tensor:
        d2, idx = squared_distances(xyz, centers).sort(dim=-1)
        inverse = 1.0 / (d2[..., :3].sqrt() + 1e-8)
        weight = inverse / inverse.sum(-1, keepdim=True)
        rows = (rows_of(features, idx[..., :3]) * weight[..., None]).sum(2)
        if skip is not None:
            rows = torch.cat([rows, skip], -1)
        return self.mlp(rows.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)


class Classifier(nn.Module):
    """PointNet2ClassificationSSG and -MSG."""

    def __init__(
        self, num_classes: int, in_channels: int, scales: str, use_xyz: bool = True
    ) -> None:
        super().__init__()
        c = in_channels - 3
        if scales == "ssg":
            levels = [
                (512, [(0.2, 64, (64, 64, 128))], c),
                (128, [(0.4, 64, (128, 128, 256))], 128),
                (None, [(0.0, 0, (256, 512, 1024))], 256),
            ]
        else:
            near = [(0.1, 16, (32, 32, 64)), (0.2, 32, (64, 64, 128)), (0.4, 128, (64, 96, 128))]
            far = [
                (0.2, 32, (64, 64, 128)),
                (0.4, 64, (128, 128, 256)),
                (0.8, 128, (128, 128, 256)),
            ]
            levels = [(512, near, c), (128, far, 320), (None, [(0.0, 0, (256, 512, 1024))], 640)]
        self.SA_modules = nn.ModuleList(Abstraction(*level, use_xyz) for level in levels)
        self.fc_layer = nn.Sequential(
            nn.Linear(1024, 512, bias=False),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Linear(512, 256, bias=False),
            nn.BatchNorm1d(256),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(256, num_classes),
        )

    def forward(self, points: Tensor) -> Tensor:
        xyz = points[..., :3]
        features: Any = points[..., 3:] if points.size(-1) > 3 else None
        for level in self.SA_modules:
            xyz, features = level(xyz, features)
        return self.fc_layer(features[:, 0])


class Segmenter(nn.Module):
    """PointNet2SemSegSSG and -MSG."""

    def __init__(
        self, num_classes: int, in_channels: int, scales: str, use_xyz: bool = True
    ) -> None:
        super().__init__()
        c, counts = in_channels - 3, (1024, 256, 64, 16)
        if scales == "ssg":
            widths = ((32, 32, 64), (64, 64, 128), (128, 128, 256), (256, 256, 512))
            groups = [[(r, 32, w)] for r, w in zip((0.1, 0.2, 0.4, 0.8), widths, strict=True)]
            ins = (c, 64, 128, 256)
            up = [(128 + c, 128, 128, 128), (320, 256, 128), (384, 256, 256), (768, 256, 256)]
        else:
            pairs = (
                ((16, 16, 32), (32, 32, 64)),
                ((64, 64, 128), (64, 96, 128)),
                ((128, 196, 256), (128, 196, 256)),
                ((256, 256, 512), (256, 384, 512)),
            )
            groups = [
                [(r, 16, a), (2 * r, 32, b)]
                for r, (a, b) in zip((0.05, 0.1, 0.2, 0.4), pairs, strict=True)
            ]
            ins = (c, 96, 256, 512)
            up = [(256 + c, 128, 128), (608, 256, 256), (768, 512, 512), (1536, 512, 512)]
        self.SA_modules = nn.ModuleList(
            Abstraction(n, group, a, use_xyz)
            for n, group, a in zip(counts, groups, ins, strict=True)
        )
        self.FP_modules = nn.ModuleList(Propagation(widths) for widths in up)
        self.fc_lyaer = nn.Sequential(  # so spelled there
            nn.Conv1d(128, 128, 1, bias=False),
            nn.BatchNorm1d(128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv1d(128, num_classes, 1),
        )

    def forward(self, points: Tensor) -> Tensor:
        xyz: List[Tensor] = [points[..., :3]]
        features: List[Any] = [points[..., 3:] if points.size(-1) > 3 else None]
        for level in self.SA_modules:
            centers, pooled = level(xyz[-1], features[-1])
            xyz.append(centers)
            features.append(pooled)
        for at in reversed(range(len(self.FP_modules))):
            up = self.FP_modules[at]
            features[at] = up(xyz[at], xyz[at + 1], features[at], features[at + 1])
        return self.fc_lyaer(features[0].transpose(1, 2)).transpose(1, 2)
