# SPDX-License-Identifier: Apache-2.0
"""Sparse U-Nets that label points: MinkUNet (Choy et al., CVPR 2019) and SpUNet (Pointcept)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from torchvox._util.errors import expect
from torchvox._util.values import AboveZero, Positive, Share, from_plain, plain
from torchvox.nn.sparse import SparseSequential, SparseTensor, sparse_tensor, with_features
from torchvox.nn.sparse_blocks import SparseResidualBlock, conv_norm_relu
from torchvox.nn.sparse_conv import SparseConv3d, SparseInverseConv3d, SubMConv3d
from torchvox.ops.voxel import grid_size


@dataclass(frozen=True)
class SparseUNet:
    """Sizes of a U-Net, each an argument of `MinkUNet`.

    stem: kernels of the convolutions on the voxels. channels: of the stem and of every level below,
        each of half the resolution; blocks: residual blocks of these levels.
    up_channels, up_blocks: of the levels on the way back, the lowest first.
    widen: strided convolutions change the channels, else the first block behind them does.
    eps, momentum: of the batch norms.
    """

    stem: Tuple[Positive, ...] = (3, 3)
    channels: Tuple[Positive, ...] = (32, 32, 64, 128, 256)
    blocks: Tuple[Positive, ...] = (2, 2, 2, 2)
    up_channels: Tuple[Positive, ...] = (256, 128, 96, 96)
    up_blocks: Tuple[Positive, ...] = (2, 2, 2, 2)
    widen: bool = False
    eps: AboveZero = 1e-5
    momentum: Share = 0.1

    def __post_init__(self) -> None:
        levels = len(self.channels) - 1
        lists = (self.blocks, self.up_channels, self.up_blocks)
        good = levels > 0 and all(len(one) == levels for one in lists) and len(self.stem) > 0
        rule = "blocks, up_channels and up_blocks must have a value for each of channels but one"
        expect(good, rule, [levels, *map(len, lists)])


PRESETS: Dict[str, Dict[str, Any]] = {  # of mmdetection3d and SPVNAS; of Pointcept
    "minkunet18": {},
    "minkunet34": {"blocks": (2, 3, 4, 6)},
    "spunet": dict(stem=(5,), blocks=(2, 3, 4, 6), widen=True, eps=1e-3, momentum=0.01),
}


class Up(nn.Module):
    """The way back over one level: an inverse convolution, the features of the finer level behind
    its own, residual blocks."""

    def __init__(self, up: SparseSequential, blocks: SparseSequential) -> None:
        super().__init__()
        self.up, self.blocks = up, blocks

    def forward(self, x: SparseTensor, finer: SparseTensor) -> SparseTensor:
        x = self.up(x)
        return self.blocks(with_features(x, torch.cat([x.features, finer.features], 1)))


class MinkUNet(nn.Module):
    """A sparse U-Net for semantic segmentation: points to the means of voxels, residual blocks of
    submanifold convolutions on five levels and back, the scores of its voxel for each point.

    num_classes: scores per point. in_channels: columns of the points, x, y and z first.
    voxel_size: (x, y, z) in meters. point_cloud_range: (x0, y0, z0, x1, y1, z1) in meters.
    preset: "minkunet18", "minkunet34" or "spunet". `changes` are fields of `SparseUNet` in its
        place.

    forward(points [B, N, in_channels] float32, lengths [B] int32 or int64, or None) returns
    [B, N, num_classes] float32; rows past a length, out of the range or with a column that is not
    finite are 0. The capacity of every level is B * N rows at most, so that nothing is dropped.
    Raises ValueError (points of another width, arguments).
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 4,
        voxel_size: Sequence[float],
        point_cloud_range: Sequence[float],
        preset: str = "minkunet18",
        **changes: Any,
    ) -> None:
        super().__init__()
        expect(preset in PRESETS, f"preset must be one of {', '.join(PRESETS)}", preset)
        expect(in_channels >= 3, "in_channels counts x, y and z too: at least 3", in_channels)
        net = from_plain(SparseUNet, {**PRESETS[preset], **changes})
        self.in_channels = int(in_channels)
        self.voxel_size = [float(v) for v in voxel_size]
        self.point_cloud_range = [float(v) for v in point_cloud_range]
        levels, norm = len(net.blocks), (net.eps, net.momentum)

        def residual_blocks(before: int, width: int, count: int) -> List[nn.Module]:
            widths = [before, *[width] * (count - 1)]
            return [SparseResidualBlock(w, width, eps=norm[0], momentum=norm[1]) for w in widths]

        # Every level halves the grid; a plane of cells beyond an even number would vanish.
        cells = grid_size(self.voxel_size, self.point_cloud_range)[::-1]
        self.spatial_shape = [-(-n // 2**levels) * 2**levels for n in cells]
        self.stem, before = SparseSequential(), in_channels
        for kernel in net.stem:
            conv = SubMConv3d(before, net.channels[0], kernel, bias=False)
            self.stem.extend(conv_norm_relu(conv, *norm))
            before = net.channels[0]
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        for i, (before, width) in enumerate(pairwise(net.channels)):
            strided = width if net.widen else before
            down = SparseConv3d(before, strided, 2, 2, bias=False, indice_key=f"down{i}")
            blocks = residual_blocks(strided, width, net.blocks[i])
            self.downs.append(SparseSequential(*conv_norm_relu(down, *norm), *blocks))
        before = net.channels[-1]
        for i, width in enumerate(net.up_channels):
            finer = levels - 1 - i
            up = SparseInverseConv3d(before, width, 2, f"down{finer}", bias=False)
            blocks = residual_blocks(width + net.channels[finer], width, net.up_blocks[i])
            layers = SparseSequential(*conv_norm_relu(up, *norm))
            self.ups.append(Up(layers, SparseSequential(*blocks)))
            before = width
        self.scores = SubMConv3d(before, num_classes, 1)
        self._config: Dict[str, Any] = {
            "num_classes": int(num_classes),
            "in_channels": self.in_channels,
            "voxel_size": self.voxel_size,
            "point_cloud_range": self.point_cloud_range,
            "preset": preset,
            **plain(changes),
        }

    def forward(self, points: Tensor, lengths: Optional[Tensor] = None) -> Tensor:
        if points.dim() != 3 or points.size(2) != self.in_channels:
            raise ValueError(f"points must be [B, N, {self.in_channels}], got {list(points.shape)}")
        batch, capacity = points.size(0), points.size(1)
        rows = points.flatten(0, 1)
        means, indices, _, voxel, counts = torch.ops.torchvox.voxelize(
            rows,
            self.voxel_size,
            self.point_cloud_range,
            -1,
            -1,
            batch_offsets=torch.arange(batch + 1, device=points.device) * capacity,
            num_valid=lengths,
            reduce="mean",
            finite="all",  # a feature that is not finite would spread
        )
        x = self.stem(sparse_tensor(means, indices, self.spatial_shape, batch, counts))
        levels: List[SparseTensor] = []
        for down in self.downs:
            levels.append(x)
            x = down(x)
        for up in self.ups:
            x = up(x, levels.pop())
        scores = self.scores(x).features.float()
        of_points = torch.ops.torchvox.gather_points(scores.unsqueeze(0), voxel.unsqueeze(0))
        return of_points.squeeze(0).unflatten(0, [batch, capacity])

    @torch.jit.unused
    def config(self) -> Dict[str, Any]:
        """Arguments that build the same model, plain types only."""
        return self._config
