# SPDX-License-Identifier: Apache-2.0
"""What must fit together in the configuration of a detector."""

import math
from typing import Any, Mapping, Tuple, Type, TypeVar, Union

import torch
from torch import nn

from torchvox._values import Limits, from_plain, plain
from torchvox.models.detection.config import (
    AnchorLossConfig,
    CenterHeadConfig,
    CenterPointPillarsConfig,
    MultiHeadConfig,
    PointPillarsConfig,
)

Detector = Union[PointPillarsConfig, CenterPointPillarsConfig]
D = TypeVar("D", PointPillarsConfig, CenterPointPillarsConfig)
MOST_CLASSES, MOST_TASKS = 64, 8  # of the ops that decode
CAPS = Limits(gt=0, lt=2**31, extra=-1)
ORDERS = ("first", "zyx", "xyz")


def require(good: bool, sentence: str) -> None:
    if not good:
        raise ValueError(sentence)


def validated(kind: Type[D], values: Union[D, Mapping[str, Any]]) -> D:
    """The configuration of a detector: the one way from plain values, for classes, files and
    training. Raises ValueError that names the place, and for an unknown key the nearest one."""
    config = from_plain(kind, plain(values))
    _check_points(config)
    _check_parts(config)
    map_size(config)
    _check_head(config)
    _check_detections(config)
    _check_loss(config)
    return config


def stride_of(config: Detector) -> int:
    """Cells of the canvas that a cell of the last map stands for, along each axis."""
    strides, down = [], 1
    for stride, up in zip(config.backbone.strides, config.neck.strides, strict=True):
        down *= stride
        strides.append(down / up)
    good = all(s == strides[0] and s == round(s) for s in strides)
    require(
        good, f"neck.strides must bring all maps to one size, got strides {strides} of the canvas"
    )
    return round(strides[0])


def map_size(config: Detector) -> Tuple[int, int]:
    """(nx, ny) of the last map."""
    nx, ny, nz = torch.ops.torchvox.grid_size(
        list(config.pillar_size), list(config.point_cloud_range)
    )
    require(nz == 1, f"pillar_size must span the height of the range, got {nz} cells of it")
    stride = stride_of(config)
    for cells in (math.prod(config.backbone.strides), stride):
        good = nx % cells == 0 and ny % cells == 0
        require(
            good,
            f"the grid must have a multiple of {cells} cells along x and y, got {nx} by {ny}",
        )
    return nx // stride, ny // stride


def _check_points(config: Detector) -> None:
    """Classes, range, pillars and columns."""
    classes, scale = config.classes, config.column_scale
    require(len(classes) > 0, "classes must name at least one class")
    require(len(set(classes)) == len(classes), f"classes must differ, got {list(classes)}")
    most = f"classes must be at most {MOST_CLASSES}, got {len(classes)}"
    require(len(classes) <= MOST_CLASSES, most)
    _check_bounds(config.point_cloud_range, "point_cloud_range", 6)
    Limits(gt=0).check(config.pillar_size, "pillar_size")
    CAPS.check(config.max_points, "max_points")
    CAPS.check(config.max_pillars, "max_pillars")
    good = config.order in ORDERS
    require(good, f"order must be one of {', '.join(ORDERS)}, got {config.order!r}")
    require(config.columns >= 3, f"columns counts x, y and z too: at least 3, got {config.columns}")
    Limits().check(scale, "column_scale")
    good = len(scale) in (0, config.columns)
    require(
        good, f"column_scale must have one factor per column, {config.columns}, got {list(scale)}"
    )
    good = all(factor == 1.0 for factor in scale[:3])
    require(good, "column_scale must be 1 for x, y and z, which are meters")


def _check_bounds(bounds: Tuple[float, ...], name: str, count: int, open: bool = False) -> None:
    """Lower bounds, then upper ones, or none at all; open: they may be infinite."""
    require(len(bounds) in (0, count), f"{name} must have {count} values, got {list(bounds)}")
    if not open:
        Limits().check(bounds, name)
    half = len(bounds) // 2
    good = all(low < high for low, high in zip(bounds[:half], bounds[half:], strict=True))
    require(good, f"{name} must have each lower bound below its upper bound, got {list(bounds)}")


