# SPDX-License-Identifier: Apache-2.0
"""Rotated boxes of `mmcv.ops`: overlap, suppression, the points in them."""

import warnings

import numpy as np
import torch
from torch import nn

import torchvox
from torchvox.compat._errors import CompatWarning, refuse
from torchvox.compat._pooling import roiaware_pool, roipoint_pool
from torchvox.compat._shared import from_bottom, rotated_iou, widened


def points_in_boxes_part(points, boxes):
    """[B, M] int32, the first box that contains the point, or -1; z of a box is its bottom."""
    points = widened(points)
    return torchvox.points_in_boxes(points, from_bottom(boxes.to(points.dtype)))


def _mask(points, boxes):
    points = widened(points)
    mask = torchvox.points_in_boxes(points, from_bottom(boxes.to(points.dtype)), mode="mask")
    return mask.transpose(1, 2)


def points_in_boxes_all(points, boxes):
    """[B, M, T] int32, 1 where a box contains the point; z of a box is its bottom."""
    return _mask(points, boxes).to(torch.int32, memory_format=torch.contiguous_format)


def points_in_boxes_cpu(points, boxes):
    """`points_in_boxes_all` on any device, with the strides of the peer: points vary fastest."""
    return _mask(points, boxes).int()


class RoIPointPool3d(nn.Module):
    """([B, G, n, 3 + C], empty [B, G] int32): the first n points of each box, repeated cyclically;
    z of a box is its bottom."""

    def __init__(self, num_sampled_points=512):
        super().__init__()
        self.num_sampled_points = num_sampled_points

    def forward(self, points, point_features, boxes3d):
        return roipoint_pool(
            points, point_features, from_bottom(widened(boxes3d)), self.num_sampled_points
        )


class RoIAwarePool3d(nn.Module):
    """[N, x, y, z, C]: max or avg of the first max_pts_per_voxel - 1 points in each cell of each
    box; z of a box is its bottom."""

    def __init__(self, out_size, max_pts_per_voxel=128, mode="max"):
        super().__init__()
        assert mode in ("max", "avg")
        self.out_size, self.max_pts_per_voxel = out_size, max_pts_per_voxel
        self.mode = ("max", "avg").index(mode)

    def forward(self, rois, pts, pts_feature):
        options = self.out_size, self.max_pts_per_voxel, ("max", "avg")[self.mode]
        return roiaware_pool(from_bottom(widened(rois)), pts, pts_feature, *options)


def _flat(boxes, clockwise=True):
    """x y w h angle as boxes of 7 columns; z and height are not read here."""
    x, y, w, h, angle = boxes.unbind(-1)
    return torch.stack([x, y, x, w, h, w, angle if clockwise else -angle], dim=-1)


def _of_corners(boxes):
    """x1 y1 x2 y2, with or without an angle, as x y w h angle."""
    boxes = widened(boxes)
    low, high = boxes[:, :2], boxes[:, 2:4]
    angle = boxes[:, 4:5] if boxes.size(1) > 4 else torch.zeros_like(boxes[:, :1])
    return torch.cat([(low + high) / 2, high - low, angle], dim=1)


def box_iou_rotated(bboxes1, bboxes2, mode="iou", aligned=False, clockwise=True):
    """[N, M], or [N] if aligned, of x y w h angle; iof divides by the area of bboxes1."""
    assert mode in ("iou", "iof")
    a, b = (_flat(boxes.detach(), clockwise) for boxes in (bboxes1, bboxes2))
    return rotated_iou(a, b, paired=aligned, metric=mode)


def boxes_overlap_bev(boxes_a, boxes_b):
    """[M, N] areas of overlap of boxes of 7 columns, seen from above."""
    return rotated_iou(boxes_a.detach(), boxes_b.detach(), metric="overlap")


def boxes_iou3d(boxes_a, boxes_b):
    """[M, N] of boxes of 7 columns, z of the center."""
    return rotated_iou(boxes_a, boxes_b, mode="3d")


def boxes_iou_bev(boxes_a, boxes_b):
    """[M, N] of x1 y1 x2 y2 angle. Deprecated by the peer."""
    iou = box_iou_rotated(_of_corners(boxes_a), _of_corners(boxes_b))
    return iou.to(boxes_a.dtype) if boxes_a.is_floating_point() else iou


def diff_iou_rotated_2d(box1, box2):
    """[B, N] of pairs x y w h angle, differentiable."""
    return rotated_iou(_flat(box1), _flat(box2), paired=True)


