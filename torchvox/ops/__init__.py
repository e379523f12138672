# SPDX-License-Identifier: Apache-2.0
"""Typed public functions over `torch.ops.torchvox.*`, re-exported as `torchvox.<name>`."""

from torchvox.ops.bev import (
    BEVHeight,
    BEVHeightWithIndex,
    BEVImage,
    bev_affine,
    bev_max_height,
    bev_max_height_with_index,
    bev_preset,
    bev_rasterize,
)
from torchvox.ops.sampling import (
    Samples,
    furthest_point_sample,
    furthest_point_sample_ragged,
    gather_points,
)
from torchvox.ops.voxel import VoxelCSR, voxel_csr, voxel_scatter

__all__ = [
    "BEVHeight",
    "BEVHeightWithIndex",
    "BEVImage",
    "Samples",
    "VoxelCSR",
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
    "bev_preset",
    "bev_rasterize",
    "furthest_point_sample",
    "furthest_point_sample_ragged",
    "gather_points",
    "voxel_csr",
    "voxel_scatter",
]
