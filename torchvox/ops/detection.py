# SPDX-License-Identifier: Apache-2.0
"""Boxes from the maps of a detection head."""

from typing import Dict, NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import NmsMode, Sequence
from torchvox.ops.conventions import Options, options_of

__all__ = ["Detections", "anchor_decode_nms", "box_decode", "center_decode_nms"]


# docs/detection.md says what the options mean.
_ANCHORS = dict(
    group="none", shared_pre=False, global_post=False, closed=True, dir_limit=0.0, dir_flip=False
)
_MMDET3D = {**_ANCHORS, "group": "class", "shared_pre": True, "global_post": True, "closed": False}
ANCHOR_DECODE_NMS_CONVENTIONS: Dict[str, Options] = {
    "torchvox": _ANCHORS,
    "openpcdet": _ANCHORS,
    "openpcdet_multihead": {**_ANCHORS, "group": "class"},
    "mmdet3d": _MMDET3D,
    "mmdet3d_0": {**_MMDET3D, "dir_limit": 1.0},  # before 1.0
    "zhulf0804": {**_MMDET3D, "dir_limit": 1.0, "dir_flip": True},
}
_CENTERS = dict(
    group="task", global_post=False, best_class=False, closed=False, rot_order="sin_cos"
)
CENTER_DECODE_NMS_CONVENTIONS: Dict[str, Options] = {
    "torchvox": _CENTERS,
    "openpcdet": {**_CENTERS, "rot_order": "cos_sin"},
    "mmdet3d": _CENTERS,
    "mmdet3d_0": _CENTERS,
    "det3d": {**_CENTERS, "best_class": True},
}


class Detections(NamedTuple):
    """Result of `anchor_decode_nms` and `center_decode_nms`, for K boxes per sample.

    boxes: [B, K, 7 or 9] float32; 0 past the count.
    scores: [B, K] float32; 0 past the count.
    labels: [B, K] int32; -1 past the count.
    count: [B] int32, boxes found.
    overflow: [B] int32, candidates beyond `pre`.
    """

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
    convention: str = "torchvox",
) -> Tensor:
    """Boxes from the regression output of an anchor head (the residual code of SECOND and
    PointPillars).

    deltas: [.., D] float16, bfloat16 or float32: dx, dy, dz, dl, dw, dh, dyaw (D = 7), the angle as
        cos, sin (D = 8), a velocity behind either (D = 9, 10).
    anchors: [.., 7] float32, (x, y, z of the center, l, w, h, yaw) in meters and radians; its
        leading dimensions are those of deltas, or the last of them.
    direction: [.., bins] of the dtype of deltas, logits of the direction classifier. The angle is
        brought into [offset - limit * period, .. + period), period = 2 pi / bins, and gets the
        number of the greatest bin times the period added.
    convention: of `anchor_decode_nms`. The limit is 1 for "mmdet3d_0" and "zhulf0804", else 0; the
        bins of "zhulf0804" count downwards.

    Returns [.., 7], or [.., 9] with a velocity, float32: x, y from the anchor's diagonal, z from
    its height, exponentials of sizes. For inference: raises NotImplementedError when an input
    requires a gradient (outside torch.no_grad()).
    Raises ValueError (shapes) and TypeError (dtypes).
    """
    options = options_of("box_decode", ANCHOR_DECODE_NMS_CONVENTIONS, convention)
    return torch.ops.torchvox.box_decode(
        deltas,
        anchors,
        direction=direction,
        dir_offset=dir_offset,
        dir_limit=options["dir_limit"],
        dir_flip=options["dir_flip"],
    )


