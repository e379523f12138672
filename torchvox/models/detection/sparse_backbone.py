# SPDX-License-Identifier: Apache-2.0
"""Voxels and the sparse convolutions behind them: SECOND (Yan et al., Sensors 2018), with residual
blocks CenterPoint (Yin et al., CVPR 2021), with joined levels VoxelNeXt (Chen et al., CVPR 2023).
"""

from typing import List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from torchvox.models.detection.config import (
    JoinedLevelsConfig,
    SparseBackboneConfig,
    VoxelConfig,
    VoxelNeXtConfig,
)
from torchvox.nn.conv import autocast_dtype
from torchvox.nn.sparse import SparseSequential, SparseTensor, sparse_tensor
from torchvox.nn.sparse_blocks import SparseResidualBlock, conv_norm_relu
from torchvox.nn.sparse_conv import SparseConv2d, SparseConv3d, SubMConv3d

Size = Tuple[int, int, int]
LevelsConfig = Union[SparseBackboneConfig, JoinedLevelsConfig]


def strided_layers(config: LevelsConfig) -> List[Tuple[Size, Size, Size]]:
    """Kernel, stride and padding of every convolution that makes rows, in cells (z, y, x)."""
    last = len(config.channels) - 1
    if isinstance(config, JoinedLevelsConfig):
        return [((3, 3, 3), (2, 2, 2), (1, 1, 1))] * last + [((1, 3, 3), (1, 1, 1), (0, 1, 1))]
    down = [((3, 3, 3), (2, 2, 2), (int(i < last), 1, 1)) for i in range(1, last + 1)]
    return [*down, ((3, 1, 1), (2, 1, 1), (config.last_pad, 0, 0))]


def depth_after(config: SparseBackboneConfig, cells: int) -> int:
    """Planes that are left of so many cells along z. 0 or less: the grid is too low."""
    for kernel, stride, padding in strided_layers(config):
        cells = (cells + 2 * padding[0] - kernel[0]) // stride[0] + 1
    return cells


class MeanVoxels(nn.Module):
    """Packed points to voxels with the mean of their points, as a `SparseTensor`."""

    def __init__(self, config: Union[VoxelConfig, VoxelNeXtConfig]) -> None:
        super().__init__()
        self.voxel_size: List[float] = list(config.voxel_size)
        self.point_cloud_range: List[float] = list(config.point_cloud_range)
        self.max_points, self.order = config.max_points, config.order
        self.max_voxels_train, self.max_voxels_eval = config.max_voxels
        nx, ny, nz = torch.ops.torchvox.grid_size(self.voxel_size, self.point_cloud_range)
        self.spatial_shape: List[int] = [nz + 1, ny, nx]  # a plane more: as networks are trained

    def forward(
        self, points: Tensor, batch: int, batch_offsets: Optional[Tensor], num_points: Tensor
    ) -> SparseTensor:
        features, indices, _, _, counts = torch.ops.torchvox.voxelize(
            points,
            self.voxel_size,
            self.point_cloud_range,
            self.max_points,
            self.max_voxels_train if self.training else self.max_voxels_eval,
            batch_offsets=batch_offsets,
            num_valid=num_points,
            reduce="mean",
            order=self.order,
            finite="all",
        )
        return sparse_tensor(features, indices, self.spatial_shape, batch, counts)


def joined(levels: List[SparseTensor]) -> SparseTensor:
    """One plane of the cells of the first level from rows of levels that each have half of the
    cells of the one before. Rows that meet are added, in the order of levels and rows."""
    first = levels[0]
    places: List[Tensor] = []
    for i, x in enumerate(levels):
        places.append(torch.cat([x.indices[:, :1], x.indices[:, 2:] * (1 << i)], 1))
    # Rows that are not in use are -1 and dropped. 21 bits of each column make one key.
    cells, _, _, offsets, perm, counts = torch.ops.torchvox.unique_cells(
        torch.cat(places), 21, "sorted"
    )
    features, _ = torch.ops.torchvox.segment_reduce(
        torch.cat([x.features for x in levels]), offsets, "sum", index=perm
    )
    indices = torch.cat([cells[:, :1], torch.zeros_like(cells[:, :1]), cells[:, 1:]], 1)
    height, width = first.spatial_shape[1], first.spatial_shape[2]
    return sparse_tensor(features, indices, [1, height, width], first.batch_size, counts)


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
    """The levels of a configuration: a `SparseTensor` of voxels to one of fewer cells."""

    def __init__(self, in_channels: int, config: LevelsConfig) -> None:
        super().__init__()
        width, norm = config.channels[0], {"eps": config.eps, "momentum": config.momentum}
        self.first = FirstLayer(in_channels, width, **norm)
        most = config.max_rows or (-1,) * len(config.channels)
        sizes_rows = list(zip(strided_layers(config), most, strict=True))
        last = len(config.channels)
        self.plane_at, self.joined_from = -1, last
        if isinstance(config, JoinedLevelsConfig):
            self.plane_at, self.joined_from = last, last - config.joined
        levels: List[List[nn.Module]] = []
        for i, channels in enumerate((*config.channels, config.out_channels)):
            layers: List[nn.Module] = []
            if i > 0:
                sizes, rows = sizes_rows[i - 1]
                kind = SparseConv2d if i == self.plane_at else SparseConv3d
                own = [size[3 - kind.axes :] for size in sizes]
                strided = kind(width, channels, *own, bias=False, max_rows=rows, per_sample=True)
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
        kept: List[SparseTensor] = []
        for i, level in enumerate(self.levels):
            if i == self.plane_at:
                x = joined(kept)
            x = level(x)
            if i >= self.joined_from:
                kept.append(x)
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
    plane_at = len(sparse.channels) if isinstance(sparse, JoinedLevelsConfig) else -1
    layers = [SparseConv3d(1, 1, *sizes) for sizes in strided_layers(sparse)]
    found: List[List[int]] = []
    for points in clouds:
        everything = torch.full([1], len(points), dtype=torch.int32, device=points.device)
        seen, _ = model.packed(points[None], everything)
        indices, _, _, _, counts = torch.ops.torchvox.voxel_map(
            seen, model.voxels.voxel_size, model.voxels.point_cloud_range, -1, -1, finite="all"
        )
        levels = [_in_use(indices, counts, model.voxels.spatial_shape)]
        for layer in layers:
            x = levels[-1]
            if len(levels) == plane_at:
                x = joined(levels[-sparse.joined :])
            x, _, _ = layer.strided_rows(x)
            levels.append(_in_use(x.indices, x.num_valid, x.spatial_shape))
        found.append([len(x.indices) for x in levels])
    voxels, *rows = (max(one) for one in zip(*found, strict=True))
    return voxels, rows


def _in_use(indices: Tensor, counts: Tensor, spatial_shape: List[int]) -> SparseTensor:
    """Rows without capacity past them, with one feature."""
    rows = indices[: int(counts[0, 0])]
    return sparse_tensor(rows[:, :1].float(), rows, spatial_shape, 1)
