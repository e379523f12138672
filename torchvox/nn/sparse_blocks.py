# SPDX-License-Identifier: Apache-2.0
"""Residual blocks of sparse tensors, and sparse convolutions with all behind them fused in."""

import copy
from typing import List, Optional, Type, TypeVar

import torch
from torch import Tensor, nn

from torchvox.nn.conv import fused_norm
from torchvox.nn.sparse import (
    SparseBatchNorm,
    SparseReLU,
    SparseSequential,
    SparseTensor,
    with_features,
)
from torchvox.nn.sparse_conv import SparseConvolution, SubMConv3d

Taken = TypeVar("Taken", bound=nn.Module)


def conv_norm_relu(conv: SparseConvolution, eps: float, momentum: float) -> List[nn.Module]:
    """The convolution, a batch norm of its outputs with eps and momentum, a ReLU."""
    return [conv, SparseBatchNorm(conv.out_channels, eps, momentum), SparseReLU()]


class FusedSparseConv(nn.Module):
    """A sparse convolution in evaluation with what follows it: batch norm in its weight and bias,
    then a residual, then ReLU. One launch beside the map; computes in the dtype of the weight."""

    def __init__(
        self,
        conv: SparseConvolution,
        norm: Optional[SparseBatchNorm],
        relu: bool,
        dtype: Optional[torch.dtype],
    ) -> None:
        super().__init__()
        self.conv, self.relu = copy.deepcopy(conv), relu
        if norm is not None:
            axis = [-1] + [1] * (conv.weight.dim() - 1)
            weight, bias = fused_norm(conv, norm, axis, dtype)
            self.conv.weight = nn.Parameter(weight, requires_grad=False)
            self.conv.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: SparseTensor, residual: Optional[Tensor] = None) -> SparseTensor:
        dtype = self.conv.weight.dtype
        if residual is not None:
            residual = residual.to(dtype)
        return self.conv.convolve(with_features(x, x.features.to(dtype)), residual, self.relu)


class SparseResidualBlock(nn.Module):
    """Two submanifold convolutions of 3 cells with batch norms, a ReLU between, the input added
    before the last one; where channels change, the input through a convolution of one cell and a
    norm. bias: of the first two convolutions."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        bias: bool = False,
        eps: float = 1e-3,
        momentum: float = 0.01,
    ) -> None:
        super().__init__()
        self.conv1 = SubMConv3d(in_channels, out_channels, bias=bias)
        self.norm1 = SparseBatchNorm(out_channels, eps, momentum)
        self.conv2 = SubMConv3d(out_channels, out_channels, bias=bias)
        self.norm2 = SparseBatchNorm(out_channels, eps, momentum)
        self.shortcut = SparseSequential()
        if in_channels != out_channels:
            self.shortcut = SparseSequential(
                SubMConv3d(in_channels, out_channels, 1, bias=False),
                SparseBatchNorm(out_channels, eps, momentum),
            )

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = self.norm1(self.conv1(x))
        y = self.norm2(self.conv2(with_features(y, y.features.relu())))
        return with_features(y, (y.features + self.shortcut(x).features).relu())


class FusedSparseBlock(nn.Module):
    """A `SparseResidualBlock` in evaluation, two or three launches beside the map."""

    def __init__(self, block: SparseResidualBlock, dtype: Optional[torch.dtype]) -> None:
        super().__init__()
        self.conv1 = FusedSparseConv(block.conv1, block.norm1, True, dtype)
        self.conv2 = FusedSparseConv(block.conv2, block.norm2, True, dtype)
        self.shortcut = fuse_sequence(block.shortcut, dtype)

    def forward(self, x: SparseTensor) -> SparseTensor:
        return self.conv2(self.conv1(x), self.shortcut(x).features)


def fuse_sequence(sequence: SparseSequential, dtype: Optional[torch.dtype]) -> SparseSequential:
    """The sequence itself, each of its convolutions and the norm and the ReLU right behind it
    replaced by one `FusedSparseConv`."""
    left = list(sequence._modules.items())  # children of a list would leave out repeated modules

    def take(kind: Type[Taken]) -> Optional[Taken]:
        if not left or not isinstance(left[0][1], kind):
            return None
        name, module = left.pop(0)
        delattr(sequence, name)
        return module

    while left:
        name, conv = left.pop(0)
        if isinstance(conv, SparseConvolution):
            norm, relu = take(SparseBatchNorm), take(SparseReLU)
            setattr(sequence, name, FusedSparseConv(conv, norm, relu is not None, dtype))
    return sequence
