# SPDX-License-Identifier: Apache-2.0
"""What the adapters declare is what they have, with the peers' signatures; the page says it."""

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
    boxes_iou_bev_gpu(boxes_a, boxes_b, ans_iou, /)
    boxes_overlap_bev_gpu(boxes_a, boxes_b, ans_overlap, /)
    nms_gpu(boxes, keep, nms_overlap_thresh, /)
pcdet_ops.pointnet2_batch_cuda
    ball_query_wrapper(b, n, m, radius, nsample, new_xyz, xyz, idx, /)
    farthest_point_sampling_wrapper(b, n, m, xyz, temp, idx, /)
    gather_points_grad_wrapper(b, c, n, m, grad_out, idx, grad_points, /)
    gather_points_wrapper(b, c, n, m, points, idx, out, /)
    group_points_grad_wrapper(b, c, n, m, nsample, grad_out, idx, grad_points, /)
    group_points_wrapper(b, c, n, m, nsample, points, idx, out, /)
    three_interpolate_grad_wrapper(b, c, n, m, grad_out, idx, weight, grad_points, /)
    three_interpolate_wrapper(b, c, m, n, points, idx, weight, out, /)
    three_nn_wrapper(b, n, m, unknown, known, dist2, idx, /)
pcdet_ops.pointnet2_stack_cuda
    ball_query_wrapper(b, m, radius, nsample, new_xyz, new_cnt, xyz, cnt, idx, /)
    group_points_grad_wrapper(b, m, c, n, nsample, grad_out, idx, idx_cnt, cnt, grad_features, /)
    group_points_wrapper(b, m, c, nsample, features, cnt, idx, idx_cnt, out, /)
    stack_farthest_point_sampling_wrapper(xyz, temp, cnt, idx, npoint, /)
    three_interpolate_grad_wrapper(grad_out, idx, weight, grad_features, /)
    three_interpolate_wrapper(features, idx, weight, out, /)
    three_nn_wrapper(unknown, unknown_cnt, known, known_cnt, dist2, idx, /)
pcdet_ops.roiaware_pool3d_cuda
    backward(pts_idx_of_voxels, argmax, grad_out, grad_in, pool_method, /)
    forward(rois, pts, pts_feature, argmax, pts_idx_of_voxels, pooled_features, pool_method, /)
    points_in_boxes_cpu(boxes, pts, pts_indices, /)
    points_in_boxes_gpu(boxes, pts, box_idx_of_points, /)
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
"""
SHIMS = sorted({row.shim for row in table.every()})


def adapter(shim):
    return pytest.importorskip(f"torchvox.compat.{shim}", reason="an op is not built yet")


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
    assert part == f"\n{page.markdown()}", "run python -m torchvox.compat.page"
