# SPDX-License-Identifier: Apache-2.0
"""mmcv.ops: rotated boxes, against loops and the reference of rotated_iou."""

import math

import numpy as np
import pytest
import torch

from tests.compat import loops
from tests.helpers import cube
from torchvox.compat import mmcv_ops
from torchvox.compat._errors import CompatWarning, NotCoveredError
from torchvox.reference import rotated_iou


def boxes_of(n, seed=0, scale=8.0):
    """[n, 7]: x y z l w h yaw."""
    rows = cube(n, 7, seed)[0]
    return torch.cat([rows[:, :3] * scale, rows[:, 3:6] * 3 + 0.5, rows[:, 6:] * 6 - 3], 1)


def flat(boxes):
    """x y w h angle."""
    return boxes[:, [0, 1, 3, 4, 6]]


def corners(boxes):
    """x1 y1 x2 y2 angle of boxes of 7 columns."""
    half = boxes[:, 3:5] / 2
    return torch.cat([boxes[:, :2] - half, boxes[:, :2] + half, boxes[:, 6:]], 1)


def holding(boxes, points):
    """[G, N]: sides are open, top and bottom closed; z of a box is its bottom."""
    center = boxes.double().clone()
    center[:, 2] += center[:, 5] / 2
    return torch.from_numpy(np.array([loops.inside(points, box, 0) for box in center]))


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_points_in_boxes(device, dtype):
    points = (cube(80, seed=1, batch=2) * 8).to(dtype)
    boxes = torch.stack([boxes_of(6), boxes_of(6, seed=2)]).to(dtype)
    points[0, 0] = boxes[0, 0, :3]  # on the bottom
    mask = torch.stack([holding(*one).T for one in zip(boxes, points, strict=True)])
    first = torch.where(mask.any(2), mask.int().argmax(2), -1)
    every = mmcv_ops.points_in_boxes_all(points.to(device), boxes.to(device))
    assert every.dtype == torch.int32 and every.is_contiguous()
    assert torch.equal(every.cpu(), mask.int()) and mask[0, 0, 0]
    assert torch.equal(mmcv_ops.points_in_boxes_cpu(points.to(device), boxes.to(device)), every)
    part = mmcv_ops.points_in_boxes_part(points.to(device), boxes.to(device))
    assert torch.equal(part.cpu(), first.int())


def test_overlaps(device):
    a, b = boxes_of(7, scale=3.0), boxes_of(7, seed=1, scale=3.0)
    bev, volume = rotated_iou(a, b), rotated_iou(a, b, mode="3d")
    da, db = a.to(device), b.to(device)

    def near(found, wanted):
        assert torch.allclose(found.cpu(), wanted, atol=2e-6)

    near(mmcv_ops.boxes_iou3d(da, db), volume)
    near(mmcv_ops.box_iou_rotated(flat(da), flat(db)), bev)
    near(mmcv_ops.box_iou_rotated(flat(da), flat(db), aligned=True), bev.diagonal())
    near(mmcv_ops.boxes_iou_bev(corners(da), corners(db)), bev)
    minus = [flat(one) * torch.tensor([1, 1, 1, 1, -1], device=device) for one in (da, db)]
    near(mmcv_ops.box_iou_rotated(*minus, clockwise=False), bev)
    pairs = (da[None].requires_grad_(), db[None])
    near(mmcv_ops.diff_iou_rotated_3d(*pairs)[0], volume.diagonal())
    two = mmcv_ops.diff_iou_rotated_2d(flat(da)[None].requires_grad_(), flat(db)[None])
    near(two[0], bev.diagonal())
    assert torch.autograd.grad(mmcv_ops.diff_iou_rotated_3d(*pairs).sum(), pairs[0])[0].any()
    assert two.requires_grad
    boxes = da.clone().requires_grad_()
    for found in (
        mmcv_ops.box_iou_rotated(flat(boxes), flat(db)),
        mmcv_ops.boxes_overlap_bev(boxes, db),
    ):
        assert not found.requires_grad


