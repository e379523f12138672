# SPDX-License-Identifier: Apache-2.0
"""The voxel-grid filter for tables and files of any size; every attribute has a stated rule."""

from torchvox.filter.accumulator import VoxelAccumulator
from torchvox.filter.job import FilterJob, FilterOptions
from torchvox.filter.lattice import OutsideFrameError
from torchvox.filter.memory import ORIGINS, downsample
from torchvox.filter.policy import KEEP, RULES
from torchvox.filter.sizes import suggest_voxel_size, voxels_by_level

__all__ = [
    "KEEP",
    "ORIGINS",
    "RULES",
    "FilterJob",
    "FilterOptions",
    "OutsideFrameError",
    "VoxelAccumulator",
    "downsample",
    "suggest_voxel_size",
    "voxels_by_level",
]
