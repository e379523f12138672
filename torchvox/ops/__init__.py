# SPDX-License-Identifier: Apache-2.0
"""Typed public functions over `torch.ops.torchvox.*`, re-exported as `torchvox.<name>`."""

from torch.utils import _pytree

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
from torchvox.ops.boxes import Kept, points_in_boxes, rotated_iou, rotated_nms
from torchvox.ops.detection import Detections, anchor_decode_nms, box_decode, center_decode_nms
from torchvox.ops.grouping import (
    gather_points,
    group_points,
    group_points_ragged,
    interpolate_features,
    interpolation_weights,
    neighbor_rows,
    three_interpolate,
    three_interpolate_ragged,
)
from torchvox.ops.neighbors import (
    BallGroups,
    BallNeighbors,
    Neighbors,
    ball_query,
    ball_query_ragged,
    group_mlp_max,
    knn,
    knn_ragged,
    query_and_group,
    three_nn,
    three_nn_ragged,
)
from torchvox.ops.pillars import (
    PillarNorm,
    pillar_encode,
    pillar_moments,
    pillar_norm,
    pillar_scatter,
)
from torchvox.ops.sampling import (
    Samples,
    furthest_point_sample,
    furthest_point_sample_ragged,
)
from torchvox.ops.voxel import (
    VoxelCSR,
    VoxelMap,
    Voxels,
    grid_size,
    trim_voxels,
    voxel_csr,
    voxel_map,
    voxel_scatter,
    voxelize,
)

for _result in (
    BEVHeight,
    BEVHeightWithIndex,
    BEVImage,
    Neighbors,
    BallGroups,
    BallNeighbors,
    PillarNorm,
    Detections,
    Kept,
    Samples,
    VoxelCSR,
    VoxelMap,
    Voxels,
):
    # torch.export.save writes the type of a program's result by this name.
    _pytree._register_namedtuple(_result, serialized_type_name=f"torchvox.{_result.__name__}")

__all__ = [
    "BEVHeight",
    "BEVHeightWithIndex",
    "BEVImage",
    "BallGroups",
    "BallNeighbors",
    "Detections",
    "Kept",
    "Neighbors",
    "PillarNorm",
    "Samples",
    "VoxelCSR",
    "VoxelMap",
    "Voxels",
    "anchor_decode_nms",
    "ball_query",
    "ball_query_ragged",
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
    "bev_preset",
    "bev_rasterize",
    "box_decode",
    "center_decode_nms",
    "furthest_point_sample",
    "furthest_point_sample_ragged",
    "gather_points",
    "grid_size",
    "group_mlp_max",
    "group_points",
    "group_points_ragged",
    "interpolate_features",
    "interpolation_weights",
    "knn",
    "knn_ragged",
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
    "three_interpolate_ragged",
    "three_nn",
    "three_nn_ragged",
    "trim_voxels",
    "voxel_csr",
    "voxel_map",
    "voxel_scatter",
    "voxelize",
]
