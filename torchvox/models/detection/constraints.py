# SPDX-License-Identifier: Apache-2.0
"""What the numbers in the configuration of a detector may be, each by itself."""

import dataclasses
import math
from typing import Any, Sequence

from torch import nn

from torchvox.models.detection.config import DetectionsConfig, MultiHeadConfig

MOST_BINS, MOST_CLASSES, MOST_TASKS = 64, 64, 8  # of the ops that decode
LIMIT = 2**31


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
        _check_tasks(head)
    if hasattr(head, "anchors"):
        _check_anchors(head)
    _check_detections(config.detections)


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
    pairs = zip(bounds[:half], bounds[half:])  # noqa: B905 (lengths: validation.py)
    good = all(low < high for low, high in pairs)
    require(good, f"{name} must have each lower bound below its upper bound, got {list(bounds)}")


def _check_norm(name: str, eps: float, momentum: float) -> None:
    above(f"{name}.eps", [eps])
    require(0 <= momentum <= 1, f"{name}.momentum must be from 0 to 1, got {momentum}")


def _check_tasks(head: Any) -> None:
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


def _check_detections(detections: DetectionsConfig) -> None:
    require(
        0 <= detections.score <= 1, f"detections.score must be from 0 to 1, got {detections.score}"
    )
    least("detections.nms", detections.nms, 0)
    for name, size in (("pre", detections.pre), ("post", detections.post)):
        require(0 < size < LIMIT, f"detections.{name} must be above 0 and below 2^31, got {size}")
    ordered("detections.center_range", detections.center_range)
