# SPDX-License-Identifier: Apache-2.0
"""What must fit together in the configuration of a detector."""

from typing import Sequence, Tuple, Union

import torch

from torchvox.models.detection.config import (
    CenterPointPillarsConfig,
    MultiHeadConfig,
    PointPillarsConfig,
)
from torchvox.models.detection.constraints import check_numbers, require

Detector = Union[PointPillarsConfig, CenterPointPillarsConfig]
CODES = (7, 8, 9, 10)


def one_of(value: str, known: Sequence[str], name: str) -> None:
    require(value in known, f"{name} must be one of {', '.join(known)}, got {value!r}")


def check(config: Detector) -> None:
    """Raises ValueError for what would fail later, or fit nothing."""
    classes = config.classes
    require(len(classes) > 0, "classes must name at least one class")
    require(len(set(classes)) == len(classes), f"classes must differ, got {list(classes)}")
    require(config.columns >= 3, f"columns counts x, y and z too: at least 3, got {config.columns}")
    check_numbers(config)
    one_of(config.order, ("first", "zyx", "xyz"), "order")
    _check_scale(config)
    encoder = config.encoder
    one_of(encoder.pad_semantics, ("reference", "none"), "encoder.pad_semantics")
    require(
        encoder.center_axes in (2, 3),
        f"encoder.center_axes must be 2 or 3, got {encoder.center_axes}",
    )
    widths = list(encoder.channels)
    require(len(widths) > 0, "encoder.channels must name at least one layer")
    require(
        all(width % 2 == 0 for width in widths[:-1]),
        f"encoder.channels before the last must be even, got {widths}",
    )
    backbone, neck = config.backbone, config.neck
    require(
        len(backbone.layers) == len(backbone.strides) == len(backbone.channels) > 0,
        "backbone must have as many layers as strides and channels",
    )
    require(
        len(neck.strides) == len(neck.channels) == len(backbone.channels),
        "neck must have one stride and one width per block of the backbone",
    )
    one_of(neck.stride_one, ("transposed", "conv"), "neck.stride_one")
    map_size(config)
    _check_head(config)
    _check_detections(config)


def stride_of(config: Detector) -> int:
    """Cells of the canvas that a cell of the last map stands for, along each axis."""
    strides, reached = [], 1
    for down, up in zip(config.backbone.strides, config.neck.strides, strict=True):
        reached *= down
        strides.append(reached / up)
    require(
        all(s == strides[0] and s == round(s) for s in strides),
        f"neck.strides must bring all maps to one size, got strides {strides} of the canvas",
    )
    return round(strides[0])


def map_size(config: Detector) -> Tuple[int, int]:
    """(nx, ny) of the last map."""
    nx, ny, nz = torch.ops.torchvox.grid_size(
        list(config.pillar_size), list(config.point_cloud_range)
    )
    require(nz == 1, f"pillar_size must span the height of the range, got {nz} cells of it")
    deepest = 1
    for stride in config.backbone.strides:
        deepest *= stride
    require(
        nx % deepest == 0 and ny % deepest == 0,
        f"the grid must have a multiple of {deepest} cells along x and y, got {nx} by {ny}",
    )
    stride = stride_of(config)
    require(
        nx % stride == 0 and ny % stride == 0,
        f"the grid must have a multiple of {stride} cells along x and y, got {nx} by {ny}",
    )
    return nx // stride, ny // stride


def _check_scale(config: Detector) -> None:
    scale = config.column_scale
    require(
        len(scale) in (0, config.columns),
        f"column_scale must have one factor per column, {config.columns}, got {list(scale)}",
    )
    require(
        all(factor == 1.0 for factor in scale[:3]),
        "column_scale must be 1 for x, y and z, which are meters",
    )


def _check_head(config: Detector) -> None:
    head = config.head
    if isinstance(config, CenterPointPillarsConfig):
        one_of(config.head.rot, ("cos_sin", "sin_cos"), "head.rot")
        _check_tasks(config.classes, config.head.tasks)
        return
    require(
        len(head.anchors) == len(config.classes),
        f"head.anchors must have one entry per class, {len(config.classes)}, got "
        f"{len(head.anchors)}",
    )
    require(head.code_size in CODES, f"head.code_size must be one of {CODES}, got {head.code_size}")
    one_of(head.grid, ("ends", "centers"), "head.grid")
    require(len(head.area) in (0, 4), "head.area must be x0, y0, x1, y1")
    if isinstance(head, MultiHeadConfig):
        _check_tasks(config.classes, head.tasks)
        total = sum(head.branches.values())
        require(
            total == head.code_size,
            f"head.branches must add up to code_size, {head.code_size}, got {total}",
        )
        require(
            head.direction is None, "head.direction must be absent with tasks: the code has the yaw"
        )


def _check_tasks(classes: Sequence[str], tasks: Sequence[Sequence[str]]) -> None:
    named = [name for names in tasks for name in names]
    require(
        sorted(named) == sorted(classes),
        f"head.tasks must name every class once, got {named} for {list(classes)}",
    )


def _check_detections(config: Detector) -> None:
    detections = config.detections
    one_of(detections.mode, ("rotated", "circle"), "detections.mode")
    one_of(detections.group, ("none", "class", "task"), "detections.group")
    one_of(detections.box_format, ("lwh", "wlh_clockwise"), "detections.box_format")
    centers = isinstance(config, CenterPointPillarsConfig)
    for name, meant in (("center_range", centers), ("best_class", centers)):
        require(meant or not getattr(detections, name), f"detections.{name} is for heat maps alone")
    require(not (centers and detections.shared_pre), "detections.shared_pre is for anchors alone")
    require(
        not detections.shared_pre or detections.group == "class",
        f"detections.group must be class with shared_pre, got {detections.group!r}",
    )
    require(
        not detections.best_class or detections.group != "class",
        "detections.group must be none or task with best_class, got 'class'",
    )
    require(len(detections.center_range) in (0, 6), "detections.center_range must have 6 values")
    tasks = getattr(config.head, "tasks", ((),))
    groups = {"none": 1, "class": len(config.classes), "task": len(tasks)}[detections.group]
    require(
        len(detections.nms) in (1, groups),
        f"detections.nms must have one threshold, or one per group, {groups}, "
        f"got {len(detections.nms)}",
    )
