# SPDX-License-Identifier: Apache-2.0
"""Adapters for mmcv's rotated boxes on a GPU; on the CPU it takes seconds a call. Its bird's-eye
ops take x, y, dx, dy, yaw, which are cut out before the call; its points_in_boxes ops take the
bottom of a box for its z."""

from functools import partial

import torch

from benchmarks.boxes import (
    InsideCase,
    IouCase,
    NmsCase,
    compare_inside,
    compare_iou,
    compare_kept,
)
from benchmarks.suite import Implementation, NotApplicable, Outputs, UpstreamLibrary

BEV = [0, 1, 3, 4, 6]
MARGIN_TOLERANCE = 2e-2  # of an IoU of its iou3d ops, to which 1 cm outside a box is inside


def iou(case: IouCase, outputs: Outputs) -> Implementation:
    """box_iou_rotated."""
    case.only_on("cuda")
    if case.mode != "bev":
        raise NotApplicable
    from mmcv.ops import box_iou_rotated

    a, b = (boxes[:, BEV].contiguous() for boxes in (case.a, case.b))
    check = partial(compare_iou, outputs)
    return Implementation("mmcv", partial(box_iou_rotated, a, b), check, True)


def iou_3d(case: IouCase, outputs: Outputs) -> Implementation:
    """boxes_iou3d."""
    case.only_on("cuda")
    if case.mode != "3d":
        raise NotApplicable
    from mmcv.ops import boxes_iou3d

    check = partial(compare_iou, outputs, tolerance=MARGIN_TOLERANCE)
    return Implementation("mmcv", partial(boxes_iou3d, case.a, case.b), check, True)


def nms(case: NmsCase, outputs: Outputs) -> Implementation:
    """nms_rotated, sample by sample. It waits for the GPU."""
    case.only_on("cuda")
    from mmcv.ops import nms_rotated

    samples = list(zip(case.boxes[..., BEV].contiguous(), case.scores, strict=True))

    def call() -> list[torch.Tensor]:
        return [nms_rotated(boxes, scores, case.threshold)[1] for boxes, scores in samples]

    return Implementation("mmcv nms_rotated", call, partial(compare_kept, case, outputs))


def nms_3d(case: NmsCase, outputs: Outputs) -> Implementation:
    """nms3d, sample by sample. It waits for the GPU."""
    case.only_on("cuda")
    from mmcv.ops import nms3d

    def call() -> list[torch.Tensor]:
        pairs = zip(case.boxes, case.scores, strict=True)
        return [nms3d(boxes, scores, case.threshold) for boxes, scores in pairs]

    return Implementation("mmcv nms3d", call, partial(compare_kept, case, outputs))


def inside(case: InsideCase, outputs: Outputs) -> Implementation:
    """points_in_boxes_part for the index of a box, points_in_boxes_all for the mask, which it
    gives point by point as int32."""
    case.only_on("cuda")
    from mmcv.ops import points_in_boxes_all, points_in_boxes_part

    boxes = case.boxes.clone()
    boxes[..., 2] -= boxes[..., 5] / 2
    calls = {"index": points_in_boxes_part, "mask": points_in_boxes_all}
    if case.mode not in calls:
        raise NotApplicable

    def check(found: torch.Tensor) -> str:
        return compare_inside(outputs, found.mT.bool() if case.mode == "mask" else found)

    return Implementation("mmcv", partial(calls[case.mode], case.points, boxes), check, True)


UPSTREAM = [
    UpstreamLibrary("mmcv", "rotated_iou", iou),
    UpstreamLibrary("mmcv", "rotated_iou", iou_3d),
    UpstreamLibrary("mmcv", "rotated_nms", nms),
    UpstreamLibrary("mmcv", "rotated_nms", nms_3d),
    UpstreamLibrary("mmcv", "points_in_boxes", inside),
]