@pytest.mark.parametrize("clockwise", (True, False))
def test_angles_turn_as_documented(device, clockwise):
    box, sign = torch.tensor([[1.0, 2.0, 4.0, 1.0, 0.5]], device=device), 1 if clockwise else -1
    cos, sin = math.cos(0.5 * sign), math.sin(0.5 * sign)  # [cos -sin; sin cos] turns a corner
    x, y = -0.48 * 4, -0.48 * 1
    speck = [[1 + x * cos - y * sin, 2 + x * sin + y * cos, 0.01, 0.01, 0.0]]
    iou = mmcv_ops.box_iou_rotated(torch.tensor(speck, device=device), box, clockwise=clockwise)
    assert abs(float(iou) - 1e-4 / 4) < 1e-6


def test_areas(device):
    a, b = boxes_of(7, scale=3.0).to(device), boxes_of(5, seed=1, scale=3.0).to(device)
    area_a, area_b = a[:, 3] * a[:, 4], b[:, 3] * b[:, 4]
    iou = mmcv_ops.box_iou_rotated(flat(a), flat(b))
    area = iou * (area_a[:, None] + area_b) / (1 + iou)
    assert torch.allclose(mmcv_ops.boxes_overlap_bev(a, b), area, atol=1e-5)
    iof = mmcv_ops.box_iou_rotated(flat(a), flat(b), mode="iof")
    assert torch.allclose(iof, area / area_a[:, None], atol=1e-5)


def test_suppression(device):
    boxes, scores = boxes_of(60), cube(60, 1)[0][:, 0]
    scores[20:30] = scores[10]  # equal scores come by index
    da, ds = boxes.to(device), scores.to(device)
    keep = loops.greedy(rotated_iou(boxes, boxes), scores, 0.2)
    assert 5 < len(keep) < 50
    dets, found = mmcv_ops.nms_rotated(flat(da), ds, 0.2)
    assert found.dtype == torch.int64 and found.tolist() == keep
    assert torch.equal(dets, torch.cat([flat(da), ds[:, None]], 1)[keep])
    flipped = flat(da) * torch.tensor([1, 1, 1, 1, -1], device=device)
    assert mmcv_ops.nms_rotated(flipped, ds, 0.2, clockwise=False)[1].tolist() == keep
    with pytest.warns(CompatWarning, match="labels are not read"):
        assert mmcv_ops.nms_rotated(flat(da), ds, 0.2, torch.zeros(60))[1].tolist() == keep
    assert mmcv_ops.nms_rotated(flat(da)[:0], ds[:0], 0.2)[1] is None
    assert mmcv_ops.nms3d(da, ds, 0.2).tolist() == keep
    assert mmcv_ops.nms_bev(corners(da), ds, 0.2).tolist() == keep
    best = np.argsort(-scores.numpy(), kind="stable")[:20].tolist()
    cut = [i for i in keep if i in best]
    assert len(cut) < len(keep)
    assert mmcv_ops.nms_bev(corners(da), ds, 0.2, 20).tolist() == cut
    assert mmcv_ops.nms_bev(corners(da), ds, 0.2, 20, 4).tolist() == cut[:4]
    unturned = boxes.clone()
    unturned[:, 6] = 0
    straight = loops.greedy(rotated_iou(unturned, unturned), scores, 0.2)
    assert straight != keep
    assert mmcv_ops.nms3d_normal(da, ds, 0.2).tolist() == straight
    assert mmcv_ops.nms_normal_bev(corners(da), ds, 0.2).tolist() == straight
    dets, found = mmcv_ops.nms(corners(da)[:, :4], ds, 0.2)
    assert found.tolist() == straight
    assert torch.equal(dets, torch.cat([corners(da)[:, :4], ds[:, None]], 1)[straight])
    some = [i for i in straight if scores[i] > 0.5]
    for most in (-1, 0, 3):
        found = mmcv_ops.nms(corners(da)[:, :4], ds, 0.2, score_threshold=0.5, max_num=most)[1]
        assert found.tolist() == some[: most if most > 0 else None]
    arrays = mmcv_ops.nms(corners(boxes)[:, :4].numpy(), scores.numpy(), 0.2)
    assert isinstance(arrays[0], np.ndarray) and arrays[1].tolist() == straight
    with pytest.raises(NotCoveredError, match="nms: offset=1 is not covered"):
        mmcv_ops.nms(corners(da)[:, :4], ds, 0.2, 1)


