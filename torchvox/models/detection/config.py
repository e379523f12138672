# SPDX-License-Identifier: Apache-2.0
"""What a pillar detector is made of, as frozen plain values: the arguments of its class, the `args`
of a configuration file, and what a checkpoint keeps. Lengths are meters, angles radians."""

import contextlib
import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar, Union

from torchvox._configs import unknown_key
from torchvox.ops.annotations import AssignMode, NmsMode

T = TypeVar("T")
Floats3 = Tuple[float, float, float]
Floats6 = Tuple[float, float, float, float, float, float]
Names = Tuple[str, ...]
PARTS = {"reg": 2, "z": 1, "dim": 3, "rot": 2, "vel": 2}  # of a box, with their channels
KINDS = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class EncoderConfig:
    """The pillar net: a decorated row per point, linear layers with batch norm, maximum per pillar.

    A row holds the columns of the point, x, y, z less the mean of the pillar, and x, y (, z) less
    its center: center_axes, 2 or 3 of them.
    channels: a layer that is not the last has half as many outputs and concatenates their maximum.
    pad_semantics: "reference": a pillar with fewer points than its cap competes with rows of zeros,
        and batch statistics count them, as in the hard voxelization of the upstream programs;
        "none": neither, as in the dynamic one. Weights of the two are not interchangeable.
    legacy: the center offset also stands in for the absolute coordinates of its axes.
    """

    channels: Tuple[int, ...] = (64,)
    pad_semantics: str = "reference"
    legacy: bool = False
    center_axes: int = 3
    eps: float = 1e-3
    momentum: float = 0.01


@dataclass(frozen=True)
class VisibilityConfig:
    """Planes that say what the rays of a scan saw, behind the channels of the pillars.

    channels: of `torchvox.visibility_channels`. height: of a cell of the volume that they reduce,
    which has the pillars' cells along x and y. origin: the sensor, of every scan.
    """

    channels: Names
    height: float = 0.25
    origin: Floats3 = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class BackboneConfig:
    """Blocks of 3x3 convolutions: one with the stride, then as many as `layers` says."""

    layers: Tuple[int, ...] = (3, 5, 5)
    strides: Tuple[int, ...] = (2, 2, 2)
    channels: Tuple[int, ...] = (64, 128, 256)
    eps: float = 1e-3
    momentum: float = 0.01


@dataclass(frozen=True)
class NeckConfig:
    """Every block's map brought to one size, concatenated.

    strides: of transposed convolutions; 1 / n is a convolution of n by n cells with stride n.
    stride_one: "transposed" or "conv": which 1x1 map has stride 1. Their weights look alike.
    """

    strides: Tuple[float, ...] = (1.0, 2.0, 4.0)
    channels: Tuple[int, ...] = (128, 128, 128)
    stride_one: str = "transposed"
    eps: float = 1e-3
    momentum: float = 0.01


@dataclass(frozen=True)
class AnchorConfig:
    """The boxes of a class at every cell. bottom: z of their lower side."""

    size: Floats3
    bottom: float
    rotations: Tuple[float, ...] = (0.0, 1.57)


@dataclass(frozen=True)
class DirectionConfig:
    """How the direction bin completes the yaw: yaw' = wrap(yaw - offset) + offset + period * bin,
    wrap(v) = v - floor(v / period + limit) * period. flip: bins count down (zhulf0804)."""

    offset: float = 0.78539
    limit: float = 0.0
    flip: bool = False
    bins: int = 2


@dataclass(frozen=True)
class AnchorHeadConfig:
    """One 1x1 convolution each for scores, boxes and directions.

    anchors: one entry per class, in class order. grid: "ends", from one end of the range to the
        other, or "centers", at the centers of the cells; area: x0, y0, x1, y1 of the anchors where
        they do not span the range of the points.
    code_size: numbers that code a box: 7, 8 with cos and sin of the yaw, 9 and 10 with velocities.
    """

    anchors: Tuple[AnchorConfig, ...]
    grid: str = "ends"
    area: Tuple[float, ...] = ()
    code_size: int = 7
    direction: Optional[DirectionConfig] = None


