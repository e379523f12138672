# SPDX-License-Identifier: Apache-2.0
"""The voxel-grid filter for clouds and files."""

from torchvox.filter.sizes import suggest_voxel_size, voxels_by_level

__all__ = ["suggest_voxel_size", "voxels_by_level"]
