# SPDX-License-Identifier: Apache-2.0
"""Targets of detection heads, of anchors and of centers, and the loss of anchors."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import AssignMode, Sequence

__all__ = ["AnchorTargets", "CenterTargets", "anchor_loss", "anchor_targets", "center_targets"]


class AnchorTargets(NamedTuple):
    """Result of `anchor_targets`.

    assigned: [B, H, W, A] int32, the box of each anchor; -1 background, -2 ignored.
    num_pos: [B] int32, anchors with a box.
    """

    assigned: Tensor
    num_pos: Tensor


class CenterTargets(NamedTuple):
    """Result of `center_targets`, for M slots of each task.

    heatmap: [B, classes, H, W] float32, 1 at centers; -1 where there is no loss.
    cell: [B, tasks, M] int32, y * W + x; -1 past the count.
    box: [B, tasks, M] int32, the row of boxes; -1 past the count.
    count: [B, tasks] int32, slots in use.
    """

    heatmap: Tensor
    cell: Tensor
    box: Tensor
    count: Tensor


def anchor_targets(
    boxes: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],
    num_boxes: Optional[Tensor],
    anchors: Tensor,
    class_of_anchor: Sequence[int],
    matched: Sequence[float],
    unmatched: Sequence[float],
    *,
    mode: AssignMode = "pcdet",
    min_pos: Optional[Sequence[float]] = None,
) -> AnchorTargets:
    """Assigns a box, or background, to each anchor of a head.

    boxes: [B, G, 7] float32, 7 columns or more: x, y, z of the center, l, w, h in meters, yaw in
        radians. labels: [B, G] int32 or int64, below 0 where there is no box. weight: [B, G]
        float32; a box whose weight is not above 0 is ignored: it produces no loss, neither as
        object nor as background. None: all count. num_boxes: [B] int32 or int64, boxes that exist,
        clamped. None: G.
    anchors: [H, W, A, 7] float32, A <= 64.
    class_of_anchor: label of the boxes that each of the A anchors of a cell meets, -1 for all.
    matched, unmatched: overlaps, one of each anchor of a cell, > 0: from `matched` on an anchor is
        positive, below `unmatched` it is background, between them it is ignored.
    mode: which anchors are forced. "pcdet" (OpenPCDet): every anchor that has the best overlap that
        a box has with any, with the box that overlaps that anchor most. "mmdet" (mmdetection3d):
        where that overlap is at least min_pos, with the box that forces, the last one of several.
    min_pos: A numbers >= 0 for "mmdet"; None: unmatched.

    The overlap is the IoU seen from above, boxes turned to the nearest axis. Returns
    `AnchorTargets`. Where the box of the best overlap is ignored, the first one of equals, the
    anchor is -2. Boxes with l or w <= 0 or a value that is not finite overlap nothing and are never
    forced. No matrix of overlaps is stored. Not differentiable. Under autocast halves are widened
    to float32.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    Sources: OpenPCDet AxisAlignedTargetAssigner, mmdetection Max3DIoUAssigner.
    """
    assigned, num_pos = torch.ops.torchvox.anchor_targets(
        boxes,
        labels,
        weight,
        num_boxes,
        anchors,
        class_of_anchor,
        matched,
        unmatched,
        mode=mode,
        min_pos=min_pos,
    )
    return AnchorTargets(assigned, num_pos)


def center_targets(
    boxes: Tensor,
    labels: Tensor,
    weight: Optional[Tensor],
    num_boxes: Optional[Tensor],
    point_cloud_range: Sequence[float],
    pillar_size: Sequence[float],
    cells: int,
    size: Sequence[int],
    task_of_class: Sequence[int],
    *,
    max_objects: int = 500,
    overlap: float = 0.1,
    min_radius: int = 2,
) -> CenterTargets:
    """Heat maps of box centers, and the cells with a box to regress (CenterPoint).

    boxes, labels, weight, num_boxes: as in `anchor_targets`.
    point_cloud_range, pillar_size: of the grid, in meters. cells: pillars along an edge of a cell
        of the maps, the stride of the head. size: (H, W) of the maps. The cell of a center is
        (x - lower bound) / pillar_size / cells, cut to a whole number; centers outside the maps
        are left out, and so are boxes with l or w <= 0.
    task_of_class: the task of each class, labels from 0; up to 64 classes.
    max_objects: M, boxes of a task that get a slot, the first of each sample; the others are left
        out.
    overlap: of the two boxes by which the radius of a Gaussian is chosen, in [0, 1). min_radius: in
        cells.

    Returns `CenterTargets`. heatmap: the largest exp(-d^2 / (2 s^2)) of the objects of a class
    within 2 r + 1 cells, s = (2 r + 1) / 6, exactly 1 at centers; -1 where that of an ignored box
    is larger (no loss). Ignored boxes take no slot. Not differentiable. Under autocast halves are
    widened to float32.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    Sources: Yin et al., CenterPoint, CVPR 2021; Law and Deng, CornerNet, ECCV 2018 (the radius).
    """
    heatmap, cell, box, count = torch.ops.torchvox.center_targets(
        boxes,
        labels,
        weight,
        num_boxes,
        point_cloud_range,
        pillar_size,
        cells,
        size,
        task_of_class,
        max_objects=max_objects,
        overlap=overlap,
        min_radius=min_radius,
    )
    return CenterTargets(heatmap, cell, box, count)


def anchor_loss(
    cls: Tensor,
    box: Tensor,
    direction: Optional[Tensor],
    anchors: Tensor,
    boxes: Tensor,
    labels: Tensor,
    assigned: Tensor,
    *,
    dir_offset: float = 0.0,
    dir_limit: float = 0.0,
    code_weights: Optional[Sequence[float]] = None,
    beta: float = 0.1111111111111111,
    negative_weight: float = 1.0,
    mode: AssignMode = "pcdet",
) -> Tensor:
    """The three terms of an anchor head's loss, summed over the anchors of each sample.

    cls, box, direction: maps of one dtype, float16, bfloat16, float32 or float64, with any strides:
        [B, A * n, H, W], channel a * n + k, or [B, H, W, A, n]. cls: n classes, logits. box: n = 7
        to 10 residuals as `box_decode` reads them. direction: n = 2 logits, or None.
    anchors, boxes, labels: as in `anchor_targets`; boxes with 9 columns, vx and vy last, where box
        has velocities (n = 9, 10). assigned: of `anchor_targets`. Labels count the classes of cls.
    dir_offset, dir_limit: the bin is floor(v / pi), 0 or 1, of the yaw less the offset, brought
        into [-limit, 1 - limit) times 2 pi.
    code_weights: one of each residual; None: 1. mode: "pcdet" multiplies them onto differences,
        "mmdet" onto losses.
    beta: where smooth L1 turns from a square to a line; 0 is plain L1.
    negative_weight: of the class term of background anchors.

    Returns [B, 3], float64 of float64 maps, else float32:
        classes: focal loss, alpha .25, gamma 2, over every class of anchors that are not ignored;
        boxes: smooth L1 of positive anchors; with directions and one value for the angle, of the
            sine of its difference; an unknown (NaN) velocity is ignored;
        directions: cross entropy of positive anchors, 0 without a map.
    Neither weighted nor divided: a loss is 1, 2 and .2 times these (SECOND) over max(1, num_pos).

    Differentiable in the maps, once; gradients have the layout of their maps. Terms are computed in
    float32, of float64 maps in float64, and summed in float64 in one fixed order: CPU and CUDA give
    the same bits in every run. Under autocast maps are widened to one dtype that holds all.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    Sources: Lin et al., RetinaNet, ICCV 2017; Yan et al., SECOND, Sensors 2018.
    """
    return torch.ops.torchvox.anchor_loss(
        cls,
        box,
        direction,
        anchors,
        boxes,
        labels,
        assigned,
        dir_offset=dir_offset,
        dir_limit=dir_limit,
        code_weights=code_weights,
        beta=beta,
        negative_weight=negative_weight,
        mode=mode,
    )
