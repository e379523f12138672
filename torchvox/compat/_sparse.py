# SPDX-License-Identifier: Apache-2.0
"""What the sparse convolutions of spconv and of mmcv have in common. Row counts are exact, so a
strided layer reads its number of rows from the device, once. Two dimensions are three with one cell
along z."""

from collections import OrderedDict
from math import prod
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from torchvox.compat._errors import refuse
from torchvox.nn.sparse import dense_cells, sparse_tensor

MOST = 125  # cells of a kernel


class SparseMap(NamedTuple):
    """Tables between the rows of two tensors, or within one (is_subm); kept in `indice_dict`."""

    indices: Tensor
    out_indices: Tensor
    spatial_shape: List[int]
    out_spatial_shape: List[int]
    is_subm: bool
    ksize: List[int]
    stride: List[int]
    padding: List[int]
    dilation: List[int]
    neighbors: Tensor  # [K, rows out], the rows in
    inverse: Optional[Tensor]  # [K, rows in], the rows out; None if is_subm


def expand_nd(ndim: int, val) -> List[int]:
    """A list of ndim numbers."""
    values = [val] * ndim if isinstance(val, int) else list(val)
    assert len(values) == ndim, f"expected {ndim} values, got {val}"
    return [int(v) for v in values]


def get_conv_output_size(input_size, kernel_size, stride, padding, dilation) -> List[int]:
    """The cells of the output along each axis."""
    axes = zip(input_size, kernel_size, stride, padding, dilation, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes]


def scatter_nd(indices: Tensor, updates: Tensor, shape: List[int]) -> Tensor:
    """Zeros of a shape with updates at indices [.., axes]."""
    out = updates.new_zeros(*shape)
    places = indices.reshape(-1, indices.shape[-1]).unbind(1)
    out[places] = updates.reshape(-1, *shape[len(places) :])
    return out


def lift(values: List[int], first: int) -> List[int]:
    """Three values; `first` stands for the axes that are missing."""
    return [first] * (3 - len(values)) + values


def cells_of(indices: Tensor) -> Tensor:
    """[M, 4] (b, z, y, x)."""
    zeros = indices.new_zeros(len(indices), 4 - indices.shape[1])
    return torch.cat([indices[:, :1], zeros, indices[:, 1:]], 1)


class Rows:
    """Base of the peers' tensors: features [M, C] and indices [M, 1 + axes] int32, the sample
    first."""

    features: Tensor
    indices: Tensor
    spatial_shape: List[int]
    batch_size: int
    indice_dict: Dict[Any, SparseMap]

    @property
    def spatial_size(self) -> int:
        return prod(self.spatial_shape)

    def find_indice_pair(self, key) -> Optional[SparseMap]:
        return None if key is None else self.indice_dict.get(key)

    def dense(self, channels_first: bool = True) -> Tensor:
        """[B, C, cells..], or [B, cells.., C]: 0 where no row is; of equal rows, the lowest."""
        shape, batch = [int(n) for n in self.spatial_shape], int(self.batch_size)
        cells = cells_of(self.indices.to(self.features.device))
        grid = dense_cells(sparse_tensor(self.features, cells, lift(shape, 1), batch))
        grid = grid.reshape(batch, *shape, self.features.shape[1])
        return grid.movedim(-1, 1).contiguous() if channels_first else grid

    def derive(self, features, indices, spatial_shape, indice_dict) -> "Rows":
        """The result of a layer."""
        raise NotImplementedError


def by_axes(base: type) -> List[type]:
    """The layers of two and of three axes: of _SubMConv, SubMConv2d and SubMConv3d."""
    own = {"__module__": base.__module__, "__doc__": base.__doc__}
    return [type(f"{base.__name__[1:]}{n}d", (base,), {"NDIM": n, **own}) for n in (2, 3)]


