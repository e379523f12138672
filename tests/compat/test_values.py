# SPDX-License-Identifier: Apache-2.0
"""What each adapter returns, and its gradients: an expression in torch and torchvox's own ops. That
`convention="mmcv"` is what mmcv computes, the tests of the ops prove."""
# ruff: noqa: E501

import functools
import importlib

import numpy as np
import pytest
import torch

from tests.compat import inputs

# A module, then its calls, each with the expression that it equals. The words are those of words().
CALLS = {
    "mmcv_ops": """
furthest_point_sample(p, 7) == fps(p, 7, "mmcv")
furthest_point_sample_with_dist(square(p, p), 7) == fps(p, 7, "mmcv")
PointsSampler([5, 3], ["D-FPS", "D-FPS"], [30, -1])(p, f) == torch.cat([fps(p[:, :30], 5, "mmcv"), 30 + fps(p[:, 30:], 3, "mmcv")], 1)
PointsSampler([6], ["F-FPS"])(p, f) == far(square(both, both), 6)
PointsSampler([6], ["FS"])(p, f) == torch.cat([far(square(both, both), 6), fps(p, 6, "mmcv")], 1)
gather_points(f, one) == rows(f, one)
ball_query(0, 2.0, 5, p, q) == torchvox.ball_query(p, q, 2.0, 5, convention="mmcv").idx
ball_query(1.5, 2.0, 5, p, q) == torchvox.ball_query(p, q, 2.0, 5, min_radius=1.5, convention="mmcv").idx
ball_query(1.5, 2.0, 4, flat_p, flat_q, cnt, new_cnt) == local
grouping_operation(f, idx) == rows(f, idx)
grouping_operation(flat_f, local, cnt, new_cnt) == stacked_rows(flat_f, local)
QueryAndGroup(2.0, 5, normalize_xyz=True)(p, q, f) == torch.cat([near(balls) / 2, rows(f, balls)], 1)
QueryAndGroup(2.0, 5)(p, q) == near(balls)
QueryAndGroup(2.0, 5, use_xyz=False)(p, q, f) == rows(f, balls)
QueryAndGroup(2.0, 5, return_grouped_xyz=True, return_grouped_idx=True)(p, q, f) == (torch.cat([near(balls), rows(f, balls)], 1), rows(p.transpose(1, 2), balls), balls)
QueryAndGroup(2.0, 5, return_grouped_idx=True)(p, q) == (near(balls), balls)
QueryAndGroup(None, 5)(p, q, f) == torch.cat([near(nearest), rows(f, nearest)], 1)
knn(5, p, q) == nearest.transpose(1, 2)
knn(5, p.transpose(1, 2), q.transpose(1, 2), True) == nearest.transpose(1, 2)
knn(2, p) == torchvox.knn(p, p, 2, convention="mmcv").idx.transpose(1, 2)
knn(5, p[:, :2], q)[:, 2:] == zeros(2, 3, 9).int()
three_nn(q, p) == (square(q, p).sort(2).values[..., :3].sqrt().detach(), nearest[..., :3])
three_nn(q, p[:, :2])[0][..., 2] == zeros(2, 9) + math.inf
three_interpolate(f, tri, w) == mix
chamfer_distance(p[..., :2], q[..., :2]) == tuple(torchvox.chamfer_distance(p[..., :2], q[..., :2], convention="mmcv"))
voxelization(points, torch.tensor(size), bounds, -1, -1) == cells
voxelization(points, size, bounds, -1, 6) == cells
voxelization(points[inside], size, bounds, 3, -1) == cells[inside]
dynamic_scatter(points, cells) == scattered(points, cells, "max")
dynamic_scatter(points, pad(cells, (1, 0)), "mean") == scattered(points, pad(cells, (1, 0)), "mean")
dynamic_scatter(points, cells, "sum") == scattered(points, cells, "sum")
DynamicScatter(size, bounds, True)(points, cells) == scattered(points, cells, "mean")
DynamicScatter(size, bounds, False)(points, cells) == scattered(points, cells, "max")
points_in_boxes_all(spread, low) == inside_boxes(0.0).T.int()[None]
points_in_boxes_cpu(spread, low) == inside_boxes(0.0).T.int()[None]
points_in_boxes_part(spread.double(), low.double()) == torchvox.points_in_boxes(spread, boxes[None])
box_iou_rotated(turn(boxes), turn(other)) == torchvox.rotated_iou(boxes, other).detach()
box_iou_rotated(turn(boxes, -1), turn(other, -1), clockwise=False) == torchvox.rotated_iou(boxes, other).detach()
box_iou_rotated(turn(boxes), turn(other), aligned=True) == torchvox.rotated_iou(boxes, other, paired=True).detach()
box_iou_rotated(turn(boxes), turn(other), "iof") == torchvox.rotated_iou(boxes, other, metric="iof").detach()
boxes_overlap_bev(boxes, other) == torchvox.rotated_iou(boxes, other, metric="overlap").detach()
boxes_iou3d(boxes, other) == torchvox.rotated_iou(boxes, other, mode="3d")
boxes_iou_bev(corners(boxes), corners(other)) == torchvox.rotated_iou(boxes, other).detach()
diff_iou_rotated_2d(turn(boxes)[None], turn(other)[None])[0] == torchvox.rotated_iou(boxes, other, paired=True)
diff_iou_rotated_3d(boxes[None], other[None])[0] == torchvox.rotated_iou(boxes, other, mode="3d", paired=True)
nms_rotated(turn(boxes), scores, 0.2) == (scored(turn(boxes), keep(boxes)), keep(boxes))
nms_rotated(turn(boxes, -1), scores, 0.2, clockwise=False)[1] == keep(boxes)
nms_rotated(turn(boxes)[:0], scores[:0], 0.2)[1] == None
nms3d(boxes, scores, 0.2) == keep(boxes)
nms3d_normal(boxes, scores, 0.2) == keep(straight)
nms_bev(corners(boxes), scores, 0.2) == keep(boxes)
nms_bev(corners(boxes), scores, 0.2, 20) == best[keep(boxes[best], scores[best])]
nms_bev(corners(boxes), scores, 0.2, 20, 4) == best[keep(boxes[best], scores[best])][:4]
nms_normal_bev(corners(boxes), scores, 0.2) == keep(straight)
nms(corners(boxes)[:, :4], scores, 0.2) == (scored(corners(boxes)[:, :4], keep(straight)), keep(straight))
nms(corners(boxes)[:, :4], scores, 0.2, 0, 0.5, 0)[1] == keep(straight)[scores[keep(straight)] > 0.5]
nms(corners(boxes)[:, :4], scores, 0.2, score_threshold=0.5, max_num=3)[1] == keep(straight)[:3]
batched_nms(corners(boxes)[:, :4], scores, group, {"type": "nms", "iou_thr": 0.2, "split_thr": 10})[1] == keep(straight, group=group)
batched_nms(corners(boxes)[:, :4], scores, group, {"iou_thr": 0.2}, True)[1] == keep(straight)
batched_nms(turn(boxes), scores, group, {"type": "nms_rotated", "iou_threshold": 0.2, "max_num": 4})[1] == keep(boxes, group=group)[:4]
batched_nms(turn(boxes), scores, group, {"type": nms_rotated, "iou_thr": 0.2}) == (scored(turn(boxes), keep(boxes, group=group)), keep(boxes, group=group))
batched_nms(turn(boxes), scores, group, None) == (scored(turn(boxes), order), order)
RoIPointPool3d(7)(spread, spread.sin(), low)[0] == point_pool(spread, spread.sin(), boxes[None], 7, margin=0.0)
RoIPointPool3d(7)(spread.detach(), spread.detach(), low + 99) == (zeros(1, 40, 7, 6), zeros(1, 40).int() + 1)
RoIAwarePool3d((2, 3, 2), 5)(low[0], spread[0], spread[0].sin()) == cell_pool(boxes, spread[0], spread[0].sin(), (2, 3, 2), 4, "max", margin=0.0)
RoIAwarePool3d(2, 5, "avg")(low[0], spread[0], spread[0].sin()) == cell_pool(boxes, spread[0], spread[0].sin(), (2, 2, 2), 4, "mean", margin=0.0)
""",
    "pcdet_ops.pointnet2_batch_cuda": """
ball_query_wrapper(2, 60, 9, 2.0, 5, q, p, ints(2, 9, 5)) == (torch.where(hit, balls, -7), 1)
farthest_point_sampling_wrapper(2, 60, 9, p, None, ints(2, 9)) == (fps(p, 9, "openpcdet"), 1)
three_nn_wrapper(2, 9, 60, q, p, out(2, 9, 3), ints(2, 9, 3)) == (square(q, p).sort(2).values[..., :3], nearest[..., :3], None)
group_points_wrapper(2, 4, 60, 9, 5, f, idx, out(2, 4, 9, 5)) == (rows(f, idx), 1)
gather_points_wrapper(2, 4, 60, 9, f, one, out(2, 4, 9, dtype=torch.half)) == (rows(f, one).half(), 1)
three_interpolate_wrapper(2, 4, 60, 9, f, tri, w, out(2, 4, 9)) == (mix, None)
group_points_grad_wrapper(2, 4, 60, 9, 5, rows(f, idx), idx, out(2, 4, 60)) == (1 + gradient(f, rows(f, idx)), 1)
gather_points_grad_wrapper(2, 4, 60, 9, rows(f, one), one, out(2, 4, 60)) == (1 + gradient(f, rows(f, one)), 1)
three_interpolate_grad_wrapper(2, 4, 9, 60, mix, tri, w, out(2, 4, 60)) == (1 + gradient(f, mix), None)
""",
    "pcdet_ops.pointnet2_stack_cuda": """
ball_query_wrapper(4, 20, 2.0, 4, flat_q, new_cnt, flat_p, cnt, ints(20, 4)) == (torch.where(local < 0, -1, stacked_balls(2.0, 4, -7)), 1)
group_points_wrapper(4, 20, 4, 4, flat_f, cnt, local.clamp(min=0), new_cnt, out(20, 4, 4)) == (stacked_rows(flat_f, local.clamp(min=0)), 1)
group_points_grad_wrapper(4, 20, 4, 50, 4, stacked_rows(flat_f, local), local, new_cnt, cnt, out(50, 4)) == (1 + gradient(flat_f, stacked_rows(flat_f, local)), 1)
stack_farthest_point_sampling_wrapper(flat_p, None, cnt, ints(13), number) == (stacked_fps("openpcdet"), 1)
three_nn_wrapper(flat_q, new_cnt, flat_p, cnt, out(20, 3), ints(20, 3)) == (stacked_nearest(3, math.inf)[0].square(), stacked_nearest(3, math.inf)[1], None)
three_interpolate_wrapper(flat_f, row3, flat_w, out(20, 4)) == (flat_mix, None)
three_interpolate_grad_wrapper(flat_mix, row3, flat_w, out(50, 4)) == (1 + gradient(flat_f, flat_mix), None)
""",
    "pcdet_ops.iou3d_nms_cuda": """
boxes_iou_bev_gpu(boxes, other, out(40, 40)) == (torchvox.rotated_iou(boxes, other), 1)
boxes_overlap_bev_gpu(boxes, other, out(40, 40)) == (torchvox.rotated_iou(boxes, other, metric="overlap"), 1)
boxes_aligned_iou_bev_cpu(boxes, other, out(40, 1)) == (torchvox.rotated_iou(boxes, other, paired=True)[:, None], 1)
paired_boxes_overlap_bev_gpu(boxes, other, out(40, 1)) == (torchvox.rotated_iou(boxes, other, metric="overlap", paired=True)[:, None], 1)
""",
    "pcdet_ops.roiaware_pool3d_cuda": """
points_in_boxes_cpu(boxes, spread[0], ints(40, 200)) == (inside_boxes(1e-2).int(), 1)
points_in_boxes_gpu(boxes[None], spread, ints(1, 200)) == (torch.where(inside_boxes(1e-5).any(0), inside_boxes(1e-5).int().argmax(0), -7).int()[None], 1)
""",
    "pcdet_ops.roipoint_pool3d_cuda": """
forward(spread, boxes[None], spread.sin(), out(1, 40, 7, 6), ints(1, 40)) == (point_pool(spread, spread.sin(), boxes[None], 7, margin=1e-5), ~inside_boxes(1e-5).any(1)[None], 1)
""",
    "pcdet_ops.iou3d_nms_utils": """
boxes_iou_bev(boxes, other) == torchvox.rotated_iou(boxes, other).detach()
boxes_aligned_iou3d_gpu(boxes, other) == torchvox.rotated_iou(boxes, other, mode="3d", paired=True)[:, None]
boxes_bev_iou_cpu(boxes.detach().cpu().numpy(), other.detach().cpu().numpy()) == torchvox.rotated_iou(boxes, other).detach().cpu().numpy()
nms_gpu(boxes, scores, 0.2) == (keep(boxes), None)
nms_gpu(boxes, scores, 0.2, pre_maxsize=20, more=1)[0] == best[keep(boxes[best], scores[best])]
nms_normal_gpu(boxes, scores, 0.2) == (keep(straight), None)
""",
    "pcdet_ops.roiaware_pool3d_utils": """
RoIAwarePool3d((2, 3, 2), 5)(boxes, spread[0], spread[0].sin()) == cell_pool(boxes, spread[0], spread[0].sin(), (2, 3, 2), 4, "max", margin=1e-5)
RoIAwarePool3d(2, 5)(boxes, spread[0], spread[0].sin(), "avg") == cell_pool(boxes, spread[0], spread[0].sin(), (2, 2, 2), 4, "mean", margin=1e-5)
points_in_boxes_gpu(spread, boxes[None]) == torchvox.points_in_boxes(spread, boxes[None], margin=1e-5)
points_in_boxes_cpu(spread[0], boxes) == inside_boxes(1e-2).int()
""",
    "pcdet_ops.pointnet2_batch_utils": """
farthest_point_sample(p, 9) == fps(p, 9, "openpcdet")
FarthestPointSampling.apply(p, 9) == fps(p, 9, "openpcdet")
""",
    "pcdet_ops.pointnet2_stack_utils": """
ball_query(2.0, 4, flat_p, cnt, flat_q, new_cnt) == (local.clamp(min=0), local[:, 0] < 0)
grouping_operation(flat_f, cnt, local, new_cnt) == stacked_rows(flat_f, local)
QueryAndGroup(2.0, 4)(flat_p, cnt, flat_q, new_cnt, flat_f) == (stacked_group, local.clamp(min=0))
stack_farthest_point_sample(flat_p, cnt, [8, 0, 3, 2]) == stacked_fps("openpcdet")
stack_farthest_point_sample(flat_p, cnt, number) == stacked_fps("openpcdet")
three_interpolate(flat_f, row3, flat_w) == flat_mix
three_nn(flat_q, new_cnt, flat_p, cnt) == stacked_nearest(3, math.inf)
""",
    "pointnet2_ops.pointnet2_utils": """
furthest_point_sample(p, 44) == fps(p, 44, "pointnet2")
FurthestPointSampling.apply(p, 9) == fps(p, 9, "pointnet2")
ball_query(2.0, 5, p, q) == balls
three_nn(q, p[:, :0]) == (zeros(2, 9, 3) + math.inf, zeros(2, 9, 3).int())
grouping_operation(f, idx) == rows(f, idx)
QueryAndGroup(2.0, 5)(p, q, f) == torch.cat([near(balls), rows(f, balls)], 1)
QueryAndGroup(2.0, 5, use_xyz=False)(p, q, f) == rows(f, balls)
GroupAll()(p, None, f) == torch.cat([p.transpose(1, 2), f], 1)[:, :, None]
GroupAll(False)(p, None, f) == f[:, :, None]
GroupAll(False)(p, None) == p.transpose(1, 2)[:, :, None]
""",
    "pointnet2_ops._ext": """
furthest_point_sampling(p, 9) == fps(p, 9, "pointnet2")
ball_query(q, p, 2.0, 5) == balls
three_nn(q.detach(), p.detach()) == [square(q, p).sort(2).values[..., :3].detach(), nearest[..., :3]]
gather_points_grad(rows(f, one).detach(), one, 60) == gradient(f, rows(f, one))
group_points_grad(rows(f, idx).detach(), idx, 60) == gradient(f, rows(f, idx))
three_interpolate(f, tri, w.detach()) == mix
three_interpolate_grad(mix.detach(), tri, w.detach(), 60) == gradient(f, mix)
""",
    "pointnet2_plain": """
query_ball_point(2.0, 5, p, q) == torchvox.query_and_group(p, q, None, [2.0], [5], convention="yanx27").idx.long()
index_points(p, idx.long()) == rows(p.transpose(1, 2), idx).permute(0, 2, 3, 1)
index_points(p, one.long() - 60) == rows(p.transpose(1, 2), one).transpose(1, 2)
square_distance(q, p) == square(q, p)
sample_and_group_all(p, f.transpose(1, 2)) == (zeros(2, 1, 3), torch.cat([p, f.transpose(1, 2)], -1)[:, None])
sample_and_group(60, 0.5, 1, p[:1].detach(), None)[1] == zeros(1, 60, 1, 3)
""",
    "pointops": """
knn_query(6, flat_p, ends, flat_q, new_ends) == stacked_nearest(6, 1e5, -1)[::-1]
knn_query(1, flat_p, ends)[1] == zeros(50, 1)
farthest_point_sampling(flat_p, ends, number.cumsum(0)) == stacked_fps("pointops")
grouping(row, flat_f, flat_p, flat_q, True) == torch.cat([(flat_p[row.long()] - flat_q[:, None]) * there, taken], -1)
knn_query_and_group(flat_f, flat_p, ends, flat_q, new_ends, nsample=6) == (taken, row)
interpolation(flat_p, flat_q, flat_f, ends, new_ends, 6) == mixed
grouping2(flat_f, own) == flat_f[own.long()]
subtraction(flat_f, flat_g, own) == difference
aggregation(flat_f, position, share, own) == added
offset2batch(ends) == torch.tensor([0] * 30 + [2] * 2 + [3] * 18)
batch2offset(torch.tensor([0] * 30 + [2] * 2 + [3] * 18)) == ends.int()
""",
    "torch_cluster": """
knn(flat_p, flat_q, 5, of_p, of_q, batch_size=4) == graph(stacked_nearest(5, 0, -1)[1])
knn(flat_p, flat_q, 3) == graph(search(flat_p, flat_q, 3))
knn(flat_p[:, 0], flat_q[:, 0], 1) == graph(search(flat_p[:, :1], flat_q[:, :1], 1))
knn(flat_f - 0.5, flat_f[:9] - 0.5, 4, cosine=True) == graph(search(unit(flat_f - 0.5), unit(flat_f[:9] - 0.5), 4))
knn_graph(flat_p, 3) == graph(search(flat_p, flat_p, 4), 4, False).flip(0)
knn_graph(flat_p, 3, flow="target_to_source") == graph(search(flat_p, flat_p, 4), 4, False)
knn_graph(flat_p, 3, loop=True) == graph(search(flat_p, flat_p, 3)).flip(0)
radius(flat_p, flat_q, 2.0, of_p, of_q, 3) == graph(all_balls, 3)
radius(flat_p, flat_q, 2.0, of_p, of_q, 1000) == graph(all_balls)
radius(flat_p, flat_p, 2.0, None, None, 3, ignore_same_index=True) == graph(own_balls, 3, False)
radius_graph(flat_p, 2.0, None, False, 3) == graph(own_balls, 3, False).flip(0)
radius_graph(flat_p, 2.0, None, True, 1000, "target_to_source") == graph(own_balls)
fps(flat_p, of_p, None, False) == parts_of(0.5)
fps(flat_p, of_p, torch.tensor(0.3), False) == parts_of(0.3)
fps(flat_p, of_p, on(torch.tensor([0.5, 1.0, 0.1, 0.6])), False) == parts_of(on(torch.tensor([0.5, 1.0, 0.1, 0.6])))
fps(flat_p, None, 0.3, False, ptr=ptr_p.tolist()) == parts_of(0.3)
fps(flat_p, None, 0.3, False, ptr=ptr_p) == parts_of(0.3)
len(fps(flat_p.double(), ratio=0.3)) == 15
len(fps(flat_p, ratio=1)) == 50
nearest(flat_q, flat_p, of_q, of_p) == stacked_nearest(1, 0, -1)[1][:, 0].long()
nearest(flat_q, flat_p) == graph(search(flat_p, flat_q, 1))[1]
grid_cluster(spots, on(torch.tensor([5, 5]))) == torch.tensor([0, 5, 3, 0, 1])
grid_cluster(spots.float(), on(torch.tensor([5.0, 5.0]))) == torch.tensor([0, 5, 3, 0, 1])
""",
    "pyg_lib_ops": """
knn(flat_p, flat_q, 5, ptr_p, ptr_q) == graph(stacked_nearest(5, 0, -1)[1])
knn_graph(flat_p, 3) == graph(search(flat_p, flat_p, 4), 4, False)
radius(flat_p, flat_q, 2.0, ptr_p, ptr_q, 3) == graph(all_balls, 3)
radius_graph(flat_p, 2.0, None, False, 3) == graph(own_balls, 3, False)
fps(flat_p, ptr_p, 0.3, False) == parts_of(0.3)
grid_cluster(spots, on(torch.tensor([5, 5])), spots[0], spots[0] + 19) == torch.tensor([0, 6, 4, 0, 1])
""",
    "torch_scatter": """
gather_coo(flat_f, of_p) == flat_f[of_p]
gather_csr(flat_f[:4], ptr_p) == flat_f[:4][of_p]
gather_csr(flat_f[:4], ptr_p, out(50, 4)) == (flat_f[:4][of_p], flat_f[:4][of_p])
scatter_sum(flat_f, of_p, 0, out(4, 4)) == (1 + sums, 1 + sums)
segment_coo(flat_f, of_p, out(4, 4)) == (1 + sums, 1 + sums)
segment_csr(flat_f, ptr_p[2:], out(2, 4), "mean") == (sums[2:] / cnt[2:, None], sums[2:] / cnt[2:, None])
scatter_softmax(flat_f, of_p, 0) == torch.cat([part.softmax(0) for part in clouds_of_f])
scatter_log_softmax(flat_f.T, of_p, dim_size=12) == torch.cat([part.log_softmax(0) for part in clouds_of_f]).T
scatter_logsumexp(flat_f, of_p, 0) == torch.stack([part.logsumexp(0) if len(part) else 0 * part.sum(0) for part in clouds_of_f])
scatter_std(flat_f.detach(), of_p, 0)[2:] == torch.stack([part.std(0) for part in clouds_of_f[2:]]).detach()
""",
    "pointops_c": """
knn_query_cuda(20, 6, flat_p, flat_q, ends, new_ends, ints(20, 6), out(20, 6)) == (row, dist.square(), None)
farthest_point_sampling_cuda(4, 30, flat_p, ends, number.cumsum(0), None, ints(13)) == (stacked_fps("pointops"), None)
grouping_forward_cuda(20, 6, 4, flat_f, row, out(20, 6, 4)) == (taken, None)
grouping_backward_cuda(20, 6, 4, taken, row, out(50, 4)) == (gradient(flat_f, taken), None)
interpolation_forward_cuda(20, 4, 6, flat_f, row, weight, out(20, 4)) == (mixed, None)
interpolation_backward_cuda(20, 4, 6, mixed, row, weight, out(50, 4)) == (gradient(flat_f, mixed), None)
subtraction_forward_cuda(50, 3, 4, flat_f, flat_g, own, out(50, 3, 4)) == (difference, None)
subtraction_backward_cuda(50, 3, 4, own, difference, out(50, 4), out(50, 4)) == (*gradient((flat_f, flat_g), difference), None)
aggregation_forward_cuda(50, 3, 4, 2, flat_f, position, share, own, out(50, 4)) == (added, None)
aggregation_backward_cuda(50, 3, 4, 2, flat_f, position, share, own, added, out(50, 4), out(50, 3, 4), out(50, 3, 2)) == (*gradient((flat_f, position, share), added), None)
""",
    "pytorch3d_ops": """
knn_points(q, p, new_lengths, lengths, 2, 4, return_nn=True) == pytorch3d_nearest(2)
knn_points(q, p, new_lengths, lengths, 1, 4, return_nn=True) == pytorch3d_nearest(1)
ball_query(q, p, new_lengths, lengths, 5, 2.0) == pytorch3d_balls()
ball_query(q, p, radius=2.0, return_nn=False).idx[..., 60:] == zeros(2, 9, 440).long() - 1
sample_farthest_points(p.double(), lengths, 12)[1] == samples(12).long()
sample_farthest_points(p, lengths, [12, 3]) == (torchvox.gather_points(p, samples([12, 3])), samples([12, 3]).long())
sample_farthest_points(p, lengths, torch.tensor([12, 3])) == (torchvox.gather_points(p, samples([12, 3])), samples([12, 3]).long())
knn_gather(p, idx.long()) == rows(p.transpose(1, 2), idx).permute(0, 2, 3, 1)
knn_gather(p.detach(), idx.long(), lengths)[1, :, 2:] == zeros(9, 3, 3)
masked_gather(p, idx.long()) == rows(p.transpose(1, 2), idx).permute(0, 2, 3, 1)
masked_gather(p.detach(), one.long() * 0 - 1) == zeros(2, 9, 3)
""",
    "pytorch3d_c": """
knn_points_idx(q, p, new_lengths, lengths, 2, 4, -1) == detached(*pytorch3d_nearest(2)[1::-1])
knn_points_idx(q, p, new_lengths, lengths, 1, 4, -1) == detached(*pytorch3d_nearest(1)[1::-1])
ball_query(q, p, new_lengths, lengths, 5, 2.0, True) == detached(*pytorch3d_balls()[1::-1])
sample_farthest_points(p, lengths, number[::2], starts)[:, 0] == starts
knn_points_backward(q.detach(), p.detach(), new_lengths, lengths, pytorch3d_nearest(1)[1], 1, zeros(2, 9, 4) + 1) == gradient((q, p), pytorch3d_nearest(1)[0], 1)
knn_points_backward(q.detach(), p.detach(), new_lengths, lengths, pytorch3d_nearest(2)[1], 2, zeros(2, 9, 4) + 1) == gradient((q, p), pytorch3d_nearest(2)[0], 1)
""",
}
STRIDED = ("points_in_boxes_cpu", "scatter_log_softmax")  # results that are not contiguous


