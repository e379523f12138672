# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling of sparse tensors, and the maps that they share. Lists of three are
(z, y, x)."""

import math
from collections import abc
from typing import List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from torchvox._util.errors import expect
from torchvox.nn.sparse import SparseTables, SparseTensor, with_features
from torchvox.ops.annotations import Sequence

Size = Union[int, Sequence[int]]
Rows = Tuple[SparseTensor, Tensor, Optional[Tensor], Optional[Tensor]]
OPTIONS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
           "indice_key", "max_rows", "per_sample", "growth")  # fmt: skip


class SparseLayer(nn.Module):
    """What sparse convolutions and pools share: a kernel."""

    axes = 3

    def __init__(self, kernel_size: Size) -> None:
        super().__init__()
        self.layer = type(self).__name__
        self.kernel_size = self.sizes("kernel_size", kernel_size)

    def sizes(self, name: str, value: Size, least: int = 1) -> List[int]:
        """(z, y, x); `least` along z for a layer of two axes."""
        values = list(value) if isinstance(value, abc.Sequence) else [value] * self.axes
        good = len(values) == self.axes and all(int(v) == v >= least for v in values)
        rule = f"{self.layer}: {name} must be an int or {self.axes} of them, each >= {least}"
        expect(good, rule, value)
        return [least] * (3 - self.axes) + [int(v) for v in values]

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={getattr(self, k)!r}" for k in OPTIONS if hasattr(self, k))


class SparseConvolution(SparseLayer):
    """What sparse convolutions share: parameters, and the product over the table of `rows`.

    weight: [out_channels, kz, ky, kx, in_channels], without kz in two dimensions; bias:
        [out_channels] or None. Both start as those of torch's convolutions do, as in spconv.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, bias: bool) -> None:
        super().__init__(kernel_size)
        self.in_channels, self.out_channels = int(in_channels), int(out_channels)
        shape = [out_channels, *self.kernel_size[3 - self.axes :], in_channels]
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fan_in = math.prod(self.kernel_size) * self.in_channels
        bound = 1 / math.sqrt(max(fan_in, 1))  # Kaiming uniform with a = sqrt(5)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def rows(self, x: SparseTensor) -> Rows:
        """The rows of the output, still with the features of x; the table that they read, the other
        one of its map, None for a submanifold table, and a schedule of the first, if there is one.
        """
        raise NotImplementedError

    def convolve(self, x: SparseTensor, residual: Optional[Tensor], relu: bool) -> SparseTensor:
        """residual, relu: those of `torchvox.sparse_conv`."""
        if x.features.size(1) != self.in_channels:
            raise ValueError(
                f"{self.layer}: features must have {self.in_channels} channels, got "
                f"{x.features.size(1)}"
            )
        out, neighbors, inverse, schedule = self.rows(x)
        weight = self.weight
        if weight.dim() == 4:
            weight = weight.unsqueeze(1)
        features = torch.ops.torchvox.sparse_conv(
            x.features,
            weight,
            neighbors,
            bias=self.bias,
            residual=residual,
            relu=relu,
            inverse=inverse,
            submanifold=inverse is None,
            schedule=schedule,
            num_valid=out.num_valid,
        )
        return with_features(out, features)

    def forward(self, x: SparseTensor) -> SparseTensor:
        return self.convolve(x, None, False)


