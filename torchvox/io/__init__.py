# SPDX-License-Identifier: Apache-2.0
"""Read and write point clouds: .bin, .npy, .npz, .pcd, .las, .laz; named voxel grids."""

from torchvox.io.cloud import PointCloud
from torchvox.io.grids import Grid, grid_around, grid_names, load_grid
from torchvox.io.layouts import LAYOUTS, parse_layout
from torchvox.io.readers import SUFFIXES, cloud_stem, find_clouds, read_cloud
from torchvox.io.writers import atomic_path, write_cloud, write_npy, write_npz

__all__ = [
    "LAYOUTS",
    "SUFFIXES",
    "Grid",
    "PointCloud",
    "atomic_path",
    "cloud_stem",
    "find_clouds",
    "grid_around",
    "grid_names",
    "load_grid",
    "parse_layout",
    "read_cloud",
    "write_cloud",
    "write_npy",
    "write_npz",
]
