# SPDX-License-Identifier: Apache-2.0
"""Slow, independent definitions of the ops: plain Python and NumPy on CPU tensors.

Each function takes the arguments of the registered op of the same name and returns the same
tuple of tensors, bit for bit. Nothing here is shared with the C++ and CUDA code; when the two
disagree, one of them is wrong.
"""

from torchvox.reference.bev import (
    bev_affine,
    bev_max_height,
    bev_max_height_with_index,
    bev_rasterize,
    bev_rasterize_backward,
)
from torchvox.reference.grouping import (
    group_points,
    group_points_ragged,
    interpolation_weights,
    neighbour_distance_backward,
    neighbour_rows,
    three_interpolate,
    three_interpolate_backward,
    three_interpolate_ragged,
)
from torchvox.reference.nearest import knn, knn_ragged, three_nn, three_nn_ragged
from torchvox.reference.sampling import (
    furthest_point_sample,
    furthest_point_sample_ragged,
    gather_points,
    gather_points_backward,
)
from torchvox.reference.voxel import voxel_map, voxelize, voxelize_backward
from torchvox.reference.voxel_grid import grid_size
from torchvox.reference.voxel_scatter import voxel_csr, voxel_scatter, voxel_scatter_backward

__all__ = [
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
    "bev_rasterize",
    "bev_rasterize_backward",
    "furthest_point_sample",
    "furthest_point_sample_ragged",
    "gather_points",
    "gather_points_backward",
    "grid_size",
    "group_points",
    "group_points_ragged",
    "interpolation_weights",
    "knn",
    "knn_ragged",
    "neighbour_distance_backward",
    "neighbour_rows",
    "three_interpolate",
    "three_interpolate_backward",
    "three_interpolate_ragged",
    "three_nn",
    "three_nn_ragged",
    "voxel_csr",
    "voxel_map",
    "voxel_scatter",
    "voxel_scatter_backward",
    "voxelize",
    "voxelize_backward",
]
