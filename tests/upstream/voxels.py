# SPDX-License-Identifier: Apache-2.0
"""The three-dimensional part of detectors on voxels in plain torch: for each cell of a kernel, the
rows that have a neighbor there times its weights."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Sequence

import torch
from torch import Tensor, nn

from .pillars import PFN_EPS, pillars_of


@dataclass(frozen=True)
class Sizes:
    """layers, widths: of each level. blocks: residual ones, with `bias`. old: weights [kz, ky, kx,
    in, out]. last: width of the last convolution. joined: levels that become one plane."""

    layers: Sequence[int]
    widths: Sequence[int]
    blocks: bool = False
    bias: bool = False
    old: bool = False
    last: int = 8
    joined: int = 0


@dataclass(frozen=True)
class Rows:
    """features [M, C] at cells [M, 3] (z, y, x) of a grid of so many cells."""

    features: Tensor
    cells: Tensor
    shape: Sequence[int]

    def keys(self, cells):
        """One number for each cell, -1 outside."""
        inside = ((cells >= 0) & (cells < torch.tensor(self.shape))).all(1)
        z, y, x = cells.T
        return torch.where(inside, (z * self.shape[1] + y) * self.shape[2] + x, -1)


class Conv(nn.Module):
    """padding None: the rows stay; else those that the kernel reaches, by rising keys."""

    def __init__(self, sizes, channels, width, kernel=(3, 3, 3), stride=(1, 1, 1), padding=None):
        super().__init__()
        shape = (*kernel, channels, width) if sizes.old else (width, *kernel, channels)
        scale = math.sqrt(2 / (math.prod(kernel) * channels))
        self.weight = nn.Parameter(torch.randn(shape) * 2 * scale)  # most cells are empty
        self.order = (0, 1, 2, 3, 4) if sizes.old else (1, 2, 3, 4, 0)
        self.kernel, self.stride, self.padding, self.bias = kernel, stride, padding, None

    def reached(self, x, padding):
        sides = zip(x.shape, padding, self.kernel, self.stride, strict=True)
        out = Rows(x.features, x.cells, [(n + 2 * p - k) // s + 1 for n, p, k, s in sides])
        keys = []
        for offset in itertools.product(*map(range, self.kernel)):
            at = x.cells + torch.tensor(padding) - torch.tensor(offset)
            whole = (at % torch.tensor(self.stride) == 0).all(1)
            keys.append(out.keys(at // torch.tensor(self.stride))[whole])
        keys = torch.cat(keys).unique()
        return torch.stack(torch.unravel_index(keys[keys >= 0], out.shape), 1), out.shape

    def table(self):
        return self.weight.permute(self.order).flatten(0, 2)

    def forward(self, x):
        same = [size // 2 for size in self.kernel]
        padding = same if self.padding is None else self.padding
        cells, shape = (x.cells, x.shape) if self.padding is None else self.reached(x, padding)
        known, row = x.keys(x.cells).sort()
        weight = self.table()  # [K, in, out]
        out = torch.zeros(len(cells), weight.size(2))
        out += 0 if self.bias is None else self.bias
        for k, offset in enumerate(itertools.product(*map(range, self.kernel))):
            at = cells * torch.tensor(self.stride) - torch.tensor(padding) + torch.tensor(offset)
            keys = x.keys(at)
            place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
            there = known[place] == keys
            out[there] += x.features[row[place[there]]] @ weight[k]
        return Rows(out, cells, shape)


class PlaneConv(Conv):
    """Of two axes. spconv takes the memory of a weight [out, 1, 1, in] for [in, out]."""

    def __init__(self, channels, width, size, padding=None, bias=True):
        super().__init__(Sizes((), ()), channels, width, (1, size, size), padding=padding)
        self.weight = nn.Parameter(self.weight[:, 0].clone())
        self.bias = nn.Parameter(torch.randn(width) / 4) if bias else None

    def table(self):
        width, size, _, channels = self.weight.shape
        if size == 1:
            return self.weight.view(1, channels, width)
        return self.weight.flatten(1, 2).permute(1, 2, 0)


class Norm(nn.BatchNorm1d):
    def __init__(self, width, eps=PFN_EPS):
        super().__init__(width, eps=eps, momentum=0.01)

    def forward(self, x):
        return replace(x, features=super().forward(x.features))


class Relu(nn.Module):
    def forward(self, x):
        return replace(x, features=x.features.relu())


class Block(nn.Module):
    def __init__(self, sizes, width):
        super().__init__()
        for i in (1, 2):
            conv = Conv(sizes, width, width)
            if sizes.bias:
                conv.bias = nn.Parameter(torch.randn(width) / 4)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", Norm(width))

    def forward(self, x):
        y = self.bn1(self.conv1(x))
        y = self.bn2(self.conv2(replace(y, features=y.features.relu())))
        return replace(y, features=(y.features + x.features).relu())


def layer(sizes, *conv, **options):
    convolution = Conv(sizes, *conv, **options)
    return nn.Sequential(convolution, Norm(conv[1]), Relu())


def levels(sizes):
    """Of each level, the strided layer (None for the first one) and the others."""
    last, width = len(sizes.widths) - 1, sizes.widths[0]
    for i, (count, channels) in enumerate(zip(sizes.layers, sizes.widths, strict=True)):
        padding = (int(i < last or sizes.joined > 0), 1, 1)
        down = layer(sizes, width, channels, stride=(2, 2, 2), padding=padding) if i else None
        one = Block if sizes.blocks else lambda s, c: layer(s, c, c)
        yield down, [one(sizes, channels) for _ in range(count)]
        width = channels


def plane_of(levels):
    """One plane of the cells of the first level; each further one has half as many."""
    cells = torch.cat([x.cells[:, 1:] * 2**i for i, x in enumerate(levels)])
    cells, row = cells.unique(dim=0, return_inverse=True)
    features = torch.cat([x.features for x in levels])
    total = torch.zeros(len(cells), features.size(1)).index_add_(0, row, features)
    return Rows(total, nn.functional.pad(cells, (1, 0)), [1, *levels[0].shape[1:]])


def pcdet_net(sizes, flat=False):
    """flat: the strided layer is no module of its own, as in det3d."""
    return {
        f"conv{i}": nn.Sequential(*((down if flat else [down]) if down else []), *more)
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
        down = {"kernel": (3, 1, 1), "stride": (2, 1, 1), "padding": (0, 0, 0)}
        encoder.add_module(self.OUT, layer(sizes, sizes.widths[-1], sizes.last, **down))
        for padding in (*[1] * (len(sizes.widths) - 2), 0, 0):
            left = (left + 2 * padding - 3) // 2 + 1
        return sizes.last * left

    def means(self, points):
        pillars = pillars_of(points, self.grid)
        total = torch.zeros(len(pillars.cells), points.size(1))
        total.index_add_(0, pillars.pillar, pillars.rows)
        count = torch.bincount(pillars.pillar, minlength=len(total))
        return Rows(total / count[:, None], pillars.cells, [self.planes, *self.grid.shape])

    def seen(self, points):
        x = self.means(points)
        for part in self.parts()[0].children():
            x = part(x)
        grid = torch.zeros(x.features.size(1), *x.shape)
        grid[(slice(None), *x.cells.T)] = x.features.T
        return grid.flatten(0, 1)[None]
