# SPDX-License-Identifier: Apache-2.0
"""What the numbers in the configuration of a detector may be, and what must fit together."""

import dataclasses
import math
from operator import attrgetter
from typing import Any, Iterator, List, Mapping, Sequence, Tuple, Type, TypeVar, Union

import torch
from torch import nn

from torchvox.models.detection.config import (
    AnchorLossConfig,
    CenterHeadConfig,
    CenterPointPillarsConfig,
    MultiHeadConfig,
    PointPillarsConfig,
    from_plain,
)

Detector = Union[PointPillarsConfig, CenterPointPillarsConfig]
D = TypeVar("D", PointPillarsConfig, CenterPointPillarsConfig)
MOST_BINS, MOST_CLASSES, MOST_TASKS = 64, 64, 8  # of the ops that decode
LIMIT = 2**31
# Fields by dotted names; heads have some of theirs each.
WORDS = {
    "order": ("first", "zyx", "xyz"),
    "encoder.pad_semantics": ("reference", "none"),
    "neck.stride_one": ("transposed", "conv"),
    "head.rot": ("cos_sin", "sin_cos"),
    "head.grid": ("ends", "centers"),
    "loss.mode": ("pcdet", "mmdet"),
    "loss.normalizer": ("sample", "batch"),
    "loss.peaks": ("cells", "objects"),
    "loss.divisor": ("max", "eps"),
    "detections.mode": ("rotated", "circle"),
    "detections.group": ("none", "class", "task"),
    "detections.box_format": ("lwh", "wlh_clockwise"),
}
CODES, AXES = (7, 8, 9, 10), (2, 3)
ABOVE_0 = ["pillar_size", "visibility.height", "head.shared", "head.width", "head.shared_eps"]
ABOVE_0 += [f"{part}.eps" for part in ("encoder", "backbone", "neck", "head")]
ABOVE_0 += [f"{part}.channels" for part in ("encoder", "backbone", "neck")]
ABOVE_0 += ["backbone.strides", "neck.strides"]
AT_LEAST_0 = ("backbone.layers", "head.convs", "detections.nms", "loss.weights", "loss.beta")
SHARES = [f"{part}.momentum" for part in ("encoder", "backbone", "neck", "head")]
SHARES += ["detections.score"]
ORDERED = ("point_cloud_range", "head.area", "detections.center_range")


def require(good: bool, sentence: str) -> None:
    if not good:
        raise ValueError(sentence)


def given(config: Detector, names: Sequence[str]) -> Iterator[Tuple[str, List[Any]]]:
    """The fields that there are, each as a list."""
    for name in names:
        part, _, field = name.rpartition(".")
        owner = attrgetter(part)(config) if part else config
        if hasattr(owner, field):
            value = getattr(owner, field)
            yield name, list(value) if isinstance(value, (tuple, list)) else [value]


def validated(kind: Type[D], values: Union[D, Mapping[str, Any]]) -> D:
    """The configuration of a detector: the one way from plain values, for classes, files and
    training. Raises ValueError that names the place, and for an unknown key the nearest one."""
    config = from_plain(kind, values)
    _check(config)
    return config


def _check(config: Detector) -> None:
    """Raises ValueError for what would fail later, or fit nothing."""
    classes, encoder, scale = config.classes, config.encoder, config.column_scale
    require(len(classes) > 0, "classes must name at least one class")
    require(len(set(classes)) == len(classes), f"classes must differ, got {list(classes)}")
    require(config.columns >= 3, f"columns counts x, y and z too: at least 3, got {config.columns}")
    _check_numbers(config)
    for name, (word,) in given(config, list(WORDS)):
        require(
            word in WORDS[name], f"{name} must be one of {', '.join(WORDS[name])}, got {word!r}"
        )
    good = len(scale) in (0, config.columns)
    wanted = f"one factor per column, {config.columns}"
    require(good, f"column_scale must have {wanted}, got {list(scale)}")
    good = all(factor == 1.0 for factor in scale[:3])
    require(good, "column_scale must be 1 for x, y and z, which are meters")
    axes, widths = encoder.center_axes, list(encoder.channels)
    require(axes in AXES, f"encoder.center_axes must be 2 or 3, got {axes}")
    require(len(widths) > 0, "encoder.channels must name at least one layer")
    good = all(width % 2 == 0 for width in widths[:-1])
    require(good, f"encoder.channels before the last must be even, got {widths}")
    if config.visibility is not None:
        require(len(config.visibility.channels) > 0, "visibility.channels must name at least one")
    backbone, neck = config.backbone, config.neck
    good = len(backbone.layers) == len(backbone.strides) == len(backbone.channels) > 0
    require(good, "backbone must have as many layers as strides and channels")
    good = len(neck.strides) == len(neck.channels) == len(backbone.channels)
    require(good, "neck must have one stride and one width per block of the backbone")
    map_size(config)
    _check_head(config)
    _check_detections(config)
    _check_loss(config)


def stride_of(config: Detector) -> int:
    """Cells of the canvas that a cell of the last map stands for, along each axis."""
    strides, reached = [], 1
    for down, up in zip(config.backbone.strides, config.neck.strides, strict=True):
        reached *= down
        strides.append(reached / up)
    good = all(s == strides[0] and s == round(s) for s in strides)
    wanted = "neck.strides must bring all maps to one size"
    require(good, f"{wanted}, got strides {strides} of the canvas")
    return round(strides[0])