@functools.cache
def words(device):
    """The words of CALLS, and the tensors that may have gradients."""

    def on(tensor):
        return tensor.to(device)

    def zeros(*shape):
        return torch.zeros(shape, device=device)

    def gradient(leaves, result, grad=None):
        grad = result.detach() if grad is None else torch.full_like(result, grad)
        grads = torch.autograd.grad(result, leaves, grad, retain_graph=True)
        return grads if isinstance(leaves, tuple) else grads[0]

    def detached(*tensors):
        return tuple(one.detach() for one in tensors)

    scope = {**vars(inputs), **locals()}
    for make in (inputs.clouds, inputs.packed, inputs.rotated, inputs.voxels):
        scope |= make(on)
    leaves = [x for x in scope.values() if isinstance(x, torch.Tensor) and x.is_leaf]
    return scope, [leaf for leaf in leaves if leaf.requires_grad]


def flattened(value):
    many = isinstance(value, (tuple, list))
    return [one for part in value for one in flattened(part)] if many else [value]


LINES = [(shim, line) for shim, text in CALLS.items() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("shim", "line"), LINES, ids=[line[:50] for _, line in LINES])
def test_results_and_gradients(device, shim, line):
    scope, leaves = words(device)
    call, expression = line.split(" == ")
    module = importlib.import_module(f"torchvox.compat.{shim}")
    outputs = []

    def out(*shape, fill=1, dtype=torch.float32):
        outputs.append(torch.full(shape, fill, dtype=dtype, device=device))
        return outputs[-1]

    ints = functools.partial(out, fill=-7, dtype=torch.int32)
    ours = eval(call, {**scope, **vars(module), "out": out, "ints": ints})
    ours = flattened([*outputs, ours] if outputs else ours)
    wanted = flattened(eval(expression, scope))
    assert len(ours) == len(wanted)
    for one, two in zip(ours, wanted, strict=True):
        if not isinstance(one, torch.Tensor):
            assert type(one) is type(two) and np.array_equal(one, two)
            continue
        torch.testing.assert_close(one, two.to(one), rtol=1e-5, atol=2e-6)
        assert outputs or (one.dtype, one.requires_grad) == (two.dtype, two.requires_grad)
        assert one.is_contiguous() or call.endswith("]") or call.startswith(STRIDED), one.stride()
        if one.requires_grad:
            weight = torch.rand(one.shape, generator=torch.Generator().manual_seed(0)).to(one)
            grads = [
                torch.autograd.grad(
                    x, leaves, weight, allow_unused=True, materialize_grads=True, retain_graph=True
                )
                for x in (one, two)
            ]
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
