# SPDX-License-Identifier: Apache-2.0
"""The three-dimensional part of detectors on voxels in plain torch: dense convolutions of a grid
that is 0, and stays 0, where no voxel is."""

import math
from dataclasses import dataclass
from typing import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from .pillars import PFN_EPS, pillars_of


@dataclass(frozen=True)
class Sizes:
    """layers, widths: of each level. blocks: residual ones, with `bias`. old: weights [kz, ky, kx,
    in, out]. last: width of the last convolution."""

    layers: Sequence[int]
    widths: Sequence[int]
    blocks: bool = False
    bias: bool = False
    old: bool = False
    last: int = 8


class Conv(nn.Module):
    """Of (grid [1, C, z, y, x], active [1, 1, z, y, x]). padding None: the voxels stay."""

    def __init__(self, sizes, channels, width, kernel=(3, 3, 3), stride=1, padding=None):
        super().__init__()
        shape = (*kernel, channels, width) if sizes.old else (width, *kernel, channels)
        scale = math.sqrt(2 / (math.prod(kernel) * channels))
        self.weight = nn.Parameter(torch.randn(shape) * 2 * scale)  # most cells are empty
        self.order = (4, 3, 0, 1, 2) if sizes.old else (0, 4, 1, 2, 3)
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.bias = None

    def forward(self, pair):
        (grid, active), weight, stride = pair, self.weight.permute(self.order), self.stride
        if self.padding is None:
            return F.conv3d(grid, weight, self.bias, padding=1) * active, active
        reached = F.conv3d(active, torch.ones(1, 1, *self.kernel), None, stride, self.padding) > 0
        return F.conv3d(grid, weight, None, stride, self.padding) * reached, reached.float()


class Norm(nn.BatchNorm1d):
    """Over the voxels alone."""

    def __init__(self, width):
        super().__init__(width, eps=PFN_EPS, momentum=0.01)

    def forward(self, pair):
        grid, active = pair
        out, used = torch.zeros_like(grid).movedim(1, -1), active[:, 0] > 0
        out[used] = super().forward(grid.movedim(1, -1)[used])
        return out.movedim(-1, 1), active


class Relu(nn.Module):
    def forward(self, pair):
        return pair[0].relu(), pair[1]


class Block(nn.Module):
    def __init__(self, sizes, width):
        super().__init__()
        for i in (1, 2):
            conv = Conv(sizes, width, width)
            if sizes.bias:
                conv.bias = nn.Parameter(torch.randn(width) / 4)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", Norm(width))

    def forward(self, pair):
        y, active = self.bn1(self.conv1(pair))
        y, _ = self.bn2(self.conv2((y.relu(), active)))
        return (y + pair[0]).relu(), active


def layer(sizes, *conv, **options):
    convolution = Conv(sizes, *conv, **options)
    return nn.Sequential(convolution, Norm(conv[1]), Relu())


def levels(sizes):
    """Of each level, the strided layer (None for the first one) and the others."""
    last, width = len(sizes.widths) - 1, sizes.widths[0]
    for i, (count, channels) in enumerate(zip(sizes.layers, sizes.widths, strict=True)):
        padding = (int(i < last), 1, 1)
        down = layer(sizes, width, channels, stride=2, padding=padding) if i else None
        one = Block if sizes.blocks else lambda s, c: layer(s, c, c)
        yield down, [one(sizes, channels) for _ in range(count)]
        width = channels


def pcdet_net(sizes):
    return {
        f"conv{i}": nn.Sequential(*([down] if down else []), *more)
        for i, (down, more) in enumerate(levels(sizes), 1)
    }


def det3d_net(sizes):
    return {
        f"conv{i}": nn.Sequential(*(down or []), *more)
        for i, (down, more) in enumerate(levels(sizes), 1)
    }


def mmdet_net(sizes):
    """A strided layer ends the level before where there are blocks."""
    parts, before = nn.Sequential(), None
    for i, (down, more) in enumerate(levels(sizes), 1):
        if down is not None and sizes.blocks:
            before.append(down)
        before = nn.Sequential(*([down] if down is not None and not sizes.blocks else []), *more)
        parts.add_module(f"encoder_layer{i}", before)
    return {"encoder_layers": parts}


class Voxels:
    """In place of the pillars of a `PillarNet`. `filters` are Sizes.

    NET: makes the levels. OUT: name of the last layer.
    """

    NET = staticmethod(pcdet_net)
    OUT = "conv_out"

    def make_encoder(self, encoder, columns, sizes):
        low, high = (self.grid.point_cloud_range[axis] for axis in (2, 5))
        self.planes = left = round((high - low) / self.grid.voxel_size[2]) + 1
        encoder.add_module("conv_input", layer(sizes, columns, sizes.widths[0]))
        for name, level in self.NET(sizes).items():
            encoder.add_module(name, level)
        down = {"kernel": (3, 1, 1), "stride": (2, 1, 1), "padding": 0}
        encoder.add_module(self.OUT, layer(sizes, sizes.widths[-1], sizes.last, **down))
        for padding in (*[1] * (len(sizes.widths) - 2), 0, 0):
            left = (left + 2 * padding - 3) // 2 + 1
        return sizes.last * left

    def seen(self, points):
        pillars = pillars_of(points, self.grid)
        total = torch.zeros(len(pillars.cells), points.size(1))
        total.index_add_(0, pillars.pillar, pillars.rows)
        count = torch.bincount(pillars.pillar, minlength=len(total))
        at = (slice(None), *pillars.cells.T)
        grid = torch.zeros(points.size(1), self.planes, *self.grid.shape)
        active = torch.zeros(1, *grid.shape[1:])
        grid[at], active[at] = (total / count[:, None]).T, 1.0
        pair = grid[None], active[None]
        for part in self.parts()[0].children():
            pair = part(pair)
        return pair[0].flatten(1, 2)
