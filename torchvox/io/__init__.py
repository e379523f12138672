# SPDX-License-Identifier: Apache-2.0
"""Read and write point clouds of every format, as tables or in float32; named voxel grids."""

from torchvox.io.cloud import PointCloud
from torchvox.io.grids import Grid, grid_around, grid_names, load_grid
from torchvox.io.layouts import LAYOUTS, parse_layout
from torchvox.io.maps import MapContents, read_map, write_map
from torchvox.io.octomap import read_graph, read_octomap, write_octomap
from torchvox.io.poses import Trajectory, read_extrinsic, read_poses
from torchvox.io.readers import SUFFIXES, cloud_stem, find_clouds, open_points, read_cloud
from torchvox.io.table import PointReader, PointTable, PointWriter
from torchvox.io.writers import atomic_path, create_points, write_cloud, write_npy, write_npz

__all__ = [
    "LAYOUTS",
    "SUFFIXES",
    "Grid",
    "MapContents",
    "PointCloud",
    "PointReader",
    "PointTable",
    "PointWriter",
    "Trajectory",
    "atomic_path",
    "cloud_stem",
    "create_points",
    "find_clouds",
    "grid_around",
    "grid_names",
    "load_grid",
    "open_points",
    "parse_layout",
    "read_cloud",
    "read_extrinsic",
    "read_graph",
    "read_map",
    "read_octomap",
    "read_poses",
    "write_cloud",
    "write_map",
    "write_npy",
    "write_npz",
    "write_octomap",
]