def test_batched_nms(device):
    boxes, scores, group = boxes_of(60), cube(60, 1)[0][:, 0], torch.arange(60) % 3
    da, ds, dg = boxes.to(device), scores.to(device), group.to(device)
    unturned = torch.cat([boxes[:, :6], torch.zeros(60, 1)], 1)
    for kind, given, iou in (
        ("nms", corners(da)[:, :4], rotated_iou(unturned, unturned)),
        ("nms_rotated", flat(da), rotated_iou(boxes, boxes)),
    ):
        for agnostic in (False, True):
            keep = loops.greedy(iou, scores, 0.2, None if agnostic else group)
            cfg = {"type": kind, "iou_thr": 0.2, "split_thr": 10}
            dets, found = mmcv_ops.batched_nms(given, ds, dg, cfg, agnostic)
            assert found.tolist() == keep
            assert torch.equal(dets, torch.cat([given, ds[:, None]], 1)[keep])
        cfg = {"type": getattr(mmcv_ops, kind), "iou_threshold": 0.2, "max_num": 4}
        keep = loops.greedy(iou, scores, 0.2, group)[:4]
        assert mmcv_ops.batched_nms(given, ds, dg, cfg)[1].tolist() == keep
    dets, found = mmcv_ops.batched_nms(flat(da), ds, dg, None)
    assert found.tolist() == np.argsort(-scores.numpy(), kind="stable").tolist()
    with pytest.raises(NotCoveredError, match="batched_nms: type='soft_nms' is not covered"):
        mmcv_ops.batched_nms(flat(da), ds, dg, {"type": "soft_nms"})


def test_roi_point_pool(device):
    points, features = cube(60, batch=2, seed=1) * 8, cube(60, 4, batch=2)
    boxes = torch.stack([boxes_of(5), boxes_of(5, seed=2)])
    boxes[1, 4, 0] = 99  # empty
    inputs = [one.to(device) for one in (points, features, boxes)]
    pooled, empty = mmcv_ops.RoIPointPool3d(7)(*inputs)
    assert empty.dtype == torch.int32 and pooled.shape == (2, 5, 7, 7)
    both = torch.cat([points, features], 2)
    for b in range(2):
        for g, mask in enumerate(holding(boxes[b], points[b])):
            rows = mask.nonzero()[:7, 0].tolist()
            assert bool(empty[b, g]) == (not rows)
            cyclic = [rows[i % len(rows)] for i in range(7)] if rows else []
            wanted = both[b, cyclic] if rows else torch.zeros(7, 7)
            assert torch.equal(pooled[b, g].cpu(), wanted)
    leaves = [x[:, :20].double().requires_grad_() for x in inputs[:2]]
    pool = mmcv_ops.RoIPointPool3d(4)
    assert torch.autograd.gradcheck(lambda *x: pool(*x, inputs[2].double())[0], leaves)


@pytest.mark.parametrize("mode", ("max", "avg"))
def test_roi_aware_pool(device, mode):
    points, features, rois = cube(300, seed=1)[0] * 8, cube(300, 3)[0] - 0.5, boxes_of(4)
    wanted, center = torch.zeros(4, 2, 3, 2, 3), rois.clone()
    center[:, 2] += center[:, 5] / 2
    for g, roi in enumerate(center):
        for cell, rows in loops.cells(points, roi, (2, 3, 2), 0, 4).items():
            some = features[rows]
            wanted[(g, *cell)] = some.amax(0) if mode == "max" else some.mean(0)
    inputs = [one.to(device) for one in (rois, points, features)]
    found = mmcv_ops.RoIAwarePool3d((2, 3, 2), 5, mode)(*inputs)
    assert torch.allclose(found.cpu(), wanted, atol=1e-6) and wanted.any()
    assert mmcv_ops.RoIAwarePool3d(2)(*inputs).shape == (4, 2, 2, 2, 3)
