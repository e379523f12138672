# SPDX-License-Identifier: Apache-2.0
"""The bird's-eye-view network between pillars and heads: PointPillars (Lang et al., CVPR 2019),
after SECOND (Yan et al., Sensors 2018)."""

from typing import Final, List, Optional

import torch
from torch import Tensor, nn

from torchvox.models.detection.config import BackboneConfig, NeckConfig
from torchvox.nn.conv import ConvBlock, conv3x3, eager_on_gpu, for_onnx, fused_conv, resampling


class Backbone(nn.Module):
    """Blocks of 3x3 convolutions, each behind the last: a map [B, C, H, W] to one map per block."""

    def __init__(self, in_channels: int, config: BackboneConfig) -> None:
        super().__init__()
        blocks: List[nn.Module] = []
        channels = in_channels
        for count, stride, width in zip(
            config.layers, config.strides, config.channels, strict=True
        ):
            convs = [conv3x3(channels, width, stride)]
            convs += [conv3x3(width, width) for _ in range(count)]
            blocks.append(
                nn.Sequential(*(ConvBlock(c, config.eps, config.momentum) for c in convs))
            )
            channels = width
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> List[Tensor]:
        maps: List[Tensor] = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return maps


class Neck(nn.Module):
    """The maps of a backbone at one size, concatenated: [B, out_channels, H, W]."""

    def __init__(self, in_channels: List[int], config: NeckConfig) -> None:
        super().__init__()
        transposed = config.stride_one == "transposed"
        self.deblocks = nn.ModuleList(
            ConvBlock(
                resampling(channels, width, stride, transposed=transposed),
                config.eps,
                config.momentum,
            )
            for channels, width, stride in zip(
                in_channels, config.channels, config.strides, strict=True
            )
        )
        self.out_channels = sum(config.channels)

    def forward(self, maps: List[Tensor]) -> Tensor:
        same_size = [deblock(maps[i]) for i, deblock in enumerate(self.deblocks)]
        return same_size[0] if len(same_size) == 1 else torch.cat(same_size, 1)


class FusedNeck(nn.Module):
    """A `Neck` in evaluation with fused layers: every map is written once, at its place."""

    wide: Final[bool]

    def __init__(self, neck: Neck, dtype: Optional[torch.dtype]) -> None:
        super().__init__()
        self.deblocks = nn.ModuleList(fused_conv(deblock, dtype) for deblock in neck.deblocks)
        self.out_channels = neck.out_channels
        sizes = [d.norm.bias.numel() * self.deblocks[0].bias.element_size() for d in neck.deblocks]
        self.wide = all(size % 16 == 0 for size in sizes)

    def forward(self, maps: List[Tensor]) -> Tensor:
        if not torch.jit.is_scripting() and for_onnx():
            return self._for_onnx(maps)
        blocks = [deblock.blocks(maps[i]) for i, deblock in enumerate(self.deblocks)]
        one = blocks[0]
        batch, height, width = one.size(0), one.size(1) * one.size(2), one.size(3) * one.size(4)
        if not eager_on_gpu(one):
            rows = [b.reshape(batch, height, width, b.size(5)) for b in blocks]
            return torch.cat(rows, 3).permute(0, 3, 1, 2)
        out = torch.empty(
            [batch, height, width, self.out_channels], dtype=one.dtype, device=one.device
        )
        target = _wide(out) if self.wide else out
        first = 0
        for block in blocks:
            piece = _wide(block) if self.wide else block
            size = [piece.size(d) for d in range(5)]
            size.append(target.size(3))
            target.view(size).narrow(5, first, piece.size(5)).copy_(piece)
            first += piece.size(5)
        return out.permute(0, 3, 1, 2)

    @torch.jit.unused
    def _for_onnx(self, maps: List[Tensor]) -> Tensor:
        """The map without a transposition, which forward would need between layers in ONNX."""
        return torch.cat([deblock(maps[i]) for i, deblock in enumerate(self.deblocks)], 1)


def _wide(rows: Tensor) -> Tensor:
    """Sixteen bytes an element: a copy of halves moves two at a time, at half the speed."""
    if torch.jit.is_scripting():  # TorchScript does not know this view
        return rows
    else:  # what follows a return would be compiled, this branch is not
        return rows.view(torch.complex128)