def _check_parts(config: Detector) -> None:
    """Encoder, visibility, backbone and neck."""
    widths, backbone, neck = list(config.encoder.channels), config.backbone, config.neck
    require(len(widths) > 0, "encoder.channels must name at least one layer")
    good = all(width % 2 == 0 for width in widths[:-1])
    require(good, f"encoder.channels before the last must be even, got {widths}")
    if config.visibility is not None:
        require(len(config.visibility.channels) > 0, "visibility.channels must name at least one")
    good = len(backbone.layers) == len(backbone.strides) == len(backbone.channels) > 0
    require(good, "backbone must have as many layers as strides and channels")
    good = len(neck.strides) == len(neck.channels) == len(backbone.channels)
    require(good, "neck must have one stride and one width per block of the backbone")
    whole = all(float(max(s, 1 / s)).is_integer() for s in neck.strides)
    require(whole, f"neck.strides must be n or 1 / n each, got {list(neck.strides)}")


def _check_head(config: Detector) -> None:
    head, classes = config.head, list(config.classes)
    if not isinstance(head, CenterHeadConfig):
        count = len(head.anchors)
        good = count == len(classes)
        require(good, f"head.anchors must have one entry per class, {len(classes)}, got {count}")
        _check_bounds(head.area, "head.area", 4)
        for i, anchor in enumerate(head.anchors):
            good = len(anchor.rotations) > 0
            require(good, f"head.anchors.{i}.rotations must hold one at least")
    if isinstance(head, (CenterHeadConfig, MultiHeadConfig)):
        tasks = [list(names) for names in head.tasks]
        good = 0 < len(tasks) <= MOST_TASKS and all(tasks)
        limits = f"1 to {MOST_TASKS} with a class at least"
        require(good, f"head.tasks must be {limits}, got {tasks}")
        names = [name for task in tasks for name in task]
        good = sorted(names) == sorted(classes)
        require(good, f"head.tasks must name every class once, got {names} for {classes}")
    if isinstance(head, MultiHeadConfig):
        for name in head.branches:  # they stand beside the scores, as modules by name
            free = name.isidentifier() and name != "cls" and not hasattr(nn.ModuleDict, name)
            require(free, f"head.branches cannot name a branch {name!r}")
        total, size = sum(head.branches.values()), head.code_size
        require(total == size, f"head.branches must add up to code_size, {size}, got {total}")
        good = head.direction is None
        require(good, "head.direction must be absent with tasks: the code has the yaw")


def _check_detections(config: Detector) -> None:
    detections, centers = config.detections, isinstance(config, CenterPointPillarsConfig)
    group, shared, best = detections.group, detections.shared_pre, detections.best_class
    for name in ("center_range", "best_class"):
        good = centers or not getattr(detections, name)
        require(good, f"detections.{name} is for heat maps alone")
    require(not (centers and shared), "detections.shared_pre is for anchors alone")
    good = not shared or group == "class"
    require(good, f"detections.group must be class with shared_pre, got {group!r}")
    good = not best or group != "class"
    require(good, "detections.group must be none or task with best_class, got 'class'")
    _check_bounds(detections.center_range, "detections.center_range", 6, open=True)
    tasks = getattr(config.head, "tasks", ((),))
    groups = {"none": 1, "class": len(config.classes), "task": len(tasks)}[group]
    count = len(detections.nms)
    good = count in (1, groups)
    rule = f"one threshold, or one per group, {groups}"
    require(good, f"detections.nms must have {rule}, got {count}")


def _check_loss(config: Detector) -> None:
    loss, count = config.loss, len(config.classes)
    if not isinstance(loss, AnchorLossConfig) or isinstance(config.head, CenterHeadConfig):
        return
    matched, unmatched = list(loss.matched), list(loss.unmatched)
    good = len(matched) == len(unmatched) == count
    rule = f"loss.matched and loss.unmatched must have one overlap per class, {count}"
    require(good, f"{rule}, got {matched} and {unmatched}")
    both = list(zip(matched, unmatched, strict=True))
    good = all(0 < low <= high <= 1 for high, low in both)
    require(good, f"loss.unmatched must be above 0 and at most loss.matched, got {both}")
    size, weights = config.head.code_size, list(loss.code_weights)
    good = len(weights) in (0, size)
    require(good, f"loss.code_weights must have one number per code, {size}, got {weights}")
