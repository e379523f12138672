# SPDX-License-Identifier: Apache-2.0
"""Replaces `pcdet.ops.iou3d_nms.iou3d_nms_cuda`."""

from functools import partial

import torchvox
from torchvox.compat._shared import compiled, paired_iou, rotated_iou

__all__ = [
    "boxes_aligned_iou_bev_cpu", "boxes_aligned_overlap_bev_gpu", "boxes_iou_bev_cpu",
    "boxes_iou_bev_gpu", "boxes_overlap_bev_gpu", "nms_gpu", "nms_normal_gpu",
    "paired_boxes_overlap_bev_gpu",
]  # fmt: skip
DIFFERS = {
    "boxes_iou_bev_gpu boxes_overlap_bev_gpu nms_gpu paired_boxes_overlap_bev_gpu": "Overlaps are "
    "exact."
}

# Overlaps are in square meters.
boxes_iou_bev_gpu = compiled("boxes_iou_bev_gpu(boxes_a, boxes_b -> ans_iou) = 1", rotated_iou)
boxes_iou_bev_cpu = boxes_iou_bev_gpu
boxes_overlap_bev_gpu = compiled(
    "boxes_overlap_bev_gpu(boxes_a, boxes_b -> ans_overlap) = 1",
    partial(rotated_iou, metric="overlap"),
)
boxes_aligned_iou_bev_cpu = compiled(
    "boxes_aligned_iou_bev_cpu(boxes_a, boxes_b -> ans_iou) = 1", paired_iou
)
paired_boxes_overlap_bev_gpu = compiled(
    "paired_boxes_overlap_bev_gpu(boxes_a, boxes_b -> ans_overlap) = 1",
    partial(paired_iou, metric="overlap"),
)
boxes_aligned_overlap_bev_gpu = paired_boxes_overlap_bev_gpu


def nms_gpu(boxes, keep, nms_overlap_thresh, /):
    """The number of kept boxes, read from the device; `keep`, int64 on the CPU, gets their rows.
    boxes: best first."""
    scores = boxes.new_zeros(1, len(boxes))  # equal ones come by index
    index, count = torchvox.rotated_nms(
        boxes[None].float(), scores.float(), nms_overlap_thresh, len(boxes)
    )
    number = int(count)
    keep[:number] = index[0, :number]
    return number


def nms_normal_gpu(boxes, keep, nms_overlap_thresh, /):
    """`nms_gpu` of boxes with yaw 0."""
    straight = boxes.clone()
    straight[:, 6] = 0
    return nms_gpu(straight, keep, nms_overlap_thresh)
