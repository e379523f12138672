# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.iou3d_nms.iou3d_nms_utils`, on every device."""

import numpy as np
import torch

from torchvox.compat._mmcv_boxes import boxes_iou3d as boxes_iou3d_gpu
from torchvox.compat._mmcv_boxes import nms3d, nms3d_normal
from torchvox.compat._shared import paired_iou, rotated_iou

__all__ = [
    "boxes_aligned_iou3d_gpu", "boxes_bev_iou_cpu", "boxes_iou3d_gpu", "boxes_iou_bev", "nms_gpu",
    "nms_normal_gpu", "paired_boxes_iou3d_gpu",
]  # fmt: skip
DIFFERS = {
    "boxes_iou3d_gpu": "Overlaps are exact, and the area has gradients too.",
    "boxes_iou_bev": "Overlaps are exact.",
    "nms_gpu": "Overlaps are exact.",
}


def boxes_bev_iou_cpu(boxes_a, boxes_b):
    """[N, M]; arrays give an array."""
    iou = boxes_iou_bev(*(torch.as_tensor(boxes).float() for boxes in (boxes_a, boxes_b)))
    return iou.numpy() if isinstance(boxes_b, np.ndarray) else iou


def boxes_iou_bev(boxes_a, boxes_b):
    """[N, M]."""
    return rotated_iou(boxes_a.detach(), boxes_b.detach())


def boxes_aligned_iou3d_gpu(boxes_a, boxes_b):
    """[N, 1]."""
    return paired_iou(boxes_a, boxes_b, mode="3d")


def nms_gpu(boxes, scores, thresh, pre_maxsize=None, **kwargs):
    """(int64 indices of the kept boxes, best first, None)."""
    order = scores.sort(descending=True, stable=True)[1][:pre_maxsize]
    return order[nms3d(boxes[order], scores[order], thresh)], None


def nms_normal_gpu(boxes, scores, thresh, **kwargs):
    """`nms_gpu` of boxes with yaw 0."""
    return nms3d_normal(boxes, scores, thresh), None


paired_boxes_iou3d_gpu = boxes_aligned_iou3d_gpu
