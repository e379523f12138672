# SPDX-License-Identifier: Apache-2.0
"""Replaces `mmcv.ops` 2.2: sampling, neighbors, voxels, rotated boxes, sparse convolutions.

Names, signatures, layouts and dtypes are the peer's, results those of `convention="mmcv"`.
`voxelization`, `dynamic_scatter`, the nms functions and strided sparse layers read a count from the
device, as the peer's.
"""

import torch
from torch import nn

import torchvox
from torchvox.compat._errors import stubs
from torchvox.compat._mmcv_boxes import *
from torchvox.compat._mmcv_points import *
from torchvox.compat._mmcv_sparse import *
from torchvox.compat._shared import floats

__all__ = [
    "DynamicScatter", "GroupAll", "PointsSampler", "QueryAndGroup", "RoIAwarePool3d",
    "RoIPointPool3d", "SparseConv2d", "SparseConv3d", "SparseConvTensor", "SparseInverseConv2d",
    "SparseInverseConv3d", "SparseMaxPool2d", "SparseMaxPool3d", "SparseModule", "SparseSequential",
    "SubMConv2d", "SubMConv3d", "Voxelization", "ball_query", "batched_nms", "box_iou_rotated",
    "boxes_iou3d", "boxes_iou_bev", "boxes_overlap_bev", "chamfer_distance", "diff_iou_rotated_2d",
    "diff_iou_rotated_3d", "dynamic_scatter", "furthest_point_sample",
    "furthest_point_sample_with_dist", "gather_points", "get_sampler_cls", "grouping_operation",
    "knn", "nms", "nms3d", "nms3d_normal", "nms_bev", "nms_normal_bev", "nms_rotated",
    "points_in_boxes_all", "points_in_boxes_cpu", "points_in_boxes_part", "scatter_nd",
    "three_interpolate", "three_nn", "voxelization",
]  # fmt: skip
NOT_COVERED = """
BezierAlign BorderAlign CARAFE CARAFENaive CARAFEPack Conv2d ConvTranspose2d CornerPool Correlation
CrissCrossAttention DeformConv2d DeformConv2dPack DeformRoIPool DeformRoIPoolPack FusedBiasLeakyReLU
Linear MaskedConv2d MaxPool2d ModulatedDeformConv2d ModulatedDeformConv2dPack
ModulatedDeformRoIPoolPack MultiScaleDeformableAttention MultiScaleDeformableAttnFunction PSAMask
PrRoIPool RiRoIAlignRotated RoIAlign RoIAlignRotated RoIPool SAConv2d SigmoidFocalLoss
SimpleRoIAlign SoftmaxFocalLoss SparseConvTranspose2d SparseConvTranspose3d SyncBatchNorm TINShift
active_rotated_filter assign_score_withk bbox_overlaps bezier_align bias_act border_align
box_iou_quadri carafe carafe_naive contour_expand conv2d conv_transpose2d convex_giou convex_iou
deform_conv2d deform_roi_pool filter2d filtered_lrelu fused_bias_leakyrelu get_compiler_version
get_compiling_cuda_version masked_conv2d min_area_polygons modulated_deform_conv2d
multi_scale_deformable_attn_pytorch nms_match nms_quadri pixel_group point_sample points_in_polygons
prroi_pool rel_roi_point_to_rel_img_point riroi_align_rotated roi_align roi_align_rotated roi_pool
rotated_feature_align sigmoid_focal_loss soft_nms softmax_focal_loss tin_shift upfirdn2d upsample2d
"""
PARTLY = {
    "SparseConv2d SparseConv3d SubMConv2d SubMConv3d": (
        "groups other than 1; a kernel of over 125 cells"
    ),
    "SparseSequential": "fused()",
    "QueryAndGroup": "uniform_sample=True",
    "batched_nms": "type other than nms and nms_rotated; offset=1",
    "nms": "offset=1",
}
DIFFERS = {
    "SparseConv2d SparseConv3d": "Rows ascend; a map of another layer under the key is an error.",
    "SparseConvTensor": "Of rows with one cell the lowest counts; rows outside are skipped.",
    "SparseMaxPool2d SparseMaxPool3d": "Of equal values the first has the gradient.",
    "batched_nms": "Boxes are compared within their class instead of being moved apart.",
    "boxes_iou3d": "As boxes_overlap_bev, and the area has gradients too.",
    "boxes_overlap_bev": "Overlaps are exact: the peer counts a corner within 1 cm as inside.",
    "diff_iou_rotated_2d": "Identical boxes get the gradient 0.",
    "diff_iou_rotated_3d": "Identical boxes get the gradient 0.",
    "knn": "Among equal distances the lower index comes first; k may be 100 or more.",
    "nms": "Overlaps are computed from centers and sizes, which rounds differently.",
    "nms3d": "Overlaps are exact: the peer counts a corner within 1 cm as inside.",
    "nms_rotated": "labels are not read, as in the peer's kernels: pass them to batched_nms.",
    "three_nn": "Among equal distances the lower index comes first.",
    "voxelization": "deterministic=False is deterministic too.",
}
__getattr__ = stubs("mmcv.ops", NOT_COVERED)
on_install = register_layers


