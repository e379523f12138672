# SPDX-License-Identifier: Apache-2.0
"""Stands for `pcdet.ops.iou3d_nms.iou3d_nms_cuda`."""

import torchvox
from torchvox.compat._shared import rotated_iou, writes

__all__ = [
    "boxes_aligned_iou_bev_cpu", "boxes_aligned_overlap_bev_gpu", "boxes_iou_bev_cpu",
    "boxes_iou_bev_gpu", "boxes_overlap_bev_gpu", "nms_gpu", "nms_normal_gpu",
    "paired_boxes_overlap_bev_gpu",
]  # fmt: skip
DIFFERS = {
    "boxes_iou_bev_gpu": "Overlaps are exact.",
    "boxes_overlap_bev_gpu": "Overlaps are exact.",
    "nms_gpu": "Overlaps are exact.",
    "paired_boxes_overlap_bev_gpu": "Overlaps are exact.",
}


@writes("ans_overlap")
def boxes_overlap_bev_gpu(boxes_a, boxes_b):
    """[N, M] square meters."""
    return rotated_iou(boxes_a, boxes_b, metric="overlap")


@writes("ans_iou")
def boxes_iou_bev_gpu(boxes_a, boxes_b):
    """[N, M]."""
    return rotated_iou(boxes_a, boxes_b)


@writes("ans_overlap")
def paired_boxes_overlap_bev_gpu(boxes_a, boxes_b):
    """[N, 1] square meters."""
    return rotated_iou(boxes_a, boxes_b, metric="overlap", paired=True)[:, None]


@writes("ans_iou")
def boxes_aligned_iou_bev_cpu(boxes_a, boxes_b):
    """[N, 1]."""
    return rotated_iou(boxes_a, boxes_b, paired=True)[:, None]


def nms_gpu(boxes, keep, nms_overlap_thresh, /):
    """boxes: best first. keep: int64 on the CPU. The count, which is one read of the device."""
    scores = boxes.new_zeros(1, len(boxes))  # equal ones come by index
    index, count = torchvox.rotated_nms(
        boxes[None].float(), scores.float(), nms_overlap_thresh, len(boxes)
    )
    kept = int(count)
    keep[:kept] = index[0, :kept]
    return kept


def nms_normal_gpu(boxes, keep, nms_overlap_thresh, /):
    """As if no box were turned."""
    straight = boxes.clone()
    straight[:, 6] = 0
    return nms_gpu(straight, keep, nms_overlap_thresh)


boxes_iou_bev_cpu, boxes_aligned_overlap_bev_gpu = boxes_iou_bev_gpu, paired_boxes_overlap_bev_gpu
