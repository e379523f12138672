# SPDX-License-Identifier: Apache-2.0
"""Configurations: YAML files that become frozen, checked objects.

A file may name another as its `base:` and then holds only what differs. Unknown keys are errors
that name the nearest known one. The type of a field says what it may hold (torchvox._util.values).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml

from torchvox._util.config_files import overridden, read, shipped, unknown_key
from torchvox._util.errors import WrongUseError
from torchvox._util.extras import require
from torchvox._util.values import (
    AboveZero,
    Count,
    Limits,
    NotNegative,
    Positive,
    Share,
    from_plain,
    plain,
)
from torchvox._util.yaml import check_size
from torchvox.augment import Nudge, WholeScan
from torchvox.data.readers import nuscenes
from torchvox.data.readers.objects import feature_names
from torchvox.data.worlds import furniture, shapes
from torchvox.data.worlds.street.objects import CLASSES, SURFACES
from torchvox.models.detection.files import ModelConfig
from torchvox.train.tasks import TASKS, Labels, check_arguments, checked_detector

FOR_CLOUDS = ("augment", "label_smoothing", "class_weights")  # keys of train
FOR_DETECTORS = ("paste", "nudge", "whole", "compile")
Task = Literal["classify", "parts", "segment", "detect"]


@dataclass(frozen=True)
class ShapesData:
    """Generated shapes, see torchvox.data.Shapes."""

    kind: Literal["shapes"]
    points: Positive = 1024
    seed: int = 0
    train_size: Positive = 3200
    val_size: Positive = 640
    in_memory: bool = True


@dataclass(frozen=True)
class RoomsData:
    """Blocks of generated rooms, see torchvox.data.Rooms. block: meters."""

    kind: Literal["rooms"]
    points: Positive = 4096
    block: Annotated[float, Limits(gt=0, le=3)] = 1.0
    seed: int = 0
    train_size: Positive = 1024
    val_size: Positive = 256
    in_memory: bool = True


@dataclass(frozen=True)
class ModelNet40Data:
    """ModelNet40 in either form, see torchvox.data.modelnet."""

    kind: Literal["modelnet40"]
    root: str
    points: Positive = 1024
    normals: bool = False
    cache: str | None = None
    in_memory: bool = False


@dataclass(frozen=True)
class ObjectsData:
    """The user's objects, a folder per class, see torchvox.data.folder."""

    kind: Literal["objects"]
    root: str
    points: Positive = 1024
    columns: tuple[str, ...] = ("x", "y", "z")
    normals: bool = False
    layout: str | None = None
    seed: int = 0
    in_memory: bool = True


@dataclass(frozen=True)
class SegmentsData:
    """The user's clouds with labels of points, see torchvox.data.folder. block: meters, none for
    whole clouds; train_size, val_size: blocks."""

    kind: Literal["segments"]
    root: str
    classes: tuple[str, ...]
    label: str = "label"
    ignore: tuple[int, ...] = ()
    block: AboveZero | None = None
    points: Positive = 4096
    columns: tuple[str, ...] = ("x", "y", "z")
    normals: bool = False
    layout: str | None = None
    seed: int = 0
    train_size: Positive | None = None
    val_size: Positive | None = None
    in_memory: bool = True


@dataclass(frozen=True)
class S3DISData:
    """S3DIS in any of three forms, see torchvox.data.s3dis. block: meters."""

    kind: Literal["s3dis"]
    root: str
    points: Positive = 4096
    block: AboveZero = 1.0
    val_area: int = 5
    seed: int = 0
    train_size: Positive = 16384
    val_size: Positive = 4096
    cache: str | None = None
    in_memory: bool = False


@dataclass(frozen=True)
class WorldData:
    """Generated streets, see torchvox.data.World, and WorldSurfaces for the task segment. Points of
    several sweeps have 5 columns."""

    kind: Literal["world"]
    sensor: str = "hdl64"
    view: str = "front"
    reach: Annotated[float, Limits(ge=20, le=70)] = 70.0
    points: Positive | None = None
    boxes: Positive | None = None
    min_points: Count = 5
    frames: Positive = 1
    sweeps: Positive = 1
    seed: int = 0
    train_size: Positive = 2000
    val_size: Positive = 200
    in_memory: bool = True