def voxelization(
    points, voxel_size, coors_range, max_points=35, max_voxels=20000, deterministic=True
):
    """(voxels [M, max_points, C], coors [M, 3] int32 z y x, numbers of points [M]); if a limit is
    -1, coors [N, 3] of every point, -1 outside."""
    size, bounds = floats(voxel_size), floats(coors_range)
    if max_points == -1 or max_voxels == -1:
        cells = torchvox.voxel_map(points, size, bounds, -1, -1)
        row = cells.point_voxel.long()  # -1 outside: the last row, which is unused then
        return cells.indices[row, 1:]
    voxels = torchvox.voxelize(points, size, bounds, max_points, max_voxels, trim=True)
    return voxels.features, voxels.indices[:, 1:].contiguous(), voxels.num_points


class Voxelization(nn.Module):
    """`voxelization` with its limits; max_voxels may be (training, evaluation)."""

    def __init__(
        self, voxel_size, point_cloud_range, max_num_points, max_voxels=20000, deterministic=True
    ):
        super().__init__()
        self.voxel_size, self.point_cloud_range = voxel_size, point_cloud_range
        self.max_num_points, self.deterministic = max_num_points, deterministic
        self.max_voxels = (max_voxels,) * 2 if isinstance(max_voxels, int) else tuple(max_voxels)
        bounds = torch.tensor(point_cloud_range, dtype=torch.float32)
        size = torch.tensor(voxel_size, dtype=torch.float32)
        self.grid_size = torch.round((bounds[3:] - bounds[:3]) / size).long()
        self.pcd_shape = [*self.grid_size[:2], 1][::-1]

    def forward(self, input):
        limits = (self.max_num_points, self.max_voxels[0 if self.training else 1])
        return voxelization(input, self.voxel_size, self.point_cloud_range, *limits)


def dynamic_scatter(feats, coors, reduce_type="max"):
    """([M, C], [M, D]): features reduced over equal rows of coors, by ascending coordinate; points
    with a negative coordinate are skipped. reduce_type: max, mean or sum."""
    cells = torchvox.unique_cells(coors, order="sorted", trim=True)
    rows = cells.indices.size(0)
    grouping = {"offsets": cells.offsets[: rows + 1], "perm": cells.perm}
    reduced, _ = torchvox.voxel_scatter(feats, cells.point_voxel, rows, reduce_type, **grouping)
    return reduced, cells.indices


class DynamicScatter(nn.Module):
    """`dynamic_scatter` with mean or max; coors of 4 columns begin with the sample."""

    def __init__(self, voxel_size, point_cloud_range, average_points):
        super().__init__()
        self.voxel_size, self.point_cloud_range = voxel_size, point_cloud_range
        self.average_points = average_points

    def forward(self, points, coors):
        return dynamic_scatter(points, coors, "mean" if self.average_points else "max")
