# SPDX-License-Identifier: Apache-2.0
"""The adapters of OpenPCDet's compiled modules and of their Python, against loops over points."""

import numpy as np
import pytest
import torch

import torchvox
from tests.compat import loops
from torchvox.compat.pcdet_ops import iou3d_nms_cuda as nms
from torchvox.compat.pcdet_ops import iou3d_nms_utils as iou_utils
from torchvox.compat.pcdet_ops import pointnet2_batch_cuda as batch
from torchvox.compat.pcdet_ops import pointnet2_stack_cuda as stack
from torchvox.compat.pcdet_ops import pointnet2_stack_utils as stack_utils
from torchvox.compat.pcdet_ops import roiaware_pool3d_cuda as roi
from torchvox.compat.pcdet_ops import roiaware_pool3d_utils as roi_utils
from torchvox.compat.pcdet_ops import roipoint_pool3d_cuda
from torchvox.compat.pointnet2_ops import _ext


def ints(*shape, fill=-7):
    return torch.full(shape, fill, dtype=torch.int32)


@pytest.fixture
def packed():
    """Clouds of 30, 2 and 0 points, and 5, 4 and 0 queries, of which one is far from all."""
    torch.manual_seed(0)
    xyz, new = torch.rand(32, 3), torch.rand(9, 3)
    new[[1, 6]] += 9
    return xyz, torch.tensor([30, 2, 0]).int(), new, torch.tensor([5, 4, 0]).int()


def per_cloud(packed):
    xyz, cnt, new, new_cnt = packed
    for b, (points, queries) in enumerate(
        zip(xyz.split(cnt.tolist()), new.split(new_cnt.tolist()), strict=True)
    ):
        for query in queries:
            yield int(cnt[:b].sum()), points, query


def test_batched_functions_write_into_the_tensors_of_the_caller():
    torch.manual_seed(0)
    xyz, features = torch.rand(2, 40, 3), torch.rand(2, 4, 40)
    new = torch.cat([xyz[:, :5], xyz[:, :1] + 9], 1)
    idx = ints(2, 5, 6).transpose(1, 2)  # strides stay
    assert batch.ball_query_wrapper(2, 40, 6, 0.3, 5, new, xyz, idx) == 1
    assert idx.stride() == (30, 1, 6)
    expected = [[loops.ball(xyz[b], c, 0.3, 5) or [-7] * 5 for c in new[b]] for b in (0, 1)]
    assert idx.tolist() == expected  # an empty ball is not written
    taken, temp = ints(2, 9), torch.full((2, 40), 1e10)
    xyz[:, 30:] = xyz[:, :10]
    for name in ("farthest", "furthest"):
        assert getattr(batch, f"{name}_point_sampling_wrapper")(2, 40, 9, xyz, temp, taken) == 1
        assert taken.tolist() == [loops.fps(cloud, 9) for cloud in xyz] and (temp == 1e10).all()
    dist2, near = torch.empty(2, 6, 3), ints(2, 6, 3)
    assert batch.three_nn_wrapper(2, 6, 40, new, xyz, dist2, near) is None
    torch.testing.assert_close([dist2, near], _ext.three_nn(new, xyz))
    idx, weight = idx.clamp(min=0).contiguous(), torch.rand(2, 6, 3)
    one, sizes = idx[..., 0].contiguous(), (2, 4, 40, 6)
    grad, group = torch.rand(2, 4, 6), torch.rand(2, 4, 6, 5)
    for name, before, inputs, dtype in (
        ("group_points", (*sizes, 5), (features, idx), torch.float32),
        ("gather_points", sizes, (features, one), torch.float16),
        ("three_interpolate", sizes, (features, near, weight), torch.float32),
        ("group_points_grad", (*sizes, 5), (group, idx), torch.float32),
        ("gather_points_grad", sizes, (grad, one), torch.float32),
        ("three_interpolate_grad", (2, 4, 6, 40), (grad, near, weight), torch.float32),
    ):
        rows = [40] if "grad" in name else []
        wanted = getattr(_ext, name)(*inputs, *rows).to(dtype)
        out = torch.ones_like(wanted)
        assert getattr(batch, f"{name}_wrapper")(*before, *inputs, out) in (1, None)
        torch.testing.assert_close(out, wanted + 1 if rows else wanted)  # gradients are added


