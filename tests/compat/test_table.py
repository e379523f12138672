# SPDX-License-Identifier: Apache-2.0
"""What the adapters declare is what they have, with the peers' signatures, and is on the page. Other
compiled functions declare their signatures themselves."""
# ruff: noqa: E501

import importlib
import inspect
import re

import pytest
from helpers import ROOT

from torchvox.compat import NotCoveredError, page, table

SIGNATURES = """
pointnet2_ops._ext
    ball_query(new_xyz, xyz, radius, nsample)
    furthest_point_sampling(points, nsamples)
    gather_points_grad(grad_out, idx, n)
    group_points_grad(grad_out, idx, n)
    three_interpolate(points, idx, weight)
    three_interpolate_grad(grad_out, idx, weight, m)
    three_nn(unknown, known)
pointnet2_ops.pointnet2_utils
    ball_query(radius, nsample, xyz, new_xyz)
    furthest_point_sample(xyz, npoint)
    gather_operation(features, idx)
    grouping_operation(features, idx)
    three_interpolate(features, idx, weight)
    three_nn(unknown, known)
    GroupAll(use_xyz=True)
    GroupAll.forward(self, xyz, new_xyz, features=None)
    QueryAndGroup(radius, nsample, use_xyz=True)
    QueryAndGroup.forward(self, xyz, new_xyz, features=None)
pointnet2_ops.pointnet2_modules
    PointnetFPModule(mlp, bn=True)
    PointnetFPModule.forward(self, unknown, known, unknow_feats, known_feats)
    PointnetSAModule(mlp, npoint=None, radius=None, nsample=None, bn=True, use_xyz=True)
    PointnetSAModule.forward(self, xyz, features)
    PointnetSAModuleMSG(npoint, radii, nsamples, mlps, bn=True, use_xyz=True)
    build_shared_mlp(mlp_spec, bn=True)
pcdet_ops.iou3d_nms_cuda
    nms_gpu(boxes, keep, nms_overlap_thresh, /)
pcdet_ops.pointnet2_batch_cuda
    group_points_grad_wrapper(b, c, n, m, nsample, grad_out, idx, grad_points, /)
pcdet_ops.pointnet2_stack_cuda
    stack_farthest_point_sampling_wrapper(xyz, temp, cnt, idx, npoint, /)
    three_interpolate_grad_wrapper(grad_out, idx, weight, grad_features, /)
pcdet_ops.roiaware_pool3d_cuda
    backward(pts_idx_of_voxels, argmax, grad_out, grad_in, pool_method, /)
    forward(rois, pts, pts_feature, argmax, pts_idx_of_voxels, pooled_features, pool_method, /)
pcdet_ops.roipoint_pool3d_cuda
    forward(xyz, boxes3d, pts_feature, pooled_features, pooled_empty_flag, /)
pcdet_ops.iou3d_nms_utils
    boxes_aligned_iou3d_gpu(boxes_a, boxes_b)
    boxes_bev_iou_cpu(boxes_a, boxes_b)
    boxes_iou3d_gpu(boxes_a, boxes_b)
    boxes_iou_bev(boxes_a, boxes_b)
    nms_gpu(boxes, scores, thresh, pre_maxsize=None, **kwargs)
    nms_normal_gpu(boxes, scores, thresh, **kwargs)
pcdet_ops.roiaware_pool3d_utils
    RoIAwarePool3d(out_size, max_pts_each_voxel=128)
    RoIAwarePool3d.forward(self, rois, pts, pts_feature, pool_method='max')
    points_in_boxes_cpu(points, boxes)
    points_in_boxes_gpu(points, boxes)
pcdet_ops.pointnet2_batch_utils
    farthest_point_sample(xyz, npoint)
pcdet_ops.pointnet2_stack_utils
    QueryAndGroup.forward(self, xyz, xyz_batch_cnt, new_xyz, new_xyz_batch_cnt, features=None)
    ball_query(radius, nsample, xyz, xyz_batch_cnt, new_xyz, new_xyz_batch_cnt)
    grouping_operation(features, features_batch_cnt, idx, idx_batch_cnt)
    stack_farthest_point_sample(xyz, xyz_batch_cnt, npoint)
    three_interpolate(features, idx, weight)
    three_nn(unknown, unknown_batch_cnt, known, known_batch_cnt)
pointnet2_plain
    farthest_point_sample(xyz, npoint)
    index_points(points, idx)
    query_ball_point(radius, nsample, xyz, new_xyz)
    sample_and_group(npoint, radius, nsample, xyz, points, returnfps=False)
    sample_and_group_all(xyz, points)
    square_distance(src, dst)
mmcv_ops
    DynamicScatter(voxel_size, point_cloud_range, average_points)
    GroupAll(use_xyz=True)
    PointsSampler(num_point, fps_mod_list=['D-FPS'], fps_sample_range_list=[-1])
    QueryAndGroup(max_radius, sample_num, min_radius=0.0, use_xyz=True, return_grouped_xyz=False, normalize_xyz=False, uniform_sample=False, return_unique_cnt=False, return_grouped_idx=False)
    RoIAwarePool3d(out_size, max_pts_per_voxel=128, mode='max')
    RoIPointPool3d(num_sampled_points=512)
    Voxelization(voxel_size, point_cloud_range, max_num_points, max_voxels=20000, deterministic=True)
    ball_query(min_radius, max_radius, sample_num, xyz, center_xyz, xyz_batch_cnt=None, center_xyz_batch_cnt=None)
    batched_nms(boxes, scores, idxs, nms_cfg, class_agnostic=False)
    box_iou_rotated(bboxes1, bboxes2, mode='iou', aligned=False, clockwise=True)
    boxes_iou3d(boxes_a, boxes_b)
    boxes_iou_bev(boxes_a, boxes_b)
    boxes_overlap_bev(boxes_a, boxes_b)
    chamfer_distance(xyz1, xyz2)
    diff_iou_rotated_2d(box1, box2)
    diff_iou_rotated_3d(box3d1, box3d2)
    dynamic_scatter(feats, coors, reduce_type='max')
    furthest_point_sample(points_xyz, num_points)
    furthest_point_sample_with_dist(points_dist, num_points)
    gather_points(features, idx)
    get_sampler_cls(sampler_type)
    grouping_operation(features, indices, features_batch_cnt=None, indices_batch_cnt=None)
    knn(k, xyz, center_xyz=None, transposed=False)
    nms(boxes, scores, iou_threshold, offset=0, score_threshold=0, max_num=-1)
    nms3d(boxes, scores, iou_threshold)
    nms3d_normal(boxes, scores, iou_threshold)
    nms_bev(boxes, scores, thresh, pre_max_size=None, post_max_size=None)
    nms_normal_bev(boxes, scores, thresh)
    nms_rotated(dets, scores, iou_threshold, labels=None, clockwise=True)
    points_in_boxes_all(points, boxes)
    points_in_boxes_cpu(points, boxes)
    points_in_boxes_part(points, boxes)
    three_interpolate(features, idx, weight)
    three_nn(unknown, known)
    voxelization(points, voxel_size, coors_range, max_points=35, max_voxels=20000, deterministic=True)
spconv_utils
    Point2VoxelCPU3d(vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel)
    Point2VoxelGPU3d(vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel)
    PointToVoxel(vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel, device=device(type='cpu', index=0))
    VoxelGenerator(voxel_size, point_cloud_range, max_num_points, max_voxels=20000, full_mean=True)
    VoxelGeneratorV2(voxel_size, point_cloud_range, max_num_points, max_voxels=20000, full_mean=False, block_filtering=False, block_factor=8, block_size=3, height_threshold=0.1, height_high_threshold=2.0)
    gather_features_by_pc_voxel_id(seg_res_features, pc_voxel_id, invalid_value=0)
pointops
    aggregation(input, position, weight, idx)
    batch2offset(batch)
    farthest_point_sampling(xyz, offset, new_offset)
    grouping(idx, feat, xyz, new_xyz=None, with_xyz=False)
    grouping2(input, idx)
    interpolation(xyz, new_xyz, feat, offset, new_offset, k=3)
    interpolation2(xyz, new_xyz, feat, offset, new_offset, k=3)
    knn_query(nsample, xyz, offset, new_xyz=None, new_offset=None)
    knn_query_and_group(feat, xyz, offset=None, new_xyz=None, new_offset=None, idx=None, nsample=None, with_xyz=False)
    offset2batch(offset)
    query_and_group(nsample, xyz, new_xyz, feat, idx, offset, new_offset, dilation=0, with_feat=True, with_xyz=True)
    subtraction(input1, input2, idx)
pytorch3d_ops
    _KNN(dists, idx, knn)
    ball_query(p1, p2, lengths1=None, lengths2=None, K=500, radius=0.2, return_nn=True, skip_points_outside_cube=False)
    knn_gather(x, idx, lengths=None)
    knn_points(p1, p2, lengths1=None, lengths2=None, norm=2, K=1, version=-1, return_nn=False, return_sorted=True)
    masked_gather(points, idx)
    sample_farthest_points(points, lengths=None, K=50, random_start_point=False)
pytorch3d_c
    ball_query(p1, p2, lengths1, lengths2, K, radius, skip_points_outside_cube=False)
    knn_points_backward(p1, p2, lengths1, lengths2, idxs, norm, grad_dists)
    knn_points_idx(p1, p2, lengths1, lengths2, norm, K, version)
    sample_farthest_points(points, lengths, K, start_idxs, max_K=-1)
torch_cluster
    fps(src, batch=None, ratio=None, random_start=True, batch_size=None, ptr=None)
    grid_cluster(pos, size, start=None, end=None)
    knn(x, y, k, batch_x=None, batch_y=None, cosine=False, num_workers=1, batch_size=None)
    knn_graph(x, k, batch=None, loop=False, flow='source_to_target', cosine=False, num_workers=1, batch_size=None)
    nearest(x, y, batch_x=None, batch_y=None)
    radius(x, y, r, batch_x=None, batch_y=None, max_num_neighbors=32, num_workers=1, batch_size=None, ignore_same_index=False)
    radius_graph(x, r, batch=None, loop=False, max_num_neighbors=32, flow='source_to_target', num_workers=1, batch_size=None)
pyg_lib_ops
    fps(src, ptr, ratio=0.5, random_start=True)
    grid_cluster(pos, size, start=None, end=None)
    knn(x, y, k=1, ptr_x=None, ptr_y=None, cosine=False, num_workers=1)
    knn_graph(x, k, ptr=None, loop=False, flow='source_to_target', cosine=False, num_workers=1)
    nearest(x, y, ptr_x=None, ptr_y=None)
    radius(x, y, r=1.0, ptr_x=None, ptr_y=None, max_num_neighbors=32, num_workers=1, ignore_same_index=False)
    radius_graph(x, r, ptr=None, loop=False, max_num_neighbors=32, flow='source_to_target', num_workers=1)
"""
SHIMS = sorted({row.shim for row in table.every()})


