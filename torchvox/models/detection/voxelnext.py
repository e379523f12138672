# SPDX-License-Identifier: Apache-2.0
"""VoxelNeXt (Chen et al., CVPR 2023): boxes from the rows of sparse convolutions."""

from itertools import pairwise
from typing import Any, List, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from torchvox.models.detection.config import PARTS, RowHeadConfig, VoxelNeXtConfig
from torchvox.models.detection.detector import DetectionNet
from torchvox.models.detection.losses import RowLoss
from torchvox.models.detection.sparse_backbone import MeanVoxels, SparseBackbone
from torchvox.models.detection.validation import validated
from torchvox.nn.conv import for_onnx
from torchvox.nn.sparse import SparseSequential, SparseTensor, dense_cells, with_features
from torchvox.nn.sparse_blocks import FusedSparseConv, conv_norm_relu
from torchvox.nn.sparse_conv import SubMConv2d


class RowBranch(nn.Module):
    """Convolutions with batch norm, then one of one cell without: rows to [C, outputs]."""

    def __init__(self, config: RowHeadConfig, outputs: int) -> None:
        super().__init__()
        widths = [config.shared] + [config.width] * config.convs
        layers: List[nn.Module] = []
        for a, b in pairwise(widths):
            conv = SubMConv2d(a, b, config.kernel, bias=config.conv_bias)
            layers += conv_norm_relu(conv, config.eps, config.momentum)
        self.layers = SparseSequential(*layers)
        self.out = SubMConv2d(widths[-1], outputs, 1)

    def forward(self, x: SparseTensor) -> Tensor:
        return self.out(self.layers(x)).features


class MergedRows(nn.Module):
    """Fused branches of one layer each: their layers as one convolution, then their last ones as
    one batch of matrix products. Rows to [C, outputs] of each, float32."""

    def __init__(self, branches: Sequence[RowBranch], channels: Sequence[int]) -> None:
        super().__init__()
        firsts: List[FusedSparseConv] = []
        for branch in branches:
            first = branch.layers[0] if len(branch.layers) == 1 else None
            if not isinstance(first, FusedSparseConv):
                raise ValueError("merge_heads: branches must have one layer each, and fused")
            firsts.append(first)
        self.first = FusedSparseConv(firsts[0].conv, None, True, None)
        outs = [branch.out.conv for branch in branches]
        self.channels, self.width = list(channels), int(outs[0].in_channels)
        weight = outs[0].weight.new_zeros(len(outs), self.width, max(channels))
        bias = outs[0].weight.new_zeros(len(outs), 1, max(channels))
        with torch.no_grad():
            for name in ("weight", "bias"):
                both = torch.cat([getattr(first.conv, name) for first in firsts])
                setattr(self.first.conv, name, nn.Parameter(both, requires_grad=False))
            for i, out in enumerate(outs):
                weight[i, :, : channels[i]] = out.weight.flatten(1).t()
                bias[i, 0, : channels[i]] = out.bias
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: SparseTensor) -> List[Tensor]:
        seen = self.first(x).features.unflatten(1, [-1, self.width]).transpose(0, 1)
        numbers = torch.bmm(seen, self.weight).float() + self.bias.float()
        rows: List[Tensor] = []
        for i, channels in enumerate(self.channels):
            rows.append(numbers[i, :, :channels])
        return rows


class RowHead(nn.Module):
    """A shared convolution of 3 x 3 cells, then branches for every task, over rows of a plane.

    forward(x) returns what `CenterHead` does, the maps of its cells: heat is -inf, which no
    threshold passes, and all else 0 where no row is.
    """

    def __init__(self, in_channels: int, config: RowHeadConfig) -> None:
        super().__init__()
        parts = {k: width for k, width in PARTS.items() if k != "vel" or config.velocity}
        shared = SubMConv2d(in_channels, config.shared, bias=config.conv_bias)
        self.shared = SparseSequential(*conv_norm_relu(shared, config.eps, config.momentum))
        branches = [{"hm": len(names), **parts} for names in config.tasks]
        self.tasks = nn.ModuleList(
            nn.ModuleDict({name: RowBranch(config, n) for name, n in task.items()})
            for task in branches
        )
        self.per_task = len(parts) + 1
        self.channels: List[int] = [n for task in branches for n in task.values()]
        merged: Optional[nn.Module] = None
        self.merged = merged
        with torch.no_grad():
            for task in self.tasks:
                task["hm"].out.bias.fill_(config.heat_bias)

    def forward(self, x: SparseTensor) -> List[List[Tensor]]:
        x = self.shared(x)
        rows: List[Tensor] = []
        if self.merged is not None:
            rows += self.merged(x)
        else:
            for task in self.tasks:
                for branch in task.values():
                    rows.append(branch(x))
        if not torch.jit.is_scripting() and for_onnx():
            n = self.per_task  # ONNX Runtime joins at most 32 tensors at once in a CUDA graph
            rows = [torch.cat(rows[i : i + n], 1) for i in range(0, len(rows), n)]
        rows.append(torch.ones_like(rows[0][:, :1]))
        cells = dense_cells(with_features(x, torch.cat(rows, 1)))[:, 0].permute(0, 3, 1, 2)
        empty, at = cells[:, -1:] == 0, 0
        kinds: List[List[Tensor]] = [[], [], [], [], [], []]
        for i, channels in enumerate(self.channels):
            kind, map_ = i % self.per_task, cells.narrow(1, at, channels)
            at += channels
            kinds[kind].append(map_.masked_fill(empty, -float("inf")) if kind == 0 else map_)
        return kinds

    @torch.jit.unused
    def merge(self) -> None:
        """Two products for all branches from now on, for inference."""
        branches = [branch for task in self.tasks for branch in task.values()]
        self.merged = MergedRows(branches, self.channels)
        self.tasks = nn.ModuleList()


class VoxelNeXt(DetectionNet):
    """VoxelNeXt: a heat map per class on the rows of sparse convolutions alone, without a dense
    network. Everything else as `CenterPointVoxel`."""

    def __init__(self, config: Union[VoxelNeXtConfig, Mapping[str, Any]]) -> None:
        config = validated(VoxelNeXtConfig, config)
        super().__init__(config)
        self.voxels = MeanVoxels(config)
        self.sparse_backbone = SparseBackbone(config.columns, config.sparse)
        self.head = RowHead(config.sparse.out_channels, config.head)
        self.add_centers(config, config.head, RowLoss)

    def maps(self, points: Tensor, num_points: Tensor) -> List[List[Tensor]]:
        rows, offsets = self.packed(points, num_points)
        x = self.voxels(rows, points.size(0), offsets, num_points)
        return self.head(self.sparse_backbone(x))

    @torch.jit.unused
    def column_weight(self) -> Tensor:
        return self.sparse_backbone.first.layers[0].weight