def test_wrong_outputs_and_counts_of_arguments_are_refused_by_name():
    xyz = torch.rand(2, 40, 3)
    with pytest.raises(
        ValueError, match=r"ball_query_wrapper: idx must be \[2, 40, 5\], got \[2, 5\]"
    ):
        batch.ball_query_wrapper(2, 40, 6, 0.3, 5, xyz, xyz, ints(2, 5))
    with pytest.raises(TypeError, match=r"ball_query_wrapper\(b, n, m, radius, .*\) got 7"):
        batch.ball_query_wrapper(2, 40, 6, 0.3, 5, xyz, xyz)
    with pytest.raises(ValueError, match="boxes_iou_bev_gpu: ans_iou must be"):
        boxes = torch.rand(3, 7)
        nms.boxes_iou_bev_gpu(boxes, boxes, torch.zeros(2, 3))


def test_stacked_functions_use_local_or_packed_rows(packed):
    xyz, cnt, new, new_cnt = packed
    idx = ints(9, 4, fill=0)
    assert stack.ball_query_wrapper(3, 9, 0.4, 4, new, new_cnt, xyz, cnt, idx) == 1
    found = [loops.ball(p, q, 0.4, 4) or [-1, 0, 0, 0] for _, p, q in per_cloud(packed)]
    assert idx.tolist() == found and found[1] == found[6] == [-1, 0, 0, 0]
    local, empty = stack_utils.ball_query(0.4, 4, xyz, cnt, new, new_cnt)
    assert empty.tolist() == [row[0] < 0 for row in found] and torch.equal(local, idx.clamp(min=0))
    features, out = torch.rand(32, 6), torch.empty(9, 6, 4)
    assert stack.group_points_wrapper(3, 9, 6, 4, features, cnt, local, new_cnt, out) == 1
    start = torch.tensor([s for s, _, _ in per_cloud(packed)])
    rows = local.long() + start[:, None]
    torch.testing.assert_close(out, features[rows].transpose(1, 2))
    grad = torch.ones(32, 6)
    stack.group_points_grad_wrapper(3, 9, 6, 32, 4, out, local, new_cnt, cnt, grad)
    sums = torch.ones(32, 6).index_add(0, rows.flatten(), out.transpose(1, 2).flatten(0, 1))
    torch.testing.assert_close(grad, sums)
    dist2, near = torch.empty(9, 3), ints(9, 3)
    stack.three_nn_wrapper(new, new_cnt, xyz, cnt, dist2, near)
    pairs = [loops.three_nearest(p, q) for _, p, q in per_cloud(packed)]
    torch.testing.assert_close(dist2, torch.tensor(np.array([p[0] for p in pairs])).float())
    assert near.tolist() == [
        [s + i for i in p[1]] for p, s in zip(pairs, start.tolist(), strict=True)
    ]
    dist, same = stack_utils.three_nn(new, new_cnt, xyz, cnt)
    torch.testing.assert_close((dist, same), (dist2.sqrt(), near))
    weight, mixed = torch.rand(9, 3), torch.empty(9, 6)
    stack.three_interpolate_wrapper(features, near, weight, mixed)
    torch.testing.assert_close(mixed, (features[near.long()] * weight[..., None]).sum(1))
    grad = torch.ones(32, 6)
    stack.three_interpolate_grad_wrapper(mixed, near, weight, grad)
    each = (mixed[:, None] * weight[..., None]).flatten(0, 1)
    torch.testing.assert_close(grad, torch.ones(32, 6).index_add(0, near.long().flatten(), each))
    taken, counts = ints(11), torch.tensor([8, 3, 0]).int()
    args = xyz, torch.full((32,), 1e10), cnt, taken, counts
    assert stack.stack_farthest_point_sampling_wrapper(*args) == 1
    assert taken.tolist() == loops.fps(xyz[:30], 8) + [30 + i for i in loops.fps(xyz[30:], 3)]
    for number in ([8, 3, 0], counts):
        torch.testing.assert_close(stack_utils.stack_farthest_point_sample(xyz, cnt, number), taken)


