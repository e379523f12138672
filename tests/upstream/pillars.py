# SPDX-License-Identifier: Apache-2.0
"""Layers and pillars that the re-implemented pillar detectors share; plain torch, slow and clear.
Pillars are those of torchvox.reference: an imported checkpoint, which runs on the ops, is compared
with them.
"""

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox.reference import voxel_map

PFN_EPS = 1e-3  # of every batch norm before the heads


@dataclass(frozen=True)
class Grid:
    """Pillars of a range (x0, y0, z0, x1, y1, z1) in meters. max_points, max_pillars: caps, first
    come first kept; 0: none."""

    voxel_size: Sequence[float]
    point_cloud_range: Sequence[float]
    max_points: int = 0
    max_pillars: int = 0

    @property
    def shape(self) -> Tuple[int, int]:
        """(ny, nx)."""
        low, high = self.point_cloud_range[:3], self.point_cloud_range[3:]
        nx, ny = (round((high[a] - low[a]) / self.voxel_size[a]) for a in (0, 1))
        return ny, nx

    @property
    def area(self) -> Tuple[float, ...]:
        """x0, y0, x1, y1."""
        x0, y0, _, x1, y1, _ = self.point_cloud_range
        return x0, y0, x1, y1

    def centers(self, cells: Tensor) -> Tensor:
        """cells [P, 3] of (z, y, x) -> [P, 3] of x, y, z in meters."""
        size = torch.tensor(self.voxel_size)
        # Added in double precision, as constants of the upstream programs are.
        first = [
            s / 2 + low for s, low in zip(self.voxel_size, self.point_cloud_range[:3], strict=True)
        ]
        return cells.flip(1).float() * size + torch.tensor(first)


@dataclass(frozen=True)
class Pillars:
    """Of one cloud. rows [N, C]: points that count, pillar [N] and slot [N]: where each belongs,
    cells [P, 3]: (z, y, x)."""

    rows: Tensor
    pillar: Tensor
    slot: Tensor
    cells: Tensor

    def counts(self) -> Tensor:
        return torch.bincount(self.pillar, minlength=len(self.cells))


def pillars_of(points: Tensor, grid: Grid) -> Pillars:
    """In order of first appearance, with the caps of the grid."""
    rows = points[points.isfinite().all(1)]
    caps = grid.max_points or -1, grid.max_pillars or -1
    indices, counts, pillar, slot, _ = voxel_map(
        rows, grid.voxel_size, grid.point_cloud_range, *caps
    )
    kept = slot >= 0
    cells = indices[counts > 0, 1:].long()
    return Pillars(rows[kept], pillar[kept].long(), slot[kept].long(), cells)


def decorated(pillars: Pillars, grid: Grid, axes: int = 3, legacy: bool = False) -> Tensor:
    """[N, C + 3 + axes]: each point, its offset to the mean of its pillar, and that to the center
    along the first `axes` axes. legacy: the latter takes the place of the coordinates as well."""
    xyz = pillars.rows[:, :3]
    total = torch.zeros(len(pillars.cells), 3).index_add_(0, pillars.pillar, xyz)
    mean = total / pillars.counts()[:, None]
    to_mean = xyz - mean[pillars.pillar]
    to_center = (xyz - grid.centers(pillars.cells)[pillars.pillar])[:, :axes]
    rows = pillars.rows.clone()
    if legacy:
        rows[:, :axes] = to_center
    return torch.cat([rows, to_mean, to_center], 1)


class PillarLayer(nn.Module):
    """Linear, batch norm, ReLU, maximum. A layer that is not the last has half the width and passes
    on every point beside the maximum."""

    def __init__(self, channels: int, width: int, last: bool) -> None:
        super().__init__()
        self.last = last
        units = width if last else width // 2
        self.linear = nn.Linear(channels, units, bias=False)
        self.norm = nn.BatchNorm1d(units, eps=PFN_EPS, momentum=0.01)

    def forward(self, rows: Tensor, pillar: Tensor, count: int) -> Tensor:
        """rows [N, C] -> [N, width] or, from the last layer, [count, width]."""
        rows = F.relu(self.norm(self.linear(rows)))
        index = pillar[:, None].expand_as(rows)
        most = torch.zeros(count, rows.size(1)).scatter_reduce_(0, index, rows, "amax")
        return most if self.last else torch.cat([rows, most[pillar]], 1)


def pillar_layers(channels: int, widths: Sequence[int]) -> nn.ModuleList:
    ends = [channels, *widths]
    return nn.ModuleList(
        PillarLayer(ends[i], ends[i + 1], i == len(widths) - 1) for i in range(len(widths))
    )


def encoded(layers: nn.ModuleList, pillars: Pillars, rows: Tensor, padded_to: int) -> Tensor:
    """[P, width] from decorated rows. padded_to: each pillar is filled with rows of zeros up to so
    many, and these go through the layers like points; 0: there are none."""
    pillar, count = pillars.pillar, len(pillars.cells)
    if padded_to:
        table = torch.zeros(count, padded_to, rows.size(1))
        table[pillar, pillars.slot] = rows
        rows = table.flatten(0, 1)
        pillar = torch.arange(count).repeat_interleave(padded_to)
    for layer in layers:
        rows = layer(rows, pillar, count)
    return rows


