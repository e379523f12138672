# SPDX-License-Identifier: Apache-2.0
"""The three-dimensional network between voxels and the bird's-eye view: SECOND (Yan et al., Sensors
2018), and with residual blocks CenterPoint's (Yin et al., CVPR 2021)."""

from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn

from torchvox.models.detection.config import SparseBackboneConfig
from torchvox.nn.conv import autocast_dtype
from torchvox.nn.sparse import SparseSequential, SparseTensor
from torchvox.nn.sparse_blocks import SparseResidualBlock, conv_norm_relu
from torchvox.nn.sparse_conv import SparseConv3d, SubMConv3d

Size = Tuple[int, int, int]


def strided_layers(config: SparseBackboneConfig) -> List[Tuple[Size, Size, Size]]:
    """Kernel, stride and padding of every convolution with a stride, in cells (z, y, x)."""
    last = len(config.channels) - 1
    down = [((3, 3, 3), (2, 2, 2), (int(i < last), 1, 1)) for i in range(1, last + 1)]
    return [*down, ((3, 1, 1), (2, 1, 1), (config.last_pad, 0, 0))]


def depth_after(config: SparseBackboneConfig, cells: int) -> int:
    """Planes that are left of so many cells along z. 0 or less: the grid is too low."""
    for kernel, stride, padding in strided_layers(config):
        cells = (cells + 2 * padding[0] - kernel[0]) // stride[0] + 1
    return cells


class FirstLayer(nn.Module):
    """A submanifold convolution, batch norm and ReLU, in float32 whatever the dtype of the others
    is: the features of voxels are meters."""

    def __init__(self, in_channels: int, channels: int, eps: float, momentum: float) -> None:
        super().__init__()
        conv = SubMConv3d(in_channels, channels, bias=False)
        self.layers = SparseSequential(*conv_norm_relu(conv, eps, momentum))

    def forward(self, x: SparseTensor) -> SparseTensor:
        if not torch.jit.is_scripting() and autocast_dtype(x.features) is not None:
            with torch.autocast(x.features.device.type, enabled=False):
                return self.layers(x)
        return self.layers(x)


class SparseBackbone(nn.Module):
    """The levels of a `SparseBackboneConfig`: a `SparseTensor` of voxels to one of fewer cells."""

    def __init__(self, in_channels: int, config: SparseBackboneConfig) -> None:
        super().__init__()
        width, norm = config.channels[0], {"eps": config.eps, "momentum": config.momentum}
        self.first = FirstLayer(in_channels, width, **norm)
        most = config.max_rows or (-1,) * len(config.channels)
        sizes_rows = list(zip(strided_layers(config), most, strict=True))
        levels: List[List[nn.Module]] = []
        for i, channels in enumerate((*config.channels, config.out_channels)):
            layers: List[nn.Module] = []
            if i > 0:
                sizes, rows = sizes_rows[i - 1]
                strided = SparseConv3d(
                    width, channels, *sizes, bias=False, max_rows=rows, per_sample=True
                )
                layers += conv_norm_relu(strided, **norm)
            for _ in range((*config.layers, 0)[i]):
                if config.block == "residual":
                    layers.append(SparseResidualBlock(channels, channels, bias=config.bias, **norm))
                else:
                    conv = SubMConv3d(channels, channels, bias=config.bias)
                    layers += conv_norm_relu(conv, **norm)
            levels.append(layers)
            width = channels
        self.levels = nn.ModuleList(SparseSequential(*layers) for layers in levels)

    def forward(self, x: SparseTensor) -> SparseTensor:
        x = self.first(x)
        for level in self.levels:
            x = level(x)
        return x


@torch.no_grad()
def measure_rows(model: nn.Module, clouds: Sequence[Tensor]) -> Tuple[int, List[int]]:
    """The most voxels that one of the clouds fills, and the most rows that it has behind each
    convolution with a stride: for `max_voxels` and `sparse.max_rows`, which drop what is past them.

    model: a detector on voxels; its caps do not count. clouds: [N, columns] each, on any device.
    Raises ValueError for another model and for no clouds.
    """
    sparse = getattr(getattr(model, "_config", None), "sparse", None)
    if sparse is None or not len(clouds):
        raise ValueError(
            "measure_rows: a detector on voxels and a cloud at least are needed, got "
            f"{type(model).__name__} and {len(clouds)} clouds"
        )
    found: List[List[int]] = []
    for points in clouds:
        everything = torch.full([1], len(points), dtype=torch.int32, device=points.device)
        seen, _ = model.packed(points[None], everything)
        indices, _, _, _, counts = torch.ops.torchvox.voxel_map(
            seen, model.voxel_size, model.point_cloud_range, -1, -1
        )
        rows, shape = [int(counts[0, 0])], list(model.spatial_shape)
        for kernel, stride, padding in strided_layers(sparse):
            indices, _, _, counts = torch.ops.torchvox.sparse_conv_map(
                indices[: rows[-1]], shape, 1, kernel, stride=stride, padding=padding
            )
            cells = zip(shape, kernel, stride, padding, strict=True)
            shape = [(n + 2 * p - k) // s + 1 for n, k, s, p in cells]
            rows.append(int(counts[0, 0]))
        found.append(rows)
    voxels, *levels = (max(one) for one in zip(*found, strict=True))
    return voxels, levels