@dataclass(frozen=True)
class FolderData:
    """The user's labelled scans, see torchvox.data.folder."""

    kind: Literal["folder"]
    root: str
    classes: tuple[str, ...]
    similar: dict[str, str] = field(default_factory=dict)
    others: Literal["error", "drop"] = "error"
    points: Positive = 65536
    boxes: Positive = 128
    columns: tuple[str, ...] = ("x", "y", "z", "intensity")
    layout: str | None = None
    in_memory: bool = False


@dataclass(frozen=True)
class KittiData:
    """KITTI's objects, see torchvox.data.kitti."""

    kind: Literal["kitti"]
    root: str
    classes: tuple[str, ...] = ("Car", "Pedestrian", "Cyclist")
    ignored: Literal["ignore", "background"] = "ignore"
    points: Positive = 32768
    boxes: Positive = 64
    point_cloud_range: tuple[float, float, float, float, float, float] | None = None
    crop: bool = True
    in_memory: bool = False


@dataclass(frozen=True)
class NuScenesData:
    """nuScenes, see torchvox.data.nuscenes."""

    kind: Literal["nuscenes"]
    root: str
    version: str = "v1.0-trainval"
    sweeps: Positive = 10
    short_history: Literal["repeat", "keyframe", "none"] = "repeat"
    points: Positive = 350_000
    min_points: Count = 1
    balanced: bool = False
    cache: str | None = None
    in_memory: bool = False


@dataclass(frozen=True)
class AugmentConfig:
    """Changes of training clouds. scale: range of one factor per cloud. shift: largest shift along
    each axis. dropout: largest share of points that become the first point. yaw: turn about z."""

    scale: tuple[float, float] = (1.0, 1.0)
    shift: NotNegative = 0.0
    dropout: Share = 0.0
    yaw: bool = False


@dataclass(frozen=True)
class PasteConfig:
    """Objects of the training data in other scans, see torchvox.augment.Paste and collect_objects.
    counts: of classes by name, the others have none."""

    counts: dict[str, Count]
    fill: Literal["fixed", "missing"] = "fixed"
    mode: Literal["both", "greedy"] = "both"
    min_points: Positive = 5
    per_class: Positive | None = None
    points: Positive = 16384
    boxes: Positive | None = None


@dataclass(frozen=True)
class TrainConfig:
    """AdamW with a one-cycle schedule, stepped per batch.

    val_every: epochs between validations; the last epoch always has one. init: a file of weights to
    begin with, or the name of a model with shipped ones. compile: the convolutions of a detector.
    batch_size: of all devices together. lr: its peak; the first is lr / div, the last that less
    final_div times. beta2: of AdamW. workers: of the loader, unless the data are in memory.
    log_every: steps between lines of the log. augment: of clouds; paste, nudge and whole, in this
    order: of labelled scans.
    """

    epochs: Positive
    batch_size: Positive = 32
    val_batch_size: Positive = 32
    lr: AboveZero = 1e-3
    warm_up: Annotated[float, Limits(ge=0, lt=1)] = 0.3
    weight_decay: NotNegative = 0.01
    beta2: Annotated[float, Limits(gt=0, lt=1)] = 0.999
    div: Annotated[float, Limits(ge=1)] = 25.0
    final_div: Annotated[float, Limits(ge=1)] = 1e4
    label_smoothing: Share = 0.0
    class_weights: bool = False
    clip: NotNegative = 0.0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "bf16-mixed"
    device: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Positive = 1
    nodes: Positive = 1
    seed: int = 0
    workers: Count = 0
    log_every: Positive = 10
    val_every: Positive = 1
    loggers: tuple[Literal["jsonl", "tensorboard", "csv"], ...] = ("jsonl",)
    init: str | None = None
    compile: bool = False
    augment: AugmentConfig = AugmentConfig()
    paste: PasteConfig | None = None
    nudge: Nudge | None = None
    whole: WholeScan | None = None


Data = (
    ShapesData
    | RoomsData
    | ModelNet40Data
    | S3DISData
    | ObjectsData
    | SegmentsData
    | WorldData
    | FolderData
    | KittiData
    | NuScenesData
)