class SubMConv3d(SparseConvolution):
    """Submanifold convolution (Graham et al., CVPR 2018): a `SparseTensor` to one of the same rows,
    which alone are read.

    kernel_size: cells, odd; an int or (z, y, x), as all sizes. dilation: from 1.

    The map is built once for all layers of a level with this kernel and dilation. A kernel of one
    cell needs none: every row in use reads itself.
    Raises ValueError: an even kernel; features of other channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        *,
        dilation: Size = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias)
        odd = all(size % 2 == 1 for size in self.kernel_size)
        expect(odd, f"{self.layer}: kernel_size must be odd", kernel_size)
        self.dilation = self.sizes("dilation", dilation)
        self.map_name = f"#{self.kernel_size}{self.dilation}"
        self.pointwise = max(self.kernel_size) == 1

    def rows(self, x: SparseTensor) -> Rows:
        if self.pointwise:
            row = torch.arange(x.indices.size(0), dtype=torch.int32, device=x.indices.device)
            itself = torch.where(row < x.num_valid.flatten()[0], row, -1).unsqueeze(0)
            return x, itself, None, None
        name = x.level + self.map_name
        if name not in x.maps:
            grid = (x.indices, x.spatial_shape, x.batch_size, self.kernel_size)
            neighbors, _ = torch.ops.torchvox.sparse_subm_map(
                *grid, dilation=self.dilation, num_valid=x.num_valid
            )
            none = x.indices.new_empty([0, 0])
            x.maps[name] = _tables(x, neighbors, none, self.kernel_size, x.level)
        schedule = x.maps[name].schedule
        return x, x.maps[name].neighbors, None, schedule if schedule.size(0) > 0 else None


def _tables(
    x: SparseTensor, neighbors: Tensor, inverse: Tensor, kernel_size: List[int], out_level: str
) -> SparseTables:
    schedule = neighbors.new_empty([0])
    if neighbors.is_cuda and inverse.size(0) == 0:  # of a submanifold map, which many layers take
        schedule = torch.ops.torchvox.sparse_schedule(neighbors, kernel_size)
    rows = (x.indices, x.num_valid, x.spatial_shape, x.level)
    return SparseTables(neighbors, inverse, schedule, kernel_size, out_level, *rows)


class StridedMap(SparseLayer):
    """What a strided convolution and a pool share: the map from the rows of x to new ones."""

    def set_map(
        self,
        stride: Size,
        padding: Size,
        dilation: Size,
        indice_key: str,
        max_rows: int,
        growth: float,
        per_sample: bool = False,
    ) -> None:
        self.stride = self.sizes("stride", stride)
        self.padding = self.sizes("padding", padding, 0)
        self.dilation = self.sizes("dilation", dilation)
        self.indice_key = str(indice_key)
        expect(max_rows >= -1, f"{self.layer}: max_rows must be >= -1", max_rows)
        rule = f"{self.layer}: growth must be finite, >= 0, and 0 beside max_rows"
        expect(0 <= growth < math.inf and (growth == 0 or max_rows == -1), rule, growth)
        self.max_rows, self.growth, self.per_sample = int(max_rows), float(growth), bool(per_sample)
        # Layers that agree in all of this make the same rows of the same rows.
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        self.step = f"/{sizes}{self.max_rows},{self.growth},{self.per_sample}"

    def strided_rows(self, x: SparseTensor) -> Tuple[SparseTensor, Tensor, Tensor]:
        """The new rows, still with the features of x, neighbors and inverse."""
        shape: List[int] = []
        for a in range(3):
            reach = self.dilation[a] * (self.kernel_size[a] - 1) + 1
            shape.append((x.spatial_shape[a] + 2 * self.padding[a] - reach) // self.stride[a] + 1)
        if min(shape) < 1:
            raise ValueError(
                f"{self.layer}: spatial_shape must leave cells in the output, got "
                f"{x.spatial_shape}, which becomes {shape}"
            )
        key = "=" + self.indice_key
        if len(self.indice_key) > 0 and key in x.maps:
            raise ValueError(
                f"{self.layer}: indice_key must be new to the chain, got {self.indice_key}, the "
                "key of an earlier layer"
            )
        max_rows = self.max_rows
        if self.per_sample and max_rows > 0:
            max_rows = max_rows * x.batch_size
        if self.growth > 0:
            max_rows = math.ceil(self.growth * x.indices.size(0))
        grid = (x.indices, x.spatial_shape, x.batch_size, self.kernel_size)
        indices, neighbors, inverse, counts = torch.ops.torchvox.sparse_conv_map(
            *grid, stride=self.stride, padding=self.padding, dilation=self.dilation,
            max_rows=max_rows, num_valid=x.num_valid,
        )  # fmt: skip
        level = x.level + self.step
        if len(self.indice_key) > 0:
            x.maps[key] = _tables(x, neighbors, inverse, self.kernel_size, level)
        out = SparseTensor(x.features, indices, counts, shape, x.batch_size, level, x.maps)
        return out, neighbors, inverse


class SparseConv3d(StridedMap, SparseConvolution):
    """Sparse convolution: a `SparseTensor` to one with a row for every cell that the kernel reaches
    from a row of the input, ascending by (b, z, y, x).

    kernel_size, dilation: as in `SubMConv3d`, even kernels too. stride: from 1. padding: from 0.
    indice_key: a name of the map for a `SparseInverseConv3d`; "": none.
    max_rows: capacity of the output; the last cells are dropped when more are found. -1: as many as
        the rows can reach, often 8 times as many as they do.
    growth: above 0, capacity per row of the input's capacity, rounded up, in place of max_rows;
        not for an exported program of any capacity, which torch cannot save.
    per_sample: max_rows counts for each sample; a sample may use what another leaves.

    num_valid of the output is the `counts` of `torchvox.sparse_conv_map`, rows kept and found.
    Raises ValueError: options; features of other channels; an output without cells; an indice_key
    that the chain has.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        padding: Size = 0,
        *,
        dilation: Size = 1,
        bias: bool = True,
        indice_key: str = "",
        max_rows: int = -1,
        growth: float = 0.0,
        per_sample: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias)
        self.set_map(stride, padding, dilation, indice_key, max_rows, growth, per_sample)

    def rows(self, x: SparseTensor) -> Rows:
        out, neighbors, inverse = self.strided_rows(x)
        return out, neighbors, inverse, None