@dataclass(frozen=True)
class MultiHeadConfig:
    """Anchors in tasks, groups of classes with a head each, behind one shared convolution.

    convs: 3x3 convolutions of `width` channels before the last one of a branch. branches: parts of
    the code of a box in their order, the scores apart.
    """

    anchors: Tuple[AnchorConfig, ...]
    tasks: Tuple[Names, ...]
    grid: str = "ends"
    area: Tuple[float, ...] = ()
    code_size: int = 10
    direction: Optional[DirectionConfig] = None
    shared: int = 64
    width: int = 64
    convs: int = 1
    branches: Dict[str, int] = field(default_factory=PARTS.copy)
    shared_eps: float = 1e-3
    shared_momentum: float = 0.01
    eps: float = 1e-5
    momentum: float = 0.1


@dataclass(frozen=True)
class CenterHeadConfig:
    """A heat map per class and the box at its peaks, in tasks, behind one shared convolution.

    rot: order of the two channels of the yaw, "cos_sin" or "sin_cos". conv_bias: convolutions have
    a bias although batch norm follows. convs, width: see `MultiHeadConfig`.
    """

    tasks: Tuple[Names, ...]
    shared: int = 64
    width: int = 64
    convs: int = 1
    velocity: bool = True
    rot: str = "cos_sin"
    conv_bias: bool = False
    heat_bias: float = -2.19
    eps: float = 1e-5
    momentum: float = 0.1


@dataclass(frozen=True)
class DetectionsConfig:
    """From maps to boxes; see docs/detection.md.

    score: threshold of the sigmoid; strict: it must be exceeded. pre, post: candidates before and
        boxes after the suppression, per sample and group. nms: threshold, or one per group; mode:
        "rotated", by IoU, or "circle", by squared center distance.
    group: boxes of different groups never suppress each other: "none", "class" or "task".
    shared_pre: the `pre` boxes of best class first, then classes. global_post: the best `post` of
        all groups. best_class: a cell of a heat map gives its best class alone.
    center_range: centers outside are dropped.
    box_format: "lwh", or "wlh_clockwise" of networks whose boxes are w, l, h and turn clockwise
        from -y; the boxes that come out are l, w, h and turn counterclockwise from x in both.
    """

    score: float = 0.1
    strict: bool = False
    pre: int = 4096
    post: int = 500
    nms: Tuple[float, ...] = (0.01,)
    mode: NmsMode = "rotated"
    group: str = "none"
    shared_pre: bool = False
    global_post: bool = False
    best_class: bool = False
    center_range: Tuple[float, ...] = ()
    box_format: str = "lwh"


@dataclass(frozen=True)
class AnchorLossConfig:
    """How a head with anchors is taught; see `torchvox.anchor_targets` and `torchvox.anchor_loss`.

    matched, unmatched: overlaps, one of each class. any_class: anchors meet boxes of all classes.
    mode: "pcdet" or "mmdet". weights: of the terms of classes, boxes and directions.
    normalizer: "sample": each sample is divided by its positive anchors, then their mean; "batch":
        all by the positive anchors of the batch.
    """

    matched: Tuple[float, ...]
    unmatched: Tuple[float, ...]
    any_class: bool = False
    mode: AssignMode = "pcdet"
    weights: Floats3 = (1.0, 2.0, 0.2)
    code_weights: Tuple[float, ...] = ()
    beta: float = 1 / 9
    negative_weight: float = 1.0
    normalizer: str = "sample"


@dataclass(frozen=True)
class CenterLossConfig:
    """How heat maps and their boxes are taught; see `torchvox.center_targets`.

    peaks: what the loss of heat maps is divided by: "cells" that are centers, or "objects".
    divisor: of the loss of boxes, with n objects: "max", of 1 and n, or "eps", n + 1e-4.
    velocity_weight: of velocities among the numbers of a box.
    """

    overlap: float = 0.1
    min_radius: int = 2
    max_objects: int = 500
    peaks: str = "cells"
    divisor: str = "max"
    heat_weight: float = 1.0
    box_weight: float = 0.25
    velocity_weight: float = 0.2


