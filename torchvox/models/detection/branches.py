# SPDX-License-Identifier: Apache-2.0
"""Parts of heads with tasks."""

import math
from itertools import pairwise
from typing import Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox.models.detection.config import CenterHeadConfig, DetectionsConfig, MultiHeadConfig
from torchvox.nn.conv import ConvBlock, FusedConv, as_weight, conv3x3, for_onnx

TaskConfig = Union[CenterHeadConfig, MultiHeadConfig]
FOCAL_BIAS = -math.log(99.0)  # scores of 1 % before training (Lin et al., ICCV 2017)


class Branch(nn.Module):
    """3x3 convolutions with batch norm, then one without: [B, C, H, W] to [B, outputs, H, W]."""

    def __init__(self, config: TaskConfig, outputs: int, bias: bool) -> None:
        super().__init__()
        widths = [config.shared] + [config.width] * config.convs
        convs = [conv3x3(a, b, bias=bias) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*(ConvBlock(c, config.eps, config.momentum) for c in convs))
        self.out = conv3x3(widths[-1], outputs, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(as_weight(self.layers(x), self.out.weight))


class TaskHead(nn.Module):
    """A shared convolution, then branches for every task, all tasks with as many.

    branches: of each task, name to channels. Not a head by itself.
    """

    def __init__(
        self,
        in_channels: int,
        branches: Sequence[Dict[str, int]],
        config: TaskConfig,
        shared_norm: Tuple[float, float],
    ) -> None:
        super().__init__()
        bias = bool(getattr(config, "conv_bias", False))
        self.shared = ConvBlock(conv3x3(in_channels, config.shared, bias=bias), *shared_norm)
        self.tasks = nn.ModuleList(
            nn.ModuleDict({name: Branch(config, outputs, bias) for name, outputs in task.items()})
            for task in branches
        )
        self.per_task = len(branches[0])
        self.channels: List[int] = [outputs for task in branches for outputs in task.values()]
        merged: Optional[nn.Module] = None
        self.merged = merged

    def outputs(self, x: Tensor) -> List[Tensor]:
        """Of every branch of every task."""
        x = self.shared(x)
        maps: List[Tensor] = []
        if self.merged is not None:
            for map_, channels in zip(self.merged(x), self.channels):  # noqa: B905 (TorchScript)
                maps.append(map_.narrow(1, 0, channels))
        else:
            for task in self.tasks:
                for branch in task.values():
                    maps.append(branch(x))
        return maps

    @torch.jit.unused
    def merge(self) -> None:
        """Two convolutions for all branches from now on, for inference."""
        self.merged = MergedBranches([branch for task in self.tasks for branch in task.values()])
        self.tasks = nn.ModuleList()


class Decoder(nn.Module):
    """The options that decoders share. labels: of the classes of all tasks, in their order."""

    def __init__(self, labels: Sequence[int], detections: DetectionsConfig) -> None:
        super().__init__()
        self.labels: List[int] = [int(label) for label in labels]
        self.turned = detections.box_format == "wlh_clockwise"
        self.score = float(detections.score)
        self.nms: List[float] = [float(value) for value in detections.nms]
        self.pre, self.post = int(detections.pre), int(detections.post)
        self.group, self.mode = detections.group, detections.mode
        self.shared_pre = bool(detections.shared_pre)
        self.global_post = bool(detections.global_post)
        self.best_class = bool(detections.best_class)
        self.closed = not detections.strict


class MergedBranches(nn.Module):
    """Branches of one layer each: their layers side by side as one convolution, then their last
    convolutions as one batch of matrix products, whose rows are summed over the nine cells that an
    output sees. A last convolution has few outputs, and a kernel of its own would be mostly idle.

    forward(x [B, C, H, W]) returns a map per branch, float32, all with the channels of the widest;
    in ONNX each with its own.
    """

    def __init__(self, branches: Sequence[Branch]) -> None:
        super().__init__()
        firsts: List[FusedConv] = []
        for branch in branches:
            first = branch.layers[0] if len(branch.layers) == 1 else None
            if not isinstance(first, FusedConv):
                raise ValueError("merge_heads: branches must have one layer each, and fused")
            firsts.append(first)
        weight, bias = [torch.cat([getattr(f, k) for f in firsts]) for k in ("weight", "bias")]
        self.first = FusedConv(weight, bias, 1, 1)
        outs = [branch.out for branch in branches]
        self.width = int(outs[0].in_channels)
        self.outputs: List[int] = [int(out.out_channels) for out in outs]
        self.most = max(self.outputs)
        # Rows of a branch: cell, then output. Outputs that a branch does not have are zeros.
        weight = outs[0].weight.new_zeros(len(outs), 9, self.most, self.width)
        bias = outs[0].weight.new_zeros(len(outs), self.most, 1, 1, 1)
        with torch.no_grad():
            for i, out in enumerate(outs):
                rows = out.weight.permute(2, 3, 0, 1).flatten(0, 1)
                weight[i, :, : rows.size(1)] = rows
                bias[i, : len(out.bias), 0, 0, 0] = out.bias
        self.weight = nn.Parameter(weight.flatten(1, 2), requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> List[Tensor]:
        x = self.first(x)
        if not torch.jit.is_scripting() and for_onnx():
            return self._for_onnx(x)
        count, batch, height, width = self.weight.size(0), x.size(0), x.size(2), x.size(3)
        cells = x.permute(0, 2, 3, 1).reshape(-1, count, self.width).permute(1, 2, 0)
        parts = torch.bmm(self.weight, cells)
        parts = parts.view(count, 9, self.most, batch, height, width)
        shape = [count, self.most, batch, height + 2, width + 2]
        total = self.bias.float().expand(shape).contiguous()
        for cell in range(9):
            # What a cell adds to the one above it is that one's part from below.
            y, x0 = 2 - cell // 3, 2 - cell % 3
            total[:, :, :, y : y + height, x0 : x0 + width] += parts[:, cell]
        maps = total[:, :, :, 1 : height + 1, 1 : width + 1].transpose(1, 2)
        return list(maps.unbind(0))

    @torch.jit.unused
    def _for_onnx(self, x: Tensor) -> List[Tensor]:
        """The maps, without writing to parts of a tensor, which is slow in ONNX. Planes have a
        border of zeros and lie one behind another, so that what a cell adds is one range."""
        batch, count, (height, width) = x.size(0), self.weight.size(0), x.shape[2:]
        cells = x.reshape(batch, count, self.width, height * width)
        parts = torch.matmul(self.weight, cells).float()
        planes = F.pad(parts.view(batch, count * 9 * self.most, height, width), [1, 1, 1, 1])
        planes = planes.view(batch, count, -1)
        row, size = width + 2, planes.size(2) // 9
        rest = 2 * row + 2  # at the end of a range there is no output
        firsts = [cell * size + cell // 3 * row + cell % 3 for cell in range(9)]
        total = planes[:, :, : size - rest]
        for first in firsts[1:]:
            total = total + planes[:, :, first : first + size - rest]
        total = torch.cat([total, planes[:, :, :rest]], 2).view(batch, -1, height + 2, row)
        total = total[:, :, :height, :width] + self.bias.float().view(-1, 1, 1)
        return [total.narrow(1, i * self.most, n) for i, n in enumerate(self.outputs)]


def side_by_side(convs: Sequence[nn.Conv2d]) -> nn.Linear:
    """1x1 convolutions of one input as a linear map of its cells."""
    weight = torch.cat([conv.weight.detach().flatten(1) for conv in convs])
    merged = nn.Linear(weight.size(1), weight.size(0), device=weight.device, dtype=weight.dtype)
    with torch.no_grad():
        merged.weight.copy_(weight)
        merged.bias.copy_(torch.cat([conv.bias for conv in convs]))
    return merged.requires_grad_(False)