def anchor_decode_nms(
    cls: Sequence[Tensor],
    box: Sequence[Tensor],
    direction: Optional[Sequence[Tensor]],
    anchors: Sequence[Tensor],
    score_threshold: float,
    nms_threshold: Sequence[float],
    pre: int,
    post: int,
    *,
    dir_offset: float = 0.0,
    class_labels: Optional[Sequence[int]] = None,
    nms: NmsMode = "rotated",
    convention: str = "torchvox",
) -> Detections:
    """Detections of anchor heads: scores, the best candidates, their boxes, NMS.

    cls, box, direction, anchors: one tensor per head (1 to 8). Maps are read where they lie, with
        any strides: slices of one convolution's output, channels last or not. All float16, bfloat16
        or float32, of one dtype.
        cls: [B, A * C, H, W] logits, channel a * C + c. box: [B, A * D, H, W], D as in
        `box_decode`. direction: [B, A * bins, H, W] each, or None. anchors: [H, W, A, 7] float32.
    score_threshold: of sigmoid(logit).
    pre: candidates of a sample and group that go into NMS, by score, then (head, class, y, x, a).
    post: most detections of a group, or of a sample where the convention says so.
    nms_threshold: [t], or one per group. nms: "rotated", a box goes when its BEV IoU with a better
        one that stays exceeds t; "circle", when the squared distance of the centers is at most t.
    dir_offset: as in `box_decode`.
    class_labels: label of each class, classes of all heads numbered through. None: the numbers.
    convention: "torchvox", "openpcdet": a box has its best class, all boxes are one group, scores
        at the threshold pass. "openpcdet_multihead": one group per class, a box may be in several.
        "mmdet3d", "mmdet3d_0" (before 1.0), "zhulf0804": the `pre` boxes of a sample by their best
        class, then one group per class and the best `post` of them all; scores must exceed the
        threshold. The directions: see `box_decode`.

    Returns `Detections`, K = post, times the groups unless post is of a sample. Rows: group by
    group in order of score, or of all groups. Logits and boxes that are not finite are dropped. For
    inference, as `box_decode`.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    options = options_of("anchor_decode_nms", ANCHOR_DECODE_NMS_CONVENTIONS, convention)
    boxes, scores, labels, count, overflow = torch.ops.torchvox.anchor_decode_nms(
        cls,
        box,
        direction,
        anchors,
        score_threshold,
        nms_threshold,
        pre,
        post,
        dir_offset=dir_offset,
        class_labels=class_labels,
        nms=nms,
        **options,
    )
    return Detections(boxes, scores, labels, count, overflow)


def center_decode_nms(
    heatmap: Sequence[Tensor],
    offset: Sequence[Tensor],
    z: Sequence[Tensor],
    dim: Sequence[Tensor],
    rot: Sequence[Tensor],
    vel: Optional[Sequence[Tensor]],
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    stride: int,
    score_threshold: float,
    nms_threshold: Sequence[float],
    pre: int,
    post: int,
    *,
    post_range: Optional[Sequence[float]] = None,
    class_labels: Optional[Sequence[int]] = None,
    nms: NmsMode = "rotated",
    convention: str = "torchvox",
) -> Detections:
    """Detections of center heads (CenterPoint): scores, the best cells, their boxes, NMS.

    heatmap, offset, z, dim, rot, vel: one map per task (1 to 8), read where it lies, with any
        strides, all float16, bfloat16 or float32, of one dtype. heatmap: [B, C, H, W] logits, one
        channel per class. offset [B, 2, H, W] in cells, z [B, 1, H, W], dim [B, 3, H, W] logarithms
        of l, w, h, rot [B, 2, H, W] sine and cosine, vel [B, 2, H, W] each, or None.
    voxel_size, point_cloud_range: of the grid, in meters. stride: voxels per cell. The center is
        (cell + offset) * stride * voxel_size + lower bound.
    post_range: (x0, y0, z0, x1, y1, z1), bounds included; candidates, of the `pre` best, with a
        center outside are dropped. None: none are.
    pre, post, thresholds, labels and nms: as in `anchor_decode_nms`; ties go to the lower
        (task, class, y, x).
    convention: one group per task, scores exceed the threshold. "torchvox", "mmdet3d", "mmdet3d_0"
        (before 1.0): a cell may appear once per class. "openpcdet": the same, rot is cosine and
        sine. "det3d": a cell appears only with its best class.

    Returns `Detections` as `anchor_decode_nms`, boxes with 9 values if there are velocities.
    """
    options = options_of("center_decode_nms", CENTER_DECODE_NMS_CONVENTIONS, convention)
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
        post_range=post_range,
        class_labels=class_labels,
        nms=nms,
        **options,
    )
    return Detections(boxes, scores, labels, count, overflow)
