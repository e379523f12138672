# SPDX-License-Identifier: Apache-2.0
"""Read and write point clouds of every format, as tables or in float32; named voxel grids."""

import importlib
from typing import TYPE_CHECKING, Any

from torchvox.io.cloud import PointCloud
from torchvox.io.grids import Grid, grid_around, grid_names, load_grid
from torchvox.io.layouts import LAYOUTS, parse_layout
from torchvox.io.paths import cloud_stem
from torchvox.io.poses import Trajectory, read_extrinsic, read_poses, read_times
from torchvox.io.readers import SUFFIXES, find_clouds, open_points, read_cloud
from torchvox.io.recording import Recording, Scan, is_recording, open_recording
from torchvox.io.table import PointReader, PointTable, PointWriter
from torchvox.io.writers import atomic_path, create_points, write_cloud, write_npy, write_npz

if TYPE_CHECKING:
    from torchvox.mapping.contents import MapContents, read_map, write_map
    from torchvox.mapping.octomap import read_graph, read_octomap, write_octomap

__all__ = ["LAYOUTS", "SUFFIXES", "Grid", "MapContents", "PointCloud", "PointReader", "PointTable"]
__all__ += ["PointWriter", "Recording", "Scan", "Trajectory", "atomic_path", "cloud_stem"]
__all__ += ["create_points", "find_clouds", "grid_around", "grid_names", "is_recording"]
__all__ += ["load_grid", "open_points", "open_recording", "parse_layout"]
__all__ += ["read_cloud", "read_extrinsic", "read_graph", "read_map", "read_octomap", "read_poses"]
__all__ += ["read_times", "write_cloud", "write_map", "write_npy", "write_npz", "write_octomap"]


def __getattr__(name: str) -> Any:
    """Files of maps are in torchvox.mapping, which imports this package."""
    if name in __all__:
        return getattr(importlib.import_module("torchvox.mapping"), name)
    raise AttributeError(f"module 'torchvox.io' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
