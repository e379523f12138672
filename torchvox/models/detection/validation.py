# SPDX-License-Identifier: Apache-2.0
"""What must fit together in the configuration of a detector."""

import math
from typing import Any, Mapping, Tuple, Type, TypeVar, Union

import torch
from torch import nn

from torchvox._util.errors import expect
from torchvox._util.values import Limits, from_plain, plain
from torchvox.models.detection.config import (
    AnchorLossConfig,
    AnyConfig,
    CenterHeadConfig,
    MultiHeadConfig,
    PillarConfig,
    VoxelConfig,
    VoxelNeXtConfig,
)
from torchvox.models.detection.sparse_backbone import depth_after

D = TypeVar("D", bound=Union[PillarConfig, VoxelConfig, VoxelNeXtConfig])
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


def stride_of(config: AnyConfig) -> int:
    """Cells of the canvas that a cell of the last map stands for, along each axis."""
    strides, down = [], _sparse_stride(config)
    if isinstance(config, VoxelNeXtConfig):
        return down
    for stride, up in zip(config.backbone.strides, config.neck.strides, strict=True):
        down *= stride
        strides.append(down / up)
    good = all(s == strides[0] and s == round(s) for s in strides)
    expect(good, "neck.strides must bring all maps to one size", strides)
    return round(strides[0])


def _sparse_stride(config: AnyConfig) -> int:
    """Cells of the grid that a cell of the canvas stands for."""
    if isinstance(config, PillarConfig):
        return 1
    last = config.sparse.joined if isinstance(config, VoxelNeXtConfig) else 1
    return 2 ** (len(config.sparse.channels) - last)