@dataclass(frozen=True)
class Config:
    """A whole run: task, model, data, training."""

    task: Task
    model: ModelConfig
    data: Data
    train: TrainConfig

    def plain(self) -> dict[str, Any]:
        """Every value, defaults too, as dicts, lists, strings and numbers."""
        return plain(self)

    def text(self) -> str:
        """As YAML, which load_config reads back."""
        return yaml.safe_dump(self.plain(), sort_keys=False, default_flow_style=None, width=100)

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The JSON schema of configurations."""
        schema = require("pydantic", "to print the JSON schema").TypeAdapter(cls).json_schema()
        for part in (schema, *schema["$defs"].values()):
            part["additionalProperties"] = False
        return schema

    def labels(self) -> Labels:
        """What the labels mean, where the files of the data do not say it (ModelNet40, objects)."""
        match self.data:
            case FolderData(classes=classes, columns=columns):
                return Labels(classes, len(columns))
            case SegmentsData(classes=classes, columns=columns, normals=normals):
                return Labels(classes, 3 + len(feature_names(columns, normals)))
            case KittiData(classes=classes):
                return Labels(classes, 4)
            case NuScenesData():
                return Labels(nuscenes.CLASSES, 5)
            case WorldData(sweeps=sweeps):
                names = SURFACES if self.task == "segment" else CLASSES
                return Labels(names, 5 if sweeps > 1 else 4)
            case ShapesData() if self.task == "parts":
                return Labels(shapes.PARTS, 3, shapes.CLASSES, shapes.PART_OFFSETS)
            case ShapesData():
                return Labels(shapes.CLASSES, 3)
        return Labels(furniture.CLASSES, 9)


def config_names() -> list[str]:
    """Names that load_config knows, sorted."""
    return shipped(lambda content: content.get("task") in get_args(Task) and "train" in content)


def load_config(name: str | Path, overrides: Sequence[str] = ()) -> Config:
    """A configuration by name, or from a .yaml file, with overrides such as "train.epochs=4".

    Raises WrongUseError for an unknown name, key or value.
    """
    return make_config(read(str(name), overrides, config_names), str(name))


def change_config(config: Config, overrides: Sequence[str]) -> Config:
    """The configuration with overrides. Raises WrongUseError."""
    return make_config(overridden(config.plain(), overrides), "the changed configuration")


def make_config(content: Mapping[str, Any], name: str = "the configuration") -> Config:
    """Check a configuration. Raises WrongUseError that names the wrong keys and values."""
    config = parse_config(content, name)
    _check(config, name)
    return config


def parse_config(content: Mapping[str, Any], name: str) -> Config:
    """The values of a configuration, each alone: the class that it may name is not imported."""
    try:
        check_size(content)
        return from_plain(Config, content)
    except ValueError as error:  # too large, endless, or with wrong values
        raise WrongUseError(f"{name}: {error}") from None


def _check(config: Config, name: str) -> None:
    """What one field alone does not show."""
    train, detect = config.train, config.task == "detect"
    if config.data.kind not in TASKS[config.task].data:
        raise WrongUseError(
            f"{name}: the task {config.task} learns from "
            f"{' or '.join(TASKS[config.task].data)}, not from {config.data.kind}"
        )
    if train.batch_size % (train.devices * train.nodes):
        raise WrongUseError(
            f"{name}: train.batch_size {train.batch_size} must be a multiple of "
            f"train.devices {train.devices} x train.nodes {train.nodes}"
        )
    more = getattr(config.data, "columns", ()) if not detect else ()
    if train.augment.yaw and (getattr(config.data, "normals", False) or "nx" in more):
        raise WrongUseError(
            f"{name}: train.augment.yaw turns points, not their normals: choose data.normals or yaw"
        )
    defaults = TrainConfig(epochs=1)
    for key in FOR_CLOUDS if detect else FOR_DETECTORS:
        if getattr(train, key) != getattr(defaults, key):
            whom = "clouds" if detect else "detectors"
            raise WrongUseError(f"{name}: train.{key} is for {whom}, not for {config.task}")
    if not detect:
        return check_arguments(config.model, name)
    labels = config.labels()
    checked_detector(config.model, labels, name)
    for key in train.paste.counts if train.paste else ():
        if key not in labels.classes:
            sentence = unknown_key(key, labels.classes, "train.paste.counts.")
            raise WrongUseError(f"{name}: {sentence}")