def adapter(shim):
    return importlib.import_module(f"torchvox.compat.{shim}")


def signature(thing) -> str:
    found = inspect.signature(thing)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(inspect.Signature(plain))


def blocks():
    for block in re.split(r"\n(?=\S)", SIGNATURES.strip()):
        shim, *lines = block.splitlines()
        yield shim, [line.strip() for line in lines]


@pytest.mark.parametrize(("shim", "lines"), list(blocks()), ids=[shim for shim, _ in blocks()])
def test_signatures_are_the_peers(shim, lines):
    module = adapter(shim)
    listed = {line.partition("(")[0] for line in lines}
    covered = {name for name in table.literals(shim).covered if callable(getattr(module, name))}
    assert "." in shim or covered <= listed  # aliases are in packages alone
    for line in lines:
        name = line.partition("(")[0]
        thing = module
        for part in name.split("."):
            thing = getattr(thing, part)
        assert name + signature(thing) == line


@pytest.mark.parametrize("shim", SHIMS)
def test_what_an_adapter_declares_is_there(shim):
    module, facts = adapter(shim), table.literals(shim)
    for name in facts.covered:
        assert hasattr(module, name) and not name.startswith("__"), name
    assert not set(facts.covered) & set(facts.not_covered)
    assert {*facts.partly, *facts.differs} <= set(facts.covered)
    for name in facts.not_covered if hasattr(module, "__getattr__") else ():
        with pytest.raises(NotCoveredError, match=r"docs/switching\.md"):
            getattr(module, name)()


def test_the_page_has_the_names_of_the_table():
    text = (ROOT / "docs" / "switching.md").read_text()
    part = text.partition(page.BEGIN)[2].partition(page.END)[0]
    assert part == f"\n{page.markdown()}\n", "run python -m torchvox.compat.page"