def test_stacked_groups_have_gradients_and_zeros_for_empty_balls(packed):
    xyz, cnt, new, new_cnt = packed
    xyz, new, features = (x.requires_grad_() for x in (xyz, new, torch.rand(32, 6)))
    group, idx = stack_utils.QueryAndGroup(0.4, 4)(xyz, cnt, new, new_cnt, features)
    parts = list(per_cloud((xyz.detach(), cnt, new.detach(), new_cnt)))
    rows = idx.long() + torch.tensor([start for start, _, _ in parts])[:, None]
    there = torch.tensor([[[bool(loops.ball(p, q, 0.4, 4))]] for _, p, q in parts])
    near = torch.cat([xyz[rows] - new[:, None], features[rows]], -1).transpose(1, 2) * there
    torch.testing.assert_close(group, near)
    for tensor in (xyz, new, features):
        grads = (
            torch.autograd.grad(g.square().sum(), tensor, retain_graph=True)[0]
            for g in (group, near)
        )
        torch.testing.assert_close(*grads)
    weight = torch.rand(9, 3, requires_grad=True)
    out = stack_utils.three_interpolate(features, idx[:, :3].contiguous(), weight)
    assert torch.autograd.grad(out.sum(), weight, allow_unused=True, retain_graph=True)[0] is None


BOXES = torch.tensor(
    [
        [0, 0, 0, 4, 2, 2, 0],
        [0.5, 0.2, 0.3, 4, 2, 2, 0.4],
        [9, 0, 0, 4, 2, 2, 1],
        [0, 0, 0, 4, 2, 2, 1.5],
    ]
)


def test_boxes_suppress_those_behind_them():
    iou = torch.zeros(4, 4)
    nms.boxes_iou_bev_cpu(BOXES, BOXES, iou)
    torch.testing.assert_close(iou, torchvox.rotated_iou(BOXES, BOXES))
    pairs = torch.zeros(4, 1)
    nms.boxes_aligned_iou_bev_cpu(BOXES, BOXES.flip(0), pairs)
    torch.testing.assert_close(pairs[:, 0], iou.fliplr().diagonal())
    keep = torch.full((4,), -7)
    assert nms.nms_gpu(BOXES, keep, 0.5) == 3 and keep.tolist() == [0, 2, 3, -7]
    assert nms.nms_normal_gpu(BOXES, keep, 0.5) == 2 and keep[:2].tolist() == [0, 2]
    scores = torch.tensor([0.1, 0.9, 0.5, 0.3])
    assert iou_utils.nms_gpu(BOXES, scores, 0.5)[0].tolist() == [1, 2, 3]
    assert iou_utils.nms_gpu(BOXES, scores, 0.5, pre_maxsize=2, more=1)[0].tolist() == [1, 2]
    assert iou_utils.nms_normal_gpu(BOXES, scores, 0.5) == (
        pytest.approx(torch.tensor([1, 2])),
        None,
    )
    torch.testing.assert_close(iou_utils.boxes_iou_bev(BOXES, BOXES), iou)
    array = iou_utils.boxes_bev_iou_cpu(BOXES.numpy(), BOXES.numpy())
    np.testing.assert_array_equal(array, iou.numpy())
    volume = iou_utils.boxes_iou3d_gpu(BOXES, BOXES)
    assert (
        iou_utils.paired_boxes_iou3d_gpu(BOXES, BOXES).shape == (4, 1) and volume[0, 1] < iou[0, 1]
    )


def test_overlaps_are_areas():
    area, iou = torch.zeros(4, 4), torchvox.rotated_iou(BOXES, BOXES)
    assert nms.boxes_overlap_bev_gpu(BOXES, BOXES, area) == 1
    torch.testing.assert_close(area, iou * 16 / (1 + iou))
    pairs = torch.zeros(4, 1)
    for name in ("paired_boxes_overlap_bev_gpu", "boxes_aligned_overlap_bev_gpu"):
        assert getattr(nms, name)(BOXES, BOXES.flip(0), pairs) == 1
        torch.testing.assert_close(pairs[:, 0], area.fliplr().diagonal())