class Window(nn.Module):
    """Kernel, stride, padding and dilation of a layer, and the map of a call."""

    NDIM = 0
    subm = False
    indice_key: Optional[str] = None

    def set_window(self, ndim, kernel_size, stride, padding, dilation) -> None:
        self.ndim, window = ndim, (kernel_size, stride, padding, dilation)
        self.kernel_size, self.stride, self.padding, self.dilation = (
            expand_nd(ndim, values) for values in window
        )
        if prod(self.kernel_size) > MOST:
            refuse(f"{type(self).__name__}: kernel_size={self.kernel_size} of over {MOST} cells")

    def extra_repr(self) -> str:
        names = ("kernel_size", "stride", "padding", "dilation", "indice_key")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    def fits(self, found: SparseMap, x: Rows, inverse: bool = False) -> None:
        """Raise ValueError if a kept map is not that of this layer at these rows."""
        shape = found.out_spatial_shape if inverse else found.spatial_shape
        rows = found.out_indices if inverse else found.indices
        strided = not inverse and not self.subm
        for what, kept, own, counts in (
            ("kernel size", found.ksize, self.kernel_size, True),
            ("dilation", found.dilation, self.dilation, not inverse),
            ("stride", found.stride, self.stride, strided),
            ("padding", found.padding, self.padding, strided),
            ("spatial shape", shape, [int(n) for n in x.spatial_shape], True),
            ("number of rows", [len(rows)], [len(x.indices)], True),
        ):
            if counts and kept != own:
                raise ValueError(
                    f"{type(self).__name__}: the map of indice_key={self.indice_key!r} has "
                    f"{what} {kept}, got {own}"
                )

    def make_map(self, x: Rows) -> SparseMap:
        shape = [int(n) for n in x.spatial_shape]
        window = (self.kernel_size, self.stride, self.padding, self.dilation)
        kernel, stride, padding, dilation = (
            lift(values, first) for values, first in zip(window, (1, 1, 0, 1), strict=True)
        )
        cells, ops = cells_of(x.indices), torch.ops.torchvox
        grid = (cells, lift(shape, 1), int(x.batch_size), kernel)
        if self.subm:
            neighbors, _ = ops.sparse_subm_map(*grid, dilation=dilation)
            return SparseMap(x.indices, x.indices, shape, shape, True, *window, neighbors, None)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        made = ops.sparse_conv_map(*grid, **options, max_rows=2 * len(cells) + 64)
        kept, found = made[3][0, :2].tolist()
        if found > kept:  # rare: most levels have fewer rows than the one before
            made = ops.sparse_conv_map(*grid, **options, max_rows=found)
        out, neighbors = made[0][:found], made[1][:, :found].contiguous()
        cells = out[:, [0, *range(4 - self.ndim, 4)]]
        cut = get_conv_output_size(shape, *window)
        return SparseMap(x.indices, cells, shape, cut, False, *window, neighbors, made[2])

    def find_map(self, x: Rows) -> SparseMap:
        """The kept map, or a new one."""
        found = x.find_indice_pair(self.indice_key)
        if found is None:
            return self.make_map(x)
        assert found.is_subm or not self.subm, "only submanifold layers share maps"
        self.fits(found, x)
        return found

    def keep(self, x: Rows, found: SparseMap) -> Dict[Any, SparseMap]:
        """`indice_dict` of the result."""
        key = self.indice_key
        return x.indice_dict if key is None else {**x.indice_dict, key: found}


class Convolution(Window):
    """The peers add the layout of the weight."""

    weight: nn.Parameter
    bias: Optional[nn.Parameter]

    def set_layer(
        self, in_channels, out_channels, groups, subm, inverse, indice_key, bias, device=None,
        dtype=None,
    ) -> None:  # fmt: skip
        if groups != 1:
            refuse(f"{type(self).__name__}: groups={groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.subm, self.inverse, self.transposed = subm, inverse, False
        self.indice_key = indice_key
        self.conv1x1 = prod(self.kernel_size) == 1
        weight = torch.empty(self.weight_shape(), device=device, dtype=dtype)
        self.weight = nn.Parameter(weight)
        of_bias = nn.Parameter(weight.new_empty(out_channels)) if bias else None
        self.register_parameter("bias", of_bias)
        self.reset_parameters()

    def weight_shape(self) -> Tuple[int, ...]:
        return (self.out_channels, *self.kernel_size, self.in_channels)

    def reset_parameters(self) -> None:
        """Kaiming's with a = sqrt(5); the fan of a weight is what its first axis leaves."""
        fans = (self.weight[:1].numel(), prod(self.kernel_size) * self.in_channels)
        for parameter, fan in zip(self.parameters(), fans):  # noqa: B905
            bound = max(fan, 1) ** -0.5
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, {super().extra_repr()}"

    def run(self, x: Rows, weight: Tensor) -> Rows:
        """weight: [Cout, kernel.., Cin]."""
        assert x.features.shape[1] == self.in_channels, "channel size mismatch"
        if self.conv1x1:
            row = torch.arange(len(x.features), dtype=torch.int32, device=x.features.device)
            tables, rows = (row[None], None), (x.indices, x.spatial_shape, x.indice_dict)
        elif self.inverse:
            found = x.find_indice_pair(self.indice_key)
            assert found is not None, f"no map has indice_key={self.indice_key!r}"
            assert found.inverse is not None, "an inverse layer needs the map of a strided one"
            self.fits(found, x, inverse=True)
            tables = found.inverse, found.neighbors
            rows = found.indices, found.spatial_shape, x.indice_dict
        else:
            found = self.find_map(x)
            tables = found.neighbors, found.inverse
            rows = found.out_indices, found.out_spatial_shape, self.keep(x, found)
        weight = weight.reshape(len(weight), *lift(self.kernel_size, 1), self.in_channels)
        out = torch.ops.torchvox.sparse_conv(
            *(x.features, weight, tables[0]), bias=self.bias, inverse=tables[1],
            submanifold=tables[1] is None,
        )  # fmt: skip
        return x.derive(out, *rows)


class MaxPool(Window):
    def forward(self, input):
        found = self.find_map(input)
        out, _ = torch.ops.torchvox.sparse_max_pool(
            input.features, found.neighbors, inverse=found.inverse
        )
        kept = self.keep(input, found)
        return input.derive(out, found.out_indices, found.out_spatial_shape, kept)


class Sequential(nn.Module):
    """Arguments, one OrderedDict or keywords are its modules."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        first = len(args) == 1 and isinstance(args[0], OrderedDict)
        named = args[0] if first else {str(i): module for i, module in enumerate(args)}
        for name, module in [*named.items(), *kwargs.items()]:
            if name in self._modules:
                raise ValueError("name exists.")
            self.add_module(name, module)

    def __getitem__(self, idx):
        if not -len(self) <= idx < len(self):
            raise IndexError(f"index {idx} is out of range")
        return [*self._modules.values()][idx]

    def __len__(self):
        return len(self._modules)

    def add(self, module, name=None):
        if name is None and str(len(self)) in self._modules:
            raise KeyError("name exists")
        self.add_module(name or str(len(self)), module)