def map_size(config: Detector) -> Tuple[int, int]:
    """(nx, ny) of the last map."""
    nx, ny, nz = torch.ops.torchvox.grid_size(
        list(config.pillar_size), list(config.point_cloud_range)
    )
    require(nz == 1, f"pillar_size must span the height of the range, got {nz} cells of it")
    stride = stride_of(config)
    for cells in (math.prod(config.backbone.strides), stride):
        wanted = f"the grid must have a multiple of {cells} cells along x and y"
        require(nx % cells == 0 and ny % cells == 0, f"{wanted}, got {nx} by {ny}")
    return nx // stride, ny // stride


def _check_head(config: Detector) -> None:
    head, classes = config.head, list(config.classes)
    if not isinstance(head, CenterHeadConfig):
        wanted = f"head.anchors must have one entry per class, {len(classes)}"
        require(len(head.anchors) == len(classes), f"{wanted}, got {len(head.anchors)}")
        size = head.code_size
        require(size in CODES, f"head.code_size must be one of {CODES}, got {size}")
        require(len(head.area) in (0, 4), "head.area must be x0, y0, x1, y1")
    if hasattr(head, "tasks"):
        named = [name for names in head.tasks for name in names]
        good = sorted(named) == sorted(classes)
        require(good, f"head.tasks must name every class once, got {named} for {classes}")
    if isinstance(head, MultiHeadConfig):
        total, wanted = sum(head.branches.values()), "head.branches must add up to code_size"
        require(total == head.code_size, f"{wanted}, {head.code_size}, got {total}")
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
    require(len(detections.center_range) in (0, 6), "detections.center_range must have 6 values")
    tasks = getattr(config.head, "tasks", ((),))
    groups = {"none": 1, "class": len(config.classes), "task": len(tasks)}[group]
    count, wanted = len(detections.nms), f"one threshold, or one per group, {groups}"
    require(count in (1, groups), f"detections.nms must have {wanted}, got {count}")


def _check_loss(config: Detector) -> None:
    loss, count = config.loss, len(config.classes)
    if not isinstance(loss, AnchorLossConfig) or isinstance(config.head, CenterHeadConfig):
        return
    both = list(zip(loss.matched, loss.unmatched))  # noqa: B905, lengths come next
    good = len(loss.matched) == len(loss.unmatched) == count
    wanted = f"loss.matched and loss.unmatched must have one overlap per class, {count}"
    require(good, f"{wanted}, got {list(loss.matched)} and {list(loss.unmatched)}")
    good = all(0 < low <= high <= 1 for high, low in both)
    require(good, f"loss.unmatched must be above 0 and at most loss.matched, got {both}")
    size, weights = config.head.code_size, list(loss.code_weights)
    good = len(weights) in (0, size)
    require(good, f"loss.code_weights must have one number per code, {size}, got {weights}")


def _check_numbers(config: Detector) -> None:
    """Raises ValueError that names the first field of which a number is out of its range."""
    _check_finite(config, "")
    for name, values in given(config, ABOVE_0):
        require(all(v > 0 for v in values), f"{name} must be above 0, got {values}")
    for name, values in given(config, AT_LEAST_0):
        require(all(v >= 0 for v in values), f"{name} must be at least 0, got {values}")
    for name, (value,) in given(config, SHARES):
        require(0 <= value <= 1, f"{name} must be from 0 to 1, got {value}")
    for name, bounds in given(config, ORDERED):  # no bounds are in order too
        half = len(bounds) // 2
        good = all(low < high for low, high in zip(bounds[:half], bounds[half:]))  # noqa: B905
        require(good, f"{name} must have each lower bound below its upper bound, got {bounds}")
    for name, values in given(config, ("max_points", "max_pillars")):
        good = all(v == -1 or 0 < v < LIMIT for v in values)
        require(good, f"{name} must be above 0 and below 2^31, or -1, got {values}")
    for name, (value,) in given(config, ("detections.pre", "detections.post")):
        require(0 < value < LIMIT, f"{name} must be above 0 and below 2^31, got {value}")
    strides, count, head = list(config.neck.strides), len(config.classes), config.head
    whole = all(float(max(s, 1 / s)).is_integer() for s in strides)
    require(whole, f"neck.strides must be n or 1 / n each, got {strides}")
    require(count <= MOST_CLASSES, f"classes must be at most {MOST_CLASSES}, got {count}")
    if hasattr(head, "tasks"):
        tasks = [list(names) for names in head.tasks]
        wanted = f"head.tasks must be 1 to {MOST_TASKS} with a class at least"
        require(0 < len(tasks) <= MOST_TASKS and all(tasks), f"{wanted}, got {tasks}")
    for name, width in getattr(head, "branches", {}).items():
        # They stand beside the scores, as modules by name.
        free = name.isidentifier() and name != "cls" and not hasattr(nn.ModuleDict, name)
        require(free, f"head.branches cannot name a branch {name!r}")
        require(width > 0, f"head.branches.{name} must be above 0, got {[width]}")
    for i, anchor in enumerate(getattr(head, "anchors", ())):
        size, at = list(anchor.size), f"head.anchors.{i}"
        require(all(v > 0 for v in size), f"{at}.size must be above 0, got {size}")
        require(len(anchor.rotations) > 0, f"{at}.rotations must hold one at least")
    bins = getattr(getattr(head, "direction", None), "bins", 0)
    wanted = f"head.direction.bins must be from 0 to {MOST_BINS}"
    require(0 <= bins <= MOST_BINS, f"{wanted}, got {bins}")


def _check_finite(value: Any, name: str) -> None:
    """Every number but the bounds of center_range, which may be open."""
    if dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            if one.name != "center_range":
                inner = f"{name}.{one.name}" if name else one.name
                _check_finite(getattr(value, one.name), inner)
    elif isinstance(value, tuple):
        for one in value:
            _check_finite(one, name)
    elif isinstance(value, float):
        require(math.isfinite(value), f"{name} must be finite, got {value}")