def points_about(boxes):
    torch.manual_seed(0)
    return torch.rand(300, 3) * torch.tensor([14.0, 6, 4]) - torch.tensor([3.0, 3, 2])


def test_points_in_boxes_have_the_margins_of_each_function():
    points = torch.cat([points_about(BOXES), torch.tensor([[2.005, 0, 0], [2.00000501, 0, 0.9]])])
    masks = {m: np.array([loops.inside(points, box, m) for box in BOXES]) for m in (1e-5, 1e-2)}
    out = ints(4, 302)
    assert roi.points_in_boxes_cpu(BOXES, points, out) == 1
    np.testing.assert_array_equal(out.numpy(), masks[1e-2])
    idx = ints(1, 302)
    assert roi.points_in_boxes_gpu(BOXES[None], points[None], idx) == 1
    first = np.where(masks[1e-5].any(0), masks[1e-5].argmax(0), -7)
    np.testing.assert_array_equal(idx[0].numpy(), first)
    assert masks[1e-2][0, 300] and not masks[1e-5][0, 300] and masks[1e-5][0, 301]


@pytest.mark.parametrize("method", [0, 1])
def test_roiaware_pooling_fills_the_peers_tensors_and_its_backward_reads_them(method):
    points, features, k = points_about(BOXES), torch.randn(300, 5), 4
    shape = (4, 3, 2, 2)
    argmax, lists = ints(*shape, 5, fill=0), ints(*shape, k, fill=0)
    pooled = torch.zeros(*shape, 5)
    assert roi.forward(BOXES, points, features, argmax, lists, pooled, method) == 1
    wanted = np.zeros((*shape, k), int)
    for b, box in enumerate(BOXES):
        for cell, rows in loops.cells(points, box, shape[1:], 1e-5, k - 1).items():
            wanted[b][cell][: len(rows) + 1] = len(rows), *rows
    np.testing.assert_array_equal(lists.numpy(), wanted)
    grad, total = torch.rand(*shape, 5), torch.zeros(300, 5)
    expected = torch.zeros(*shape, 5)
    for cell in np.ndindex(shape):
        count, *rows = wanted[cell]
        rows = rows[:count]
        if method and count:
            expected[cell] = features[rows].mean(0)
            total[rows] += grad[cell] / count
        elif count:
            expected[cell], best = features[rows].max(0)
            assert argmax[cell].tolist() == [rows[i] for i in best]
            total[[rows[i] for i in best], range(5)] += grad[cell]
        elif not method:
            assert (argmax[cell] == -1).all()
    torch.testing.assert_close(pooled, expected)
    into = torch.ones(300, 5)
    assert roi.backward(lists, argmax, grad, into, method) == 1
    torch.testing.assert_close(into, total + 1)
    leaf = features.clone().requires_grad_()
    module = roi_utils.RoIAwarePool3d((3, 2, 2), k)
    out = module(BOXES, points, leaf, "avg" if method else "max")
    torch.testing.assert_close(out, pooled)
    torch.testing.assert_close(torch.autograd.grad(out, leaf, grad)[0], total)
    assert roi_utils.RoIAwarePool3d(2)(BOXES, points, features).shape == (4, 2, 2, 2, 5)


def test_roipoint_pooling_repeats_the_first_points_and_flags_empty_boxes():
    points, features = points_about(BOXES), torch.rand(1, 300, 2)
    boxes = torch.cat([BOXES, BOXES[:1] + 99])
    out, empty = torch.full((1, 5, 50, 5), 7.0), ints(1, 5)
    assert roipoint_pool3d_cuda.forward(points[None], boxes[None], features, out, empty) == 1
    assert empty.tolist() == [[0, 0, 0, 0, 1]] and not out[0, 4].any()
    for b, box in enumerate(BOXES):
        hits = np.flatnonzero(loops.inside(points, box, 1e-5))[:50]
        rows = np.resize(hits, 50)
        torch.testing.assert_close(out[0, b], torch.cat([points, features[0]], 1)[rows])