def diff_iou_rotated_3d(box3d1, box3d2):
    """[B, N] of pairs of 7 columns, z of the center, differentiable."""
    return rotated_iou(box3d1, box3d2, mode="3d", paired=True)


def _kept(boxes, scores, threshold, most=None, group=None):
    """int64 rows of the kept boxes of 7 columns, best first. most: -1 or None for all."""
    max_out = len(boxes) if most is None or most < 0 else min(most, len(boxes))
    batch = boxes.detach()[None].float(), scores.detach()[None].float()
    groups = None if group is None else group[None].long()
    index, count = torchvox.rotated_nms(*batch, threshold, max_out, group=groups)
    return index[0, : int(count)].long()


def _above(scores, least):
    """Scores, with those up to `least` as -inf, which `rotated_nms` skips."""
    return scores if least <= 0 else scores.masked_fill(scores <= least, float("-inf"))


def _with_scores(boxes, scores, keep):
    return torch.cat([boxes[keep], scores[keep].reshape(-1, 1)], dim=1)


def nms(boxes, scores, iou_threshold, offset=0, score_threshold=0, max_num=-1):
    """(x1 y1 x2 y2 score [K, 5], int64 rows [K]) of the kept boxes, best first; or arrays."""
    if offset != 0:
        refuse("nms: offset=1")
    corners, rank = torch.as_tensor(boxes), torch.as_tensor(scores)
    rows = _flat(_of_corners(corners))
    keep = _kept(rows, _above(rank, score_threshold), iou_threshold, max_num or None)
    dets = _with_scores(corners, rank, keep)
    return (dets.numpy(), keep.numpy()) if isinstance(boxes, np.ndarray) else (dets, keep)


def nms_rotated(dets, scores, iou_threshold, labels=None, clockwise=True):
    """(x y w h angle score [K, 6], int64 rows [K]) of the kept boxes, best first; (dets, None)
    without boxes. labels are not read, as in the peer's kernels."""
    if labels is not None:
        words = "mmcv.ops.nms_rotated: labels are not read, as in mmcv's kernels: use batched_nms"
        warnings.warn(words, CompatWarning, stacklevel=2)
    if dets.shape[0] == 0:
        return dets, None
    keep = _kept(_flat(dets, clockwise), scores, iou_threshold)
    return _with_scores(dets, scores, keep), keep


def batched_nms(boxes, scores, idxs, nms_cfg, class_agnostic=False):
    """`nms` or `nms_rotated` by nms_cfg, within each class; without nms_cfg, all boxes by score."""
    if nms_cfg is None:
        keep = scores.sort(descending=True, stable=True).indices
        return _with_scores(boxes, scores, keep), keep
    options = {"type": "nms", "class_agnostic": class_agnostic, **nms_cfg}
    kind = getattr(options["type"], "__name__", options["type"])
    if kind not in ("nms", "nms_rotated"):
        refuse(f"batched_nms: type={kind!r}")
    if options.get("offset"):
        refuse("batched_nms: offset=1")
    rows = _of_corners(boxes) if kind == "nms" else boxes
    keep = _kept(
        _flat(rows, options.get("clockwise", True)),
        _above(scores, options.get("score_threshold", 0)),
        options["iou_threshold"] if "iou_threshold" in options else options["iou_thr"],
        options.get("max_num", -1) or None,
        None if options["class_agnostic"] else idxs,
    )
    return _with_scores(boxes, scores, keep), keep


def nms3d(boxes, scores, iou_threshold):
    """int64 rows of the kept boxes of 7 columns, best first, by their overlap from above."""
    return _kept(boxes, scores, iou_threshold)


def nms3d_normal(boxes, scores, iou_threshold):
    """`nms3d` of boxes with yaw 0."""
    straight = torch.cat([boxes[:, :6], torch.zeros_like(boxes[:, :1])], dim=1)
    return _kept(straight, scores, iou_threshold)


def nms_bev(boxes, scores, thresh, pre_max_size=None, post_max_size=None):
    """int64 rows of the kept boxes x1 y1 x2 y2 angle, among the best pre_max_size."""
    order = scores.sort(descending=True, stable=True).indices[:pre_max_size]
    return order[_kept(_flat(_of_corners(boxes[order])), scores[order], thresh, post_max_size)]


def nms_normal_bev(boxes, scores, thresh):
    """int64 rows of the kept boxes x1 y1 x2 y2 angle, with angle 0."""
    return _kept(_flat(_of_corners(boxes[:, :4])), scores, thresh)
