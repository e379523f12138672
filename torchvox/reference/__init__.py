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
from torchvox.reference.boxes import points_in_boxes, rotated_iou, rotated_nms
from torchvox.reference.detection import anchor_decode_nms, box_decode, center_decode_nms
from torchvox.reference.grouping import (
    gather_points,
    gather_points_backward,
    group_points,
    group_points_ragged,
    interpolate_features,
    interpolation_weights,
    interpolation_weights_backward,
    neighbor_distance_backward,
    neighbor_rows,
    three_interpolate,
    three_interpolate_backward,
    three_interpolate_ragged,
)
from torchvox.reference.neighbors import ball_query, ball_query_ragged, query_and_group
from torchvox.reference.neighbors_group_mlp import group_mlp_max
from torchvox.reference.neighbors_knn import knn, knn_ragged, three_nn, three_nn_ragged
from torchvox.reference.pillars import (
    pillar_encode,
    pillar_moments,
    pillar_norm,
    pillar_scatter,
)
from torchvox.reference.sampling import (
    furthest_point_sample,
    furthest_point_sample_ragged,
)
from torchvox.reference.voxel import voxel_map, voxelize, voxelize_backward
from torchvox.reference.voxel_grid import grid_size
from torchvox.reference.voxel_scatter import voxel_csr, voxel_scatter, voxel_scatter_backward

__all__ = [
    "anchor_decode_nms",
    "ball_query",
    "ball_query_ragged",
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
    "bev_rasterize",
    "bev_rasterize_backward",
    "box_decode",
    "center_decode_nms",
    "furthest_point_sample",
    "furthest_point_sample_ragged",
    "gather_points",
    "gather_points_backward",
    "grid_size",
    "group_mlp_max",
    "group_points",
    "group_points_ragged",
    "interpolate_features",
    "interpolation_weights",
    "interpolation_weights_backward",
    "knn",
    "knn_ragged",
    "neighbor_distance_backward",
    "neighbor_rows",
    "pillar_encode",
    "pillar_moments",
    "pillar_norm",
    "pillar_scatter",
    "points_in_boxes",
    "query_and_group",
    "rotated_iou",
    "rotated_nms",
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
