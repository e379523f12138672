# SPDX-License-Identifier: Apache-2.0
"""From the maps of a detection head to boxes."""

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor

__all__ = [
    "Detections",
    "anchor_decode_nms",
    "box_decode",
    "center_decode_nms",
]


class Detections(NamedTuple):
    boxes: Tensor
    scores: Tensor
    labels: Tensor
    count: Tensor
    overflow: Tensor


def box_decode(
    deltas: Tensor,
    anchors: Tensor,
    *,
    direction: Optional[Tensor] = None,
    dir_offset: float = 0.0,
    dir_limit: float = 0.0,
    dir_flip: bool = False,
) -> Tensor:
    """Boxes of what an anchor head regresses (the residual code of SECOND and PointPillars).

    deltas: [.., D] float16, bfloat16 or float32: dx, dy, dz, dl, dw, dh, dyaw (D = 7), the angle as
        cos, sin (D = 8), a velocity behind either (D = 9, 10).
    anchors: [.., 7] float32, (x, y, z of the center, l, w, h, yaw) in meters and radians; its
        leading dimensions are those of deltas, or the last of them.
    direction: [.., bins] of the dtype of deltas, logits of the direction classifier. The angle is
        brought into [offset - limit * period, .. + period), period = 2 pi / bins, and gets the
        number of the greatest bin times the period added. dir_flip: bins count downwards.

    Returns [.., 7], or [.., 9] with a velocity, float32: x, y from the anchor's diagonal, z from
    its height, exponentials of sizes. The same bits on CPU and CUDA; no host synchronization.
    For inference: raises NotImplementedError when an input requires a gradient (outside of
    torch.no_grad()). Raises ValueError (shapes) and TypeError (dtypes).
    """
    return torch.ops.torchvox.box_decode(
        deltas,
        anchors,
        direction=direction,
        dir_offset=dir_offset,
        dir_limit=dir_limit,
        dir_flip=dir_flip,
    )


def anchor_decode_nms(
    cls: List[Tensor],
    box: List[Tensor],
    direction: Optional[List[Tensor]],
    anchors: List[Tensor],
    score_threshold: float,
    nms_threshold: List[float],
    pre: int,
    post: int,
    *,
    group: str = "none",
    shared_pre: bool = False,
    global_post: bool = False,
    closed: bool = True,
    dir_offset: float = 0.0,
    dir_limit: float = 0.0,
    dir_flip: bool = False,
    class_labels: Optional[List[int]] = None,
    nms: str = "rotated",
) -> Detections:
    """Detections of anchor heads: scores, the best candidates, their boxes, NMS.

    cls, box, direction, anchors: a tensor a head (1 to 8). Maps are read where they lie, with any
        strides: slices of one convolution's output, channels last or not. All float16, bfloat16 or
        float32, of one dtype.
        cls: [B, A * C, H, W] logits, channel a * C + c. box: [B, A * D, H, W], D as in
        `box_decode`. direction: [B, A * bins, H, W] each, or None. anchors: [H, W, A, 7]
        float32.
    score_threshold: of sigmoid(logit); closed: scores that equal it pass.
    group: "none", a box with its best class, all heads together; "task", the same, heads apart;
        "class", a box may appear once a class, classes apart.
    pre: candidates of a sample and group that go into NMS, by score, then (head, class, y, x, a).
        shared_pre, with "class": `pre` boxes of a sample by their best class.
    post: most detections of a group, and of the sample with global_post.
    nms_threshold: [t], or one a group. nms: "rotated", a box goes when its BEV IoU with a better
        one that stays exceeds t; "circle", when the squared distance of the centers is at most t.
    dir_offset, dir_limit, dir_flip: as in `box_decode`.
    class_labels: label of each class, classes of all heads numbered through. None: the numbers.

    Returns Detections(boxes [B, K, 7 or 9] float32, scores [B, K] float32, labels [B, K] int32,
    count [B] int32, overflow [B] int32), K = post, times the groups without global_post. Rows:
    group by group in order of score, with global_post of all groups; past count 0, 0 and -1.
    overflow counts the candidates beyond `pre`. Logits and boxes that are not finite are dropped.
    Deterministic, the same bits on CPU and CUDA; no host synchronization. For inference, as
    `box_decode`. Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    boxes, scores, labels, count, overflow = torch.ops.torchvox.anchor_decode_nms(
        cls,
        box,
        direction,
        anchors,
        score_threshold,
        nms_threshold,
        pre,
        post,
        group=group,
        shared_pre=shared_pre,
        global_post=global_post,
        closed=closed,
        dir_offset=dir_offset,
        dir_limit=dir_limit,
        dir_flip=dir_flip,
        class_labels=class_labels,
        nms=nms,
    )
    return Detections(boxes, scores, labels, count, overflow)


def center_decode_nms(
    heatmap: List[Tensor],
    offset: List[Tensor],
    z: List[Tensor],
    dim: List[Tensor],
    rot: List[Tensor],
    vel: Optional[List[Tensor]],
    voxel_size: List[float],
    point_cloud_range: List[float],
    stride: int,
    score_threshold: float,
    nms_threshold: List[float],
    pre: int,
    post: int,
    *,
    group: str = "task",
    global_post: bool = False,
    best_class: bool = False,
    closed: bool = False,
    post_range: Optional[List[float]] = None,
    rot_order: str = "sin_cos",
    class_labels: Optional[List[int]] = None,
    nms: str = "rotated",
) -> Detections:
    """Detections of center heads (CenterPoint): scores, the best cells, their boxes, NMS.

    heatmap, offset, z, dim, rot, vel: a map a task (1 to 8), read where it lies, with any strides,
        all float16, bfloat16 or float32, of one dtype. heatmap: [B, C, H, W] logits, a channel a
        class. offset [B, 2, H, W] in cells, z [B, 1, H, W], dim [B, 3, H, W] logarithms of l, w, h,
        rot [B, 2, H, W] in rot_order ("sin_cos" or "cos_sin"), vel [B, 2, H, W] each, or None.
    voxel_size, point_cloud_range: of the grid, in meters. stride: voxels a cell. The center is
        (cell + offset) * stride * voxel_size + lower bound.
    best_class: a candidate is a cell with its best class; else a cell may appear once a class.
    post_range: (x0, y0, z0, x1, y1, z1), bounds included; candidates, of the `pre` best, with a
        center outside are dropped. None: none are.
    group, pre, post, thresholds, labels and nms: as in `anchor_decode_nms`; ties go to the lower
        (task, class, y, x).

    Returns Detections as `anchor_decode_nms`, boxes with 9 values if there are velocities.
    """
    boxes, scores, labels, count, overflow = torch.ops.torchvox.center_decode_nms(
        heatmap,
        offset,
        z,
        dim,
        rot,
        vel,
        voxel_size,
        point_cloud_range,
        stride,
        score_threshold,
        nms_threshold,
        pre,
        post,
        group=group,
        global_post=global_post,
        best_class=best_class,
        closed=closed,
        post_range=post_range,
        rot_order=rot_order,
        class_labels=class_labels,
        nms=nms,
    )
    return Detections(boxes, scores, labels, count, overflow)