class SparseInverseConv3d(SparseConvolution):
    """The way back of a strided layer: a `SparseTensor` to one of the rows which that layer read.

    kernel_size: that of the strided layer. indice_key: its key.

    Rows that the strided layer did not reach get the bias.
    Raises ValueError: features of other channels; a key that no layer of the chain has; a map of
    another kernel or to other rows.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        indice_key: str,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias)
        self.indice_key = str(indice_key)

    def rows(self, x: SparseTensor) -> Rows:
        key = "=" + self.indice_key
        if key not in x.maps:
            raise ValueError(
                f"{self.layer}: indice_key must be that of a strided layer before, got "
                f"{self.indice_key}"
            )
        found = x.maps[key]
        if found.kernel_size != self.kernel_size:
            raise ValueError(
                f"{self.layer}: kernel_size must be that of the map {self.indice_key}, "
                f"{found.kernel_size}, got {self.kernel_size}"
            )
        if found.out_level != x.level:
            raise ValueError(
                f"{self.layer}: the rows must be those that the map {self.indice_key} made, "
                f"{found.out_level}, got {x.level}"
            )
        rows = (found.indices, found.num_valid, found.spatial_shape, x.batch_size, found.level)
        return SparseTensor(x.features, *rows, x.maps), found.inverse, found.neighbors, None


class SparseMaxPool3d(StridedMap):
    """Maximum of the rows under the kernel: a `SparseTensor` to one of the rows of a
    `SparseConv3d` with the same arguments. Cells without a row do not count, as in
    `torchvox.sparse_max_pool`. Raises the ValueErrors of `SparseConv3d`."""

    def __init__(
        self,
        kernel_size: Size = 3,
        stride: Size = 1,
        padding: Size = 0,
        *,
        dilation: Size = 1,
        indice_key: str = "",
        max_rows: int = -1,
        growth: float = 0.0,
    ) -> None:
        super().__init__(kernel_size)
        self.set_map(stride, padding, dilation, indice_key, max_rows, growth)

    def forward(self, x: SparseTensor) -> SparseTensor:
        out, neighbors, inverse = self.strided_rows(x)
        features, _ = torch.ops.torchvox.sparse_max_pool(
            x.features, neighbors, inverse=inverse, num_valid=out.num_valid
        )
        return with_features(out, features)


class SubMConv2d(SubMConv3d):
    """`SubMConv3d` in each plane of cells along z, sizes (y, x), weight [out_channels, ky, kx,
    in_channels]. Two dimensions are indices with z = 0 and a spatial_shape (1, H, W)."""

    axes = 2


class SparseConv2d(SparseConv3d):
    """`SparseConv3d` in each plane, as `SubMConv2d`."""

    axes = 2


class SparseInverseConv2d(SparseInverseConv3d):
    """`SparseInverseConv3d` in each plane, as `SubMConv2d`."""

    axes = 2