@dataclass(frozen=True)
class _Detector:
    classes: Names
    point_cloud_range: Floats6
    pillar_size: Floats3
    head: Any  # of a type of its own in each detector
    columns: int = 4
    column_scale: Tuple[float, ...] = ()
    max_points: int = 32
    max_pillars: Tuple[int, int] = (16_000, 40_000)
    order: str = "first"
    encoder: EncoderConfig = EncoderConfig()
    visibility: Optional[VisibilityConfig] = None
    backbone: BackboneConfig = BackboneConfig()
    neck: NeckConfig = NeckConfig()
    detections: DetectionsConfig = DetectionsConfig()


@dataclass(frozen=True)
class PointPillarsConfig(_Detector):
    """A detector with anchors.

    classes: names; labels are their numbers. columns: of the points, x, y, z first. column_scale: a
        factor for each, applied inside the model.
    max_points: of a pillar, the first ones in input order; max_pillars: (training, evaluation);
        -1: no limit, which is the dynamic voxelization.
    loss: how it is taught; None: it cannot be.
    """

    head: Union[AnchorHeadConfig, MultiHeadConfig]
    loss: Optional[AnchorLossConfig] = None


@dataclass(frozen=True)
class CenterPointPillarsConfig(_Detector):
    """A detector with heat maps. Fields as `PointPillarsConfig`."""

    head: CenterHeadConfig
    loss: Optional[CenterLossConfig] = CenterLossConfig()


def plain(config: Any) -> Any:
    """As dicts, lists, strings and numbers."""
    if dataclasses.is_dataclass(config):
        return {f.name: plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, (tuple, list)):
        return [plain(value) for value in config]
    return dict(config) if isinstance(config, Mapping) else config


def from_plain(kind: Type[T], values: Union[T, Mapping[str, Any]], where: str = "") -> T:
    """The configuration of plain values. Raises ValueError for an unknown key, naming the nearest
    known one, a missing one, or a value of another type."""
    if isinstance(values, kind):
        return values
    if not isinstance(values, Mapping):
        raise ValueError(f"{where[:-1] or kind.__name__} must hold keys and values, got {values!r}")
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ValueError(unknown_key(str(key), list(known), where))
    for name, one in known.items():
        absent = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if absent and name not in values:
            raise ValueError(f"{where}{name} is missing")
    types = typing.get_type_hints(kind)
    made = {k: _made(types[k], value, f"{where}{k}.") for k, value in values.items()}
    return kind(**made)


def _made(kind: Any, value: Any, where: str) -> Any:
    """A value of a field: nested configurations, tuples from lists, numbers and words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union:
        if value is None and type(None) in inner:
            return None
        kinds = [one for one in inner if one is not type(None)]
        several = len(kinds) > 1 and isinstance(value, Mapping)
        # A head with tasks is the one of several heads.
        chosen = kinds[int("tasks" in value)] if several else kinds[0]
        if len(kinds) > 1 and isinstance(value, tuple(kinds)):
            return value
        return _made(chosen, value, where)
    if dataclasses.is_dataclass(kind):
        return from_plain(kind, value, where)  # type: ignore[arg-type]
    if origin is tuple:
        if isinstance(value, (str, Mapping)) or not hasattr(value, "__iter__"):
            raise ValueError(f"{where[:-1]} must be a list, got {value!r}")
        several = len(inner) == 2 and inner[1] is Ellipsis
        if not several and len(value) != len(inner):
            raise ValueError(f"{where[:-1]} must have {len(inner)} values, got {list(value)}")
        kinds = [inner[0]] * len(value) if several else list(inner)
        return tuple(
            _made(one, item, f"{where}{i}.")
            for i, (one, item) in enumerate(zip(kinds, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where[:-1]} must hold keys and values, got {value!r}")
        return {str(k): _made(inner[1], item, f"{where}{k}.") for k, item in value.items()}
    return _scalar(kind, value, where[:-1])


def _scalar(kind: type, value: Any, name: str) -> Any:
    """A bool, str, int or float; a number from a word too, as YAML takes 1e-3 for a word."""
    made = value
    if kind in (int, float) and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = kind(value)
            made = number if isinstance(value, str) or number == value else value
    if not isinstance(made, kind) or (kind is not bool and isinstance(made, bool)):
        raise ValueError(f"{name} must be {KINDS[kind]}, got {value!r}")
    return made
