# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors, their batch norm and ReLU, and the way to a dense grid. Lists of three are
(z, y, x)."""

from typing import Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchvox._util.errors import expect
from torchvox.ops.annotations import Sequence


class SparseTables(NamedTuple):
    """A map that a chain of layers keeps, and the rows that it reads.

    neighbors: [K, C'] int32.
    inverse: [K, C] int32; [0, 0] for a submanifold map.
    schedule: int32, of neighbors for a GPU; [0]: none.
    kernel_size: cells.
    out_level: the level of the rows C'.
    indices, num_valid, spatial_shape, level: those of the rows C, as in `SparseTensor`.
    """

    neighbors: Tensor
    inverse: Tensor
    schedule: Tensor
    kernel_size: List[int]
    out_level: str
    indices: Tensor
    num_valid: Tensor
    spatial_shape: List[int]
    level: str


class SparseTensor(NamedTuple):
    """Rows of features at cells of B grids, with room for C rows; of `sparse_tensor`.

    features: [C, channels].
    indices: [C, 4] int32 (b, z, y, x).
    num_valid: int32 or int64, whose first element counts the rows in use.
    spatial_shape: cells (z, y, x).
    batch_size: B.
    level: names the set of rows. Tensors of one chain and one level have the same rows.
    maps: the maps of all tensors that come from one `sparse_tensor`; layers add theirs.
    """

    features: Tensor
    indices: Tensor
    num_valid: Tensor
    spatial_shape: List[int]
    batch_size: int
    level: str
    maps: Dict[str, SparseTables]


for _type in (SparseTables, SparseTensor):  # torch.export.save writes types by these names
    _pytree._register_namedtuple(_type, serialized_type_name=f"torchvox.nn.{_type.__name__}")


def sparse_tensor(
    features: Tensor,
    indices: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    num_valid: Optional[Tensor] = None,
) -> SparseTensor:
    """The first `SparseTensor` of a chain of layers, without maps. Make one for every call of a
    network: maps that are kept belong to these indices.

    features: [C, channels] float16, bfloat16, float32 or float64.
    indices: [C, 4] int32 (b, z, y, x) in any order, those of `voxelize` for example. Rows outside,
        and rows in the cell of a lower one, are skipped by every map.
    spatial_shape: cells (z, y, x). batch_size: samples.
    num_valid: int32 or int64, whose first element counts the rows in use, as `counts` of
        `voxelize`; None: all.
    Raises ValueError (shapes).
    """
    if indices.dim() != 2 or indices.size(1) != 4:
        raise ValueError(f"sparse_tensor: indices must be [C, 4], got {indices.size()}")
    if features.dim() != 2 or features.size(0) != indices.size(0):
        raise ValueError(
            "sparse_tensor: features must be [C, channels] with a row for each of indices, got "
            f"{features.size()} beside {indices.size()}"
        )
    if len(spatial_shape) != 3:
        raise ValueError(f"sparse_tensor: spatial_shape must be (z, y, x), got {spatial_shape}")
    if num_valid is None:
        num_valid = torch.full([1], indices.size(0), dtype=torch.int32, device=indices.device)
    maps: Dict[str, SparseTables] = {}
    return SparseTensor(features, indices, num_valid, list(spatial_shape), batch_size, "", maps)


def with_features(x: SparseTensor, features: Tensor) -> SparseTensor:
    """The rows and maps of x with other features, [C, any number of channels]."""
    return SparseTensor(
        features, x.indices, x.num_valid, x.spatial_shape, x.batch_size, x.level, x.maps
    )


class SparseBatchNorm(nn.Module):
    """Batch norm over the rows in use of a `SparseTensor`, under the names of a BatchNorm1d, which
    would count the others too.

    num_features: channels. eps: above 0. momentum: share of a batch in the running statistics;
    None: their mean over all batches. Parameters are taken in float32, for float64 features in
    float64. The running variance is the unbiased one, 0 for one row; a batch of no rows changes
    nothing. See `torchvox.sparse_batch_norm`. Statistics are those of one process; `torchvox train`
    on several devices joins theirs.
    """

    momentum: Optional[float]

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1
    ) -> None:
        super().__init__()
        expect(eps > 0, "SparseBatchNorm: eps must be > 0", eps)
        self.num_features, self.eps, self.momentum = int(num_features), float(eps), momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, x: SparseTensor) -> SparseTensor:
        kind = torch.float64 if x.features.dtype == torch.float64 else torch.float32
        mean: Optional[Tensor] = None
        var: Optional[Tensor] = None
        if not self.training:
            mean, var = self.running_mean.to(kind), self.running_var.to(kind)
        weight, bias = self.weight.to(kind), self.bias.to(kind)
        out, batch_mean, batch_var = torch.ops.torchvox.sparse_batch_norm(
            x.features, weight, bias, self.eps, mean=mean, var=var, num_valid=x.num_valid
        )
        if self.training:
            rows = x.num_valid.flatten()[0].clamp(0, x.features.size(0))
            self.remember(rows, batch_mean, batch_var)
        return with_features(x, out)

    def remember(self, rows: Tensor, mean: Tensor, var: Tensor) -> None:
        """Updates the running statistics by the mean and the biased variance of a batch."""
        with torch.no_grad():
            self.num_batches_tracked.add_(rows > 0)
            kind, momentum = self.running_mean.dtype, self.momentum
            share = (rows > 0).to(kind)
            if momentum is None:
                share = share / self.num_batches_tracked.clamp(min=1)
            else:
                share = share * momentum
            unbiased = var * (rows.double() / (rows - 1).clamp(min=1)).to(var.dtype)
            self.running_mean.lerp_(mean.to(kind), share.to(kind))
            self.running_var.lerp_(unbiased.to(kind), share.to(kind))

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class SparseReLU(nn.Module):
    """ReLU of the features of a `SparseTensor`."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        return with_features(x, x.features.relu())


class SparseSequential(nn.Sequential):
    """Modules from `SparseTensor` to `SparseTensor` in a row, as nn.Sequential, whose argument
    TorchScript takes for a Tensor."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        for module in self:
            x = module(x)
        return x


def dense_cells(x: SparseTensor) -> Tensor:
    """[B, D, H, W, channels]: 0 in cells without a row; of rows in one cell, the lowest."""
    depth, height, width = x.spatial_shape[0], x.spatial_shape[1], x.spatial_shape[2]
    sample, z = x.indices[:, 0], x.indices[:, 1]
    row = torch.arange(x.indices.size(0), device=x.indices.device)
    used = (row < x.num_valid.flatten()[0]) & (z >= 0) & (z < depth)
    used = used & (sample >= 0) & (sample < x.batch_size)  # else another sample's plane
    plane = torch.where(used, sample * depth + z, -1)
    indices = torch.cat([plane.unsqueeze(1), x.indices[:, 1:]], 1)
    planes = torch.ops.torchvox.pillar_scatter(
        x.features, indices, x.batch_size * depth, [width, height]
    )
    return planes.permute(0, 2, 3, 1).unflatten(0, [x.batch_size, depth])


class ToDense(nn.Module):
    """A `SparseTensor` to a dense grid [B, channels, D, H, W], 0 in cells without a row; of rows in
    one cell, the lowest. flatten(1, 2) is a view [B, channels * D, H, W] with the strides of
    torch.channels_last, whose channel c * D + z is channel c of plane z. Differentiable."""

    def forward(self, x: SparseTensor) -> Tensor:
        grid = dense_cells(x).permute(0, 2, 3, 4, 1)  # [B, H, W, channels, D] in memory
        return grid.contiguous().permute(0, 3, 4, 1, 2)
