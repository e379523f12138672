# SPDX-License-Identifier: Apache-2.0
"""Layers and pillars that the re-implemented pillar detectors share; plain torch, slow and clear.
Pillars are those of torchvox.reference: an imported checkpoint, which runs on the ops, is compared
with them.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Sequence, Tuple

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
    def shape(self):
        """(ny, nx)."""
        low, high = self.point_cloud_range[:3], self.point_cloud_range[3:]
        nx, ny = (round((high[a] - low[a]) / self.voxel_size[a]) for a in (0, 1))
        return ny, nx

    @property
    def area(self):
        """x0, y0, x1, y1."""
        x0, y0, _, x1, y1, _ = self.point_cloud_range
        return x0, y0, x1, y1

    def centers(self, cells):
        """cells [P, 3] of (z, y, x) -> [P, 3] of x, y, z in meters."""
        size = torch.tensor(self.voxel_size)
        # Added in double precision, as constants of the upstream programs are.
        first = [self.voxel_size[a] / 2 + self.point_cloud_range[a] for a in range(3)]
        return cells.flip(1).float() * size + torch.tensor(first)


@dataclass(frozen=True)
class Pillars:
    """Of one cloud. rows [N, C]: points that count, pillar [N] and slot [N]: where each belongs,
    cells [P, 3]: (z, y, x)."""

    rows: Tensor
    pillar: Tensor
    slot: Tensor
    cells: Tensor


def pillars_of(points, grid):
    """In order of first appearance, with the caps of the grid."""
    rows = points[points.isfinite().all(1)]
    caps = grid.max_points or -1, grid.max_pillars or -1
    indices, counts, pillar, slot, _ = voxel_map(
        rows, grid.voxel_size, grid.point_cloud_range, *caps
    )
    kept = slot >= 0
    cells = indices[counts > 0, 1:].long()
    return Pillars(rows[kept], pillar[kept].long(), slot[kept].long(), cells)


def decorated(pillars, grid, axes=3, legacy=False):
    """[N, C + 3 + axes]: each point, its offset to the mean of its pillar, and that to the center
    along the first `axes` axes. legacy: the latter takes the place of the coordinates as well."""
    xyz = pillars.rows[:, :3]
    total = torch.zeros(len(pillars.cells), 3).index_add_(0, pillars.pillar, xyz)
    mean = total / torch.bincount(pillars.pillar, minlength=len(total))[:, None]
    to_mean = xyz - mean[pillars.pillar]
    to_center = (xyz - grid.centers(pillars.cells)[pillars.pillar])[:, :axes]
    rows = pillars.rows.clone()
    if legacy:
        rows[:, :axes] = to_center
    return torch.cat([rows, to_mean, to_center], 1)


class PillarLayer(nn.Module):
    """Linear, batch norm, ReLU, maximum. A layer that is not the last has half the width and passes
    on every point beside the maximum."""

    def __init__(self, channels, width, last):
        super().__init__()
        self.last = last
        units = width if last else width // 2
        self.linear = nn.Linear(channels, units, bias=False)
        self.norm = nn.BatchNorm1d(units, eps=PFN_EPS, momentum=0.01)

    def forward(self, rows, pillar, count):
        """rows [N, C] -> [N, width] or, from the last layer, [count, width]."""
        rows = F.relu(self.norm(self.linear(rows)))
        index = pillar[:, None].expand_as(rows)
        most = torch.zeros(count, rows.size(1)).scatter_reduce_(0, index, rows, "amax")
        return most if self.last else torch.cat([rows, most[pillar]], 1)


def encoded(layers, pillars, rows, padded_to):
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


def canvas(features, pillars, grid):
    """[1, C, ny, nx]."""
    ny, nx = grid.shape
    flat = torch.zeros(ny * nx, features.size(1))
    flat[pillars.cells[:, 1] * nx + pillars.cells[:, 2]] = features
    return flat.T.reshape(1, -1, ny, nx)


def conv3x3(channels, width, stride=1, padding=1):
    conv = nn.Conv2d(channels, width, 3, stride, padding, bias=False)
    return conv, nn.BatchNorm2d(width, eps=PFN_EPS, momentum=0.01), nn.ReLU()


def block(channels, width, more, stride, zero_pad):
    """1 + more convolutions. zero_pad: the padding of the first is a layer of its own, which shifts
    the numbers of all others."""
    first = conv3x3(channels, width, stride, 0 if zero_pad else 1)
    layers = [layer for _ in range(more) for layer in conv3x3(width, width)]
    return nn.Sequential(*([nn.ZeroPad2d(1)] if zero_pad else []), *first, *layers)


def deblock(channels, width, stride, conv_at_one):
    """Up by the stride, or down by its inverse; at 1 a convolution or a transposed one."""
    up = stride > 1 or (stride == 1 and not conv_at_one)
    kind, by = (nn.ConvTranspose2d, int(stride)) if up else (nn.Conv2d, round(1 / stride))
    norm = nn.BatchNorm2d(width, eps=PFN_EPS, momentum=0.01)
    return nn.Sequential(kind(channels, width, by, stride=by, bias=False), norm, nn.ReLU())


@dataclass(frozen=True)
class BackboneNeck:
    """Sizes of backbone and neck. layers: convolutions of a block after its first. conv_at_one: a
    level with an up stride of 1 has a convolution, not a transposed one. down: stride before."""

    layers: Sequence[int] = (3, 5, 5)
    strides: Sequence[int] = (2, 2, 2)
    widths: Sequence[int] = (64, 128, 256)
    up_strides: Sequence[float] = (1, 2, 4)
    up_widths: Sequence[int] = (128, 128, 128)
    conv_at_one: bool = False
    down: int = 1

    @property
    def stride(self):
        """Of the maps that the heads see."""
        return self.down * self.strides[0] / self.up_strides[0]


KITTI_BACKBONE_NECK = BackboneNeck()
NUSCENES_BACKBONE_NECK = BackboneNeck(up_strides=(0.5, 1, 2))
NUSCENES_CONV_BACKBONE_NECK = BackboneNeck(up_strides=(0.5, 1, 2), conv_at_one=True)


class PillarNet(nn.Module):
    """Points [N, C] of one cloud to the map that the heads see.

    axes, legacy: see `decorated`. dynamic: pillars without caps and without rows of padding.

    NAMES: of pillar net, backbone, neck and head. OPENPCDET, DET3D: padding is a layer of its
    own; checkpoints of the former count steps. LEGACY, DYNAMIC: what the published networks are.
    """

    NAMES: Tuple[str, ...] = ()
    OPENPCDET = False
    DET3D = False
    LEGACY = False
    DYNAMIC = False

    def __init__(self, columns, grid, backbone_neck, filters, axes=3, legacy=None, dynamic=None):
        super().__init__()
        self.grid, self.backbone_neck, self.axes = grid, backbone_neck, axes
        self.legacy = self.LEGACY if legacy is None else legacy
        self.dynamic = self.DYNAMIC if dynamic is None else dynamic
        self.channels = sum(backbone_neck.up_widths)
        for name in dict.fromkeys(self.NAMES):
            self.add_module(name, nn.Module())
        encoder, backbone, neck, _ = self.parts()
        width = self.make_encoder(encoder, columns, filters)
        sizes, ends = backbone_neck, pairwise([width, *backbone_neck.widths])
        blocks = zip(ends, sizes.layers, sizes.strides, strict=True)
        zero_pad = self.OPENPCDET or self.DET3D
        ups = zip(sizes.widths, sizes.up_widths, sizes.up_strides, strict=True)
        backbone.blocks = nn.ModuleList(block(*a, *b, zero_pad) for a, *b in blocks)
        neck.deblocks = nn.ModuleList(deblock(*one, sizes.conv_at_one) for one in ups)
        if self.OPENPCDET:
            self.register_buffer("global_step", torch.zeros(1, dtype=torch.long))

    def make_encoder(self, encoder, columns, filters):
        """Channels of what `seen` gives."""
        ends = enumerate(pairwise([columns + 3 + self.axes, *filters]), 1)
        encoder.pfn_layers = nn.ModuleList(
            PillarLayer(*pair, i == len(filters)) for i, pair in ends
        )
        return filters[-1]

    def parts(self):
        return [getattr(self, name) for name in self.NAMES]

    def seen(self, points):
        """What the backbone sees, [1, C, ny, nx]."""
        encoder = self.parts()[0]
        pillars = pillars_of(points, self.grid)
        padded_to = 0 if self.dynamic else self.grid.max_points
        rows = decorated(pillars, self.grid, self.axes, self.legacy)
        rows = encoded(encoder.pfn_layers, pillars, rows, padded_to)
        return canvas(rows, pillars, self.grid)

    def features(self, points):
        _, backbone, neck, _ = self.parts()
        x, ups = self.seen(points), []
        for down, up in zip(backbone.blocks, neck.deblocks, strict=True):
            x = down(x)
            ups.append(up(x))
        return torch.cat(ups, 1)
