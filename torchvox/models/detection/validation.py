# SPDX-License-Identifier: Apache-2.0
"""What the numbers in the configuration of a detector may be, and what must fit together."""

import dataclasses
import math
from typing import Any, Sequence, Tuple, Union

import torch
from torch import nn

from torchvox.models.detection.config import (
    CenterHeadConfig,
    CenterPointPillarsConfig,
    DetectionsConfig,
    MultiHeadConfig,
    PointPillarsConfig,
)

Detector = Union[PointPillarsConfig, CenterPointPillarsConfig]
CODES = (7, 8, 9, 10)
MOST_BINS, MOST_CLASSES, MOST_TASKS = 64, 64, 8  # of the ops that decode
LIMIT = 2**31


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
    if isinstance(head, CenterHeadConfig):
        one_of(head.rot, ("cos_sin", "sin_cos"), "head.rot")
        _check_tasks(config.classes, head.tasks)
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


# ---------------------------------------------------------------------------------- numbers


def require(good: bool, sentence: str) -> None:
    if not good:
        raise ValueError(sentence)


def check_numbers(config: Any) -> None:
    """Raises ValueError that names the first field of which a number is out of its range."""
    check_finite(config, "")
    above("pillar_size", config.pillar_size)
    ordered("point_cloud_range", config.point_cloud_range)
    for name, values in (("max_points", [config.max_points]), ("max_pillars", config.max_pillars)):
        good = all(v == -1 or 0 < v < LIMIT for v in values)
        require(good, f"{name} must be above 0 and below 2^31, or -1, got {list(values)}")
    backbone, neck, head = config.backbone, config.neck, config.head
    above("encoder.channels", config.encoder.channels)
    for name in ("channels", "strides"):
        above(f"backbone.{name}", getattr(backbone, name))
        above(f"neck.{name}", getattr(neck, name))
    least("backbone.layers", backbone.layers, 0)
    whole = all(float(max(s, 1 / s)).is_integer() for s in neck.strides)
    require(whole, f"neck.strides must be n or 1 / n each, got {list(neck.strides)}")
    for name, part in (("encoder", config.encoder), ("backbone", backbone), ("neck", neck)):
        _check_norm(name, part.eps, part.momentum)
    require(
        len(config.classes) <= MOST_CLASSES,
        f"classes must be at most {MOST_CLASSES}, got {len(config.classes)}",
    )
    if hasattr(head, "tasks"):
        _check_task_sizes(head)
    if hasattr(head, "anchors"):
        _check_anchors(head)
    _check_selection(config.detections)


def check_finite(value: Any, name: str) -> None:
    """Every number but the bounds of center_range, which may be open."""
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            inner = f"{name}.{one.name}" if name else one.name
            if one.name != "center_range":
                check_finite(getattr(value, one.name), inner)
    elif isinstance(value, tuple):
        for one in value:
            check_finite(one, name)
    elif isinstance(value, float):
        require(math.isfinite(value), f"{name} must be finite, got {value}")


def least(name: str, values: Sequence[float], bound: float) -> None:
    good = all(v >= bound for v in values)
    require(good, f"{name} must be at least {bound}, got {list(values)}")


def above(name: str, values: Sequence[float]) -> None:
    require(all(v > 0 for v in values), f"{name} must be above 0, got {list(values)}")


def ordered(name: str, bounds: Sequence[float]) -> None:
    """bounds: lower ones, then upper ones; nothing is in order too."""
    half = len(bounds) // 2
    pairs = zip(bounds[:half], bounds[half:])  # noqa: B905 (lengths are checked below)
    good = all(low < high for low, high in pairs)
    require(good, f"{name} must have each lower bound below its upper bound, got {list(bounds)}")


def _check_norm(name: str, eps: float, momentum: float) -> None:
    above(f"{name}.eps", [eps])
    require(0 <= momentum <= 1, f"{name}.momentum must be from 0 to 1, got {momentum}")


def _check_task_sizes(head: Any) -> None:
    tasks = [list(names) for names in head.tasks]
    require(
        0 < len(tasks) <= MOST_TASKS and all(tasks),
        f"head.tasks must be 1 to {MOST_TASKS} with a class at least, got {tasks}",
    )
    above("head.shared", [head.shared])
    above("head.width", [head.width])
    least("head.convs", [head.convs], 0)
    _check_norm("head", head.eps, head.momentum)
    if isinstance(head, MultiHeadConfig):
        above("head.shared_eps", [head.shared_eps])
        for name, width in head.branches.items():
            # They stand beside the scores, as modules by name.
            free = name.isidentifier() and name != "cls" and not hasattr(nn.ModuleDict, name)
            require(free, f"head.branches cannot name a branch {name!r}")
            above(f"head.branches.{name}", [width])


def _check_anchors(head: Any) -> None:
    for i, anchor in enumerate(head.anchors):
        above(f"head.anchors.{i}.size", anchor.size)
        require(len(anchor.rotations) > 0, f"head.anchors.{i}.rotations must hold one at least")
    ordered("head.area", head.area)
    if head.direction is not None:
        bins = head.direction.bins
        require(
            0 <= bins <= MOST_BINS, f"head.direction.bins must be from 0 to {MOST_BINS}, got {bins}"
        )


def _check_selection(detections: DetectionsConfig) -> None:
    require(
        0 <= detections.score <= 1, f"detections.score must be from 0 to 1, got {detections.score}"
    )
    least("detections.nms", detections.nms, 0)
    for name, size in (("pre", detections.pre), ("post", detections.post)):
        require(0 < size < LIMIT, f"detections.{name} must be above 0 and below 2^31, got {size}")
    ordered("detections.center_range", detections.center_range)