def map_size(config: AnyConfig) -> Tuple[int, int]:
    """(nx, ny) of the last map."""
    nx, ny, nz = torch.ops.torchvox.grid_size(list(config.cell), list(config.point_cloud_range))
    stride = stride_of(config)
    if isinstance(config, VoxelNeXtConfig):  # rows of any grid can be joined
        return -(-nx // stride), -(-ny // stride)
    if isinstance(config, PillarConfig):
        expect(nz == 1, "pillar_size must span the height of the range, in one cell", nz)
    else:
        planes = depth_after(config.sparse, nz + 1)
        expect(planes > 0, "the grid must have more cells along z for the layers of sparse", nz)
    for cells in (_sparse_stride(config) * math.prod(config.backbone.strides), stride):
        rule = f"the grid must have a multiple of {cells} cells along x and y"
        expect(nx % cells == 0 and ny % cells == 0, rule, (nx, ny))
    return nx // stride, ny // stride


def _check_points(config: AnyConfig) -> None:
    """Classes, range, cells and columns."""
    classes, scale = list(config.classes), list(config.column_scale)
    require(len(classes) > 0, "classes must name at least one class")
    expect(len(set(classes)) == len(classes), "classes must differ", classes)
    expect(len(classes) <= MOST_CLASSES, f"classes must be at most {MOST_CLASSES}", len(classes))
    Limits().check(config.point_cloud_range, "point_cloud_range")
    _check_bounds(config.point_cloud_range, "point_cloud_range", 6)
    kind = "pillar" if isinstance(config, PillarConfig) else "voxel"
    Limits(gt=0).check(config.cell, f"{kind}_size")
    CAPS.check(config.max_points, "max_points")
    CAPS.check(getattr(config, f"max_{kind}s"), f"max_{kind}s")
    expect(config.order in ORDERS, f"order must be one of {', '.join(ORDERS)}", config.order)
    rule = "columns counts x, y and z too: at least 3"
    expect(config.columns >= 3, rule, config.columns)
    Limits().check(config.column_scale, "column_scale")
    good = len(scale) in (0, config.columns)
    expect(good, f"column_scale must have one factor per column, {config.columns}", scale)
    good = all(factor == 1.0 for factor in scale[:3])
    expect(good, "column_scale must be 1 for x, y and z, which are meters", scale[:3])


def _check_bounds(bounds: Tuple[float, ...], name: str, count: int) -> None:
    """Lower bounds, then upper ones, or none at all."""
    expect(len(bounds) in (0, count), f"{name} must have {count} values", list(bounds))
    half = len(bounds) // 2
    good = all(low < high for low, high in zip(bounds[:half], bounds[half:], strict=True))
    expect(good, f"{name} must have each lower bound below its upper bound", list(bounds))


def _check_parts(config: AnyConfig) -> None:
    """What comes before the head."""
    if isinstance(config, PillarConfig):
        _check_encoder(config)
    else:
        sparse = config.sparse
        good = len(sparse.layers) == len(sparse.channels) > 0
        require(good, "sparse must have as many layers as channels")
        count, rule = len(sparse.channels), "sparse.max_rows must have one number per level"
        expect(len(sparse.max_rows) in (0, count), f"{rule}, {count}", list(sparse.max_rows))
    if isinstance(config, VoxelNeXtConfig):
        widths, rows = list(config.sparse.channels), config.sparse.joined
        rule = f"sparse.joined must be below the number of levels, {len(widths)}"
        expect(rows < len(widths), rule, rows)
        good = len(set(widths[-rows:])) == 1
        expect(good, f"sparse.channels must end with {rows} equal ones, which are joined", widths)
        return
    backbone, neck = config.backbone, config.neck
    good = len(backbone.layers) == len(backbone.strides) == len(backbone.channels) > 0
    require(good, "backbone must have as many layers as strides and channels")
    good = len(neck.strides) == len(neck.channels) == len(backbone.channels)
    require(good, "neck must have one stride and one width per block of the backbone")
    whole = all(float(max(s, 1 / s)).is_integer() for s in neck.strides)
    expect(whole, "neck.strides must be n or 1 / n each", list(neck.strides))


def _check_encoder(config: PillarConfig) -> None:
    widths = list(config.encoder.channels)
    require(len(widths) > 0, "encoder.channels must name at least one layer")
    good = all(width % 2 == 0 for width in widths[:-1])
    expect(good, "encoder.channels before the last must be even", widths)
    if config.visibility is not None:
        require(len(config.visibility.channels) > 0, "visibility.channels must name at least one")


def _check_head(config: AnyConfig) -> None:
    head, classes = config.head, list(config.classes)
    if not isinstance(head, CenterHeadConfig):
        count = len(head.anchors)
        rule = f"head.anchors must have one entry per class, {len(classes)}"
        expect(count == len(classes), rule, count)
        _check_bounds(head.area, "head.area", 4)
        for i, anchor in enumerate(head.anchors):
            require(len(anchor.rotations) > 0, f"head.anchors.{i}.rotations must hold one at least")
    if isinstance(head, (CenterHeadConfig, MultiHeadConfig)):
        tasks = [list(names) for names in head.tasks]
        good = 0 < len(tasks) <= MOST_TASKS and all(tasks)
        expect(good, f"head.tasks must be 1 to {MOST_TASKS} with a class at least", tasks)
        names = [name for task in tasks for name in task]
        expect(
            sorted(names) == sorted(classes),
            f"head.tasks must name every class once, of {classes}",
            names,
        )
    if isinstance(head, MultiHeadConfig):
        for name in head.branches:  # they stand beside the scores, as modules by name
            free = name.isidentifier() and name != "cls" and not hasattr(nn.ModuleDict, name)
            require(free, f"head.branches cannot name a branch {name!r}")
        total, size = sum(head.branches.values()), head.code_size
        expect(total == size, f"head.branches must add up to code_size, {size}", total)
        good = head.direction is None
        require(good, "head.direction must be absent with tasks: the code has the yaw")


def _check_detections(config: AnyConfig) -> None:
    detections, centers = config.detections, isinstance(config.head, CenterHeadConfig)
    group, shared, best = detections.group, detections.shared_pre, detections.best_class
    for name in ("center_range", "best_class"):
        good = centers or not getattr(detections, name)
        require(good, f"detections.{name} is for heat maps alone")
    require(not (centers and shared), "detections.shared_pre is for anchors alone")
    good = not shared or group == "class"
    expect(good, "detections.group must be class with shared_pre", group)
    good = not best or group != "class"
    expect(good, "detections.group must be none or task with best_class", group)
    _check_bounds(detections.center_range, "detections.center_range", 6)  # may be infinite
    tasks = getattr(config.head, "tasks", ((),))
    groups = {"none": 1, "class": len(config.classes), "task": len(tasks)}[group]
    count = len(detections.nms)
    rule = f"detections.nms must have one threshold, or one per group, {groups}"
    expect(count in (1, groups), rule, count)


def _check_loss(config: AnyConfig) -> None:
    loss, count = config.loss, len(config.classes)
    if not isinstance(loss, AnchorLossConfig) or isinstance(config.head, CenterHeadConfig):
        return
    both = len(loss.matched), len(loss.unmatched)
    rule = f"loss.matched and loss.unmatched must have one overlap per class, {count}"
    expect(both == (count, count), rule, both)
    pairs = list(zip(loss.matched, loss.unmatched, strict=True))
    good = all(0 < low <= high <= 1 for high, low in pairs)
    expect(good, "loss.unmatched must be above 0 and at most loss.matched", pairs)
    size, weights = config.head.code_size, list(loss.code_weights)
    rule = f"loss.code_weights must have one number per code, {size}"
    expect(len(weights) in (0, size), rule, weights)