def canvas(features: Tensor, pillars: Pillars, grid: Grid) -> Tensor:
    """[1, C, ny, nx]."""
    ny, nx = grid.shape
    flat = torch.zeros(ny * nx, features.size(1))
    flat[pillars.cells[:, 1] * nx + pillars.cells[:, 2]] = features
    return flat.T.reshape(1, -1, ny, nx)


def norm2d(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=PFN_EPS, momentum=0.01)


def block(channels: int, width: int, more: int, stride: int, zero_pad: bool) -> nn.Sequential:
    """1 + more convolutions. zero_pad: the padding of the first is a layer of its own, which shifts
    the numbers of all others."""
    layers: List[nn.Module] = [nn.ZeroPad2d(1)] if zero_pad else []
    padding = 0 if zero_pad else 1
    layers += [
        nn.Conv2d(channels, width, 3, stride=stride, padding=padding, bias=False),
        norm2d(width),
        nn.ReLU(),
    ]
    for _ in range(more):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), norm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


def deblock(channels: int, width: int, stride: float, conv_at_one: bool) -> nn.Sequential:
    """Up by the stride, or down by its inverse; at 1 a convolution or a transposed one."""
    if stride > 1 or (stride == 1 and not conv_at_one):
        by = int(stride)
        conv: nn.Module = nn.ConvTranspose2d(channels, width, by, stride=by, bias=False)
    else:
        by = round(1 / stride)
        conv = nn.Conv2d(channels, width, by, stride=by, bias=False)
    return nn.Sequential(conv, norm2d(width), nn.ReLU())


@dataclass(frozen=True)
class BackboneNeck:
    """Sizes of backbone and neck. layers: convolutions of a block after its first. conv_at_one: a
    level with an up stride of 1 has a convolution, not a transposed one."""

    layers: Sequence[int] = (3, 5, 5)
    strides: Sequence[int] = (2, 2, 2)
    widths: Sequence[int] = (64, 128, 256)
    up_strides: Sequence[float] = (1, 2, 4)
    up_widths: Sequence[int] = (128, 128, 128)
    conv_at_one: bool = False

    @property
    def stride(self) -> float:
        """Of the maps that the heads see."""
        return self.strides[0] / self.up_strides[0]

    def blocks(self, channels: int, zero_pad: bool) -> nn.ModuleList:
        ends = [channels, *self.widths]
        return nn.ModuleList(
            block(ends[i], ends[i + 1], self.layers[i], self.strides[i], zero_pad)
            for i in range(len(self.layers))
        )

    def deblocks(self) -> nn.ModuleList:
        return nn.ModuleList(
            deblock(a, b, s, self.conv_at_one)
            for a, b, s in zip(self.widths, self.up_widths, self.up_strides, strict=True)
        )


KITTI_BACKBONE_NECK = BackboneNeck()
NUSCENES_BACKBONE_NECK = BackboneNeck(up_strides=(0.5, 1, 2))
NUSCENES_CONV_BACKBONE_NECK = BackboneNeck(up_strides=(0.5, 1, 2), conv_at_one=True)


def through(blocks: nn.ModuleList, deblocks: nn.ModuleList, x: Tensor) -> Tensor:
    """Backbone and neck: [1, C, ny, nx] -> [1, sum of up_widths, ny / stride, nx / stride]."""
    ups = []
    for down, up in zip(blocks, deblocks, strict=True):
        x = down(x)
        ups.append(up(x))
    return torch.cat(ups, 1)


class PillarNet(nn.Module):
    """Points [N, C] of one cloud to the map that the heads see.

    axes, legacy: see `decorated`. dynamic: pillars without caps and without rows of padding.

    NAMES: of pillar net, backbone, neck and head. OPENPCDET: padding is a layer of its own, and
    checkpoints count steps. LEGACY, DYNAMIC: what the published networks are.
    """

    NAMES: Tuple[str, ...] = ()
    OPENPCDET = False
    LEGACY = False
    DYNAMIC = False

    def __init__(
        self,
        columns: int,
        grid: Grid,
        backbone_neck: BackboneNeck,
        filters: Sequence[int],
        axes: int = 3,
        legacy: Optional[bool] = None,
        dynamic: Optional[bool] = None,
    ) -> None:
        super().__init__()
        self.grid, self.backbone_neck, self.axes = grid, backbone_neck, axes
        self.legacy = self.LEGACY if legacy is None else legacy
        self.dynamic = self.DYNAMIC if dynamic is None else dynamic
        self.channels = sum(backbone_neck.up_widths)
        for name in dict.fromkeys(self.NAMES):
            self.add_module(name, nn.Module())
        encoder, backbone, neck, _ = self.parts()
        encoder.pfn_layers = pillar_layers(columns + 3 + axes, filters)
        backbone.blocks = backbone_neck.blocks(filters[-1], self.OPENPCDET)
        neck.deblocks = backbone_neck.deblocks()
        if self.OPENPCDET:
            self.register_buffer("global_step", torch.zeros(1, dtype=torch.long))

    def parts(self) -> List[nn.Module]:
        return [getattr(self, name) for name in self.NAMES]

    def features(self, points: Tensor) -> Tensor:
        encoder, backbone, neck, _ = self.parts()
        pillars = pillars_of(points, self.grid)
        padded_to = 0 if self.dynamic else self.grid.max_points
        rows = decorated(pillars, self.grid, self.axes, self.legacy)
        rows = encoded(encoder.pfn_layers, pillars, rows, padded_to)
        return through(backbone.blocks, neck.deblocks, canvas(rows, pillars, self.grid))
