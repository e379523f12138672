# SPDX-License-Identifier: Apache-2.0
"""Configurations: YAML files that become frozen, checked objects.

A file may name another as its `base:` and then holds only what differs. Unknown keys are errors
that name the nearest known one. Each part has one validator: pydantic the run, its data and its
training, torchvox.models.detection.validation the arguments of a detector, which torch alone must
be able to check, and the classes of torchvox.models their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field

from torchvox._configs import overridden, read, shipped, unknown_key
from torchvox._errors import WrongUseError, short
from torchvox._yaml import check_size, shown
from torchvox.augment import Nudge, WholeScan

MOST_ERRORS = 20  # of one configuration in a message
Positive = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
FOR_CLOUDS = ("augment", "label_smoothing", "class_weights")  # keys of train
FOR_DETECTORS = ("paste", "nudge", "whole", "compile")
Task = Literal["classify", "parts", "segment", "detect"]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShapesData(Frozen):
    """Generated shapes, see torchvox.data.Shapes."""

    kind: Literal["shapes"]
    points: Positive = 1024
    seed: int = 0
    train_size: Positive = 3200
    val_size: Positive = 640
    in_memory: bool = True


class RoomsData(Frozen):
    """Blocks of generated rooms, see torchvox.data.Rooms. block: meters."""

    kind: Literal["rooms"]
    points: Positive = 4096
    block: Annotated[float, Field(gt=0, le=3)] = 1.0
    seed: int = 0
    train_size: Positive = 1024
    val_size: Positive = 256
    in_memory: bool = True


class ModelNet40Data(Frozen):
    """ModelNet40 in either form, see torchvox.data.modelnet."""

    kind: Literal["modelnet40"]
    root: str
    points: Positive = 1024
    normals: bool = False
    cache: str | None = None
    in_memory: bool = False


class S3DISData(Frozen):
    """S3DIS in any of three forms, see torchvox.data.s3dis. block: meters."""

    kind: Literal["s3dis"]
    root: str
    points: Positive = 4096
    block: Annotated[float, Field(gt=0)] = 1.0
    val_area: int = 5
    seed: int = 0
    train_size: Positive = 16384
    val_size: Positive = 4096
    cache: str | None = None
    in_memory: bool = False


class WorldData(Frozen):
    """Generated streets, see torchvox.data.World. Points of several sweeps have 5 columns."""

    kind: Literal["world"]
    sensor: str = "hdl64"
    view: str = "front"
    reach: Annotated[float, Field(ge=20, le=70)] = 70.0
    points: Positive | None = None
    boxes: Positive | None = None
    min_points: Annotated[int, Field(ge=0)] = 5
    frames: Positive = 1
    sweeps: Positive = 1
    seed: int = 0
    train_size: Positive = 2000
    val_size: Positive = 200
    in_memory: bool = True


class FolderData(Frozen):
    """Labelled scans of one's own, see torchvox.data.folder."""

    kind: Literal["folder"]
    root: str
    classes: tuple[str, ...]
    similar: dict[str, str] = {}
    others: Literal["error", "drop"] = "error"
    points: Positive = 65536
    boxes: Positive = 128
    columns: tuple[str, ...] = ("x", "y", "z", "intensity")
    layout: str | None = None
    in_memory: bool = False


class KittiData(Frozen):
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


class NuScenesData(Frozen):
    """nuScenes, see torchvox.data.nuscenes."""

    kind: Literal["nuscenes"]
    root: str
    version: str = "v1.0-trainval"
    sweeps: Positive = 10
    short_history: Literal["repeat", "keyframe", "none"] = "repeat"
    points: Positive = 350_000
    min_points: Annotated[int, Field(ge=0)] = 1
    balanced: bool = False
    cache: str | None = None
    in_memory: bool = False


class ModelConfig(Frozen):
    """kind: a key of torchvox.train.builders.BUILDERS, or "module:Class"; for detect a kind of
    detector. args: its arguments; the numbers of classes, categories and columns come from the
    data."""

    kind: str
    args: dict[str, Any] = {}


class AugmentConfig(Frozen):
    """Changes of training clouds. scale: range of one factor per cloud. shift: largest shift along
    each axis. dropout: largest share of points that become the first point. yaw: turn about z."""

    scale: tuple[float, float] = (1.0, 1.0)
    shift: Annotated[float, Field(ge=0)] = 0.0
    dropout: Share = 0.0
    yaw: bool = False


class PasteConfig(Frozen):
    """Objects of the training data in other scans, see torchvox.augment.Paste and collect_objects.
    counts: of classes by name, the others have none."""

    counts: dict[str, Annotated[int, Field(ge=0)]]
    fill: Literal["fixed", "missing"] = "fixed"
    mode: Literal["both", "greedy"] = "both"
    min_points: Positive = 5
    per_class: Positive | None = None
    points: Positive = 16384
    boxes: Positive | None = None


class TrainConfig(Frozen):
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
    lr: Annotated[float, Field(gt=0)] = 1e-3
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.3
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    div: Annotated[float, Field(ge=1)] = 25.0
    final_div: Annotated[float, Field(ge=1)] = 1e4
    label_smoothing: Share = 0.0
    class_weights: bool = False
    clip: Annotated[float, Field(ge=0)] = 0.0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "bf16-mixed"
    device: Literal["auto", "cpu", "gpu"] = "auto"
    devices: Positive = 1
    nodes: Positive = 1
    seed: int = 0
    workers: Annotated[int, Field(ge=0)] = 0
    log_every: Positive = 10
    val_every: Positive = 1
    loggers: tuple[Literal["jsonl", "tensorboard", "csv"], ...] = ("jsonl",)
    init: str | None = None
    compile: bool = False
    augment: AugmentConfig = AugmentConfig()
    paste: PasteConfig | None = None
    nudge: Nudge | None = None
    whole: WholeScan | None = None


Data = Annotated[
    ShapesData
    | RoomsData
    | ModelNet40Data
    | S3DISData
    | WorldData
    | FolderData
    | KittiData
    | NuScenesData,
    Field(discriminator="kind"),
]


class Config(Frozen):
    """A whole run: what is learnt, from what, how."""

    task: Task
    model: ModelConfig
    data: Data
    train: TrainConfig

    def plain(self) -> dict[str, Any]:
        """Every value, defaults too, as dicts, lists, strings and numbers."""
        return self.model_dump(mode="json")

    def text(self) -> str:
        """As YAML, which load_config reads back."""
        return yaml.safe_dump(self.plain(), sort_keys=False, default_flow_style=None, width=100)


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
        return Config.model_validate(dict(content))
    except pydantic.ValidationError as error:
        sentences = [_sentence(one) for one in error.errors()[:MOST_ERRORS]]
        raise WrongUseError(f"{name}: {'; '.join(sentences)}") from None
    except (TypeError, ValueError) as error:  # no mapping, endless, or too large
        raise WrongUseError(f"{name}: {error}") from None


def _check(config: Config, name: str) -> None:
    """What one field alone does not show."""
    from torchvox.train.builders import FROM_DATA, TASKS, builder, checked_detector, labels_of

    if config.data.kind not in TASKS[config.task].data:
        raise WrongUseError(
            f"{name}: the task {config.task} learns from "
            f"{' or '.join(TASKS[config.task].data)}, not from {config.data.kind}"
        )
    if config.train.batch_size % (config.train.devices * config.train.nodes):
        raise WrongUseError(
            f"{name}: train.batch_size {config.train.batch_size} must be a multiple of "
            f"train.devices {config.train.devices} x train.nodes {config.train.nodes}"
        )
    if config.data.kind == "modelnet40" and config.data.normals and config.train.augment.yaw:
        raise WrongUseError(
            f"{name}: train.augment.yaw turns points, not their normals: choose data.normals or yaw"
        )
    defaults, detect = TrainConfig(epochs=1), config.task == "detect"
    for key in FOR_CLOUDS if detect else FOR_DETECTORS:
        if getattr(config.train, key) != getattr(defaults, key):
            whom = "clouds" if detect else "detectors"
            raise WrongUseError(f"{name}: train.{key} is for {whom}, not for {config.task}")
    if detect:
        labels = labels_of(config)
        checked_detector(config, labels, name)
        for key in config.train.paste.counts if config.train.paste else ():
            if key not in labels.classes:
                raise WrongUseError(
                    f"{name}: {unknown_key(key, labels.classes, 'train.paste.counts.')}"
                )
        return
    parameters = inspect.signature(builder(config.model.kind)).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in config.model.args:
        if key in FROM_DATA:
            raise WrongUseError(f"{name}: model.args.{key} comes from the data")
        if key not in parameters and not open_ended:  # else the model itself refuses it
            mine = [known for known in parameters if known not in FROM_DATA]
            raise WrongUseError(f"{name}: {unknown_key(key, mine, 'model.args.')}")


def _sentence(error: Mapping[str, Any]) -> str:
    # The tag of a union is part of its places, but not of the file.
    place = [str(p) for p in error["loc"]]
    if len(place) > 1 and place[0] == "data" and place[1] in _DATA:
        del place[1]
        owner: Any = _DATA[str(error["loc"][1])]
    else:
        owner = Config
    path = ".".join(place)
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        for part in place[owner is not Config : -1]:
            owner = owner.model_fields[part].annotation
            owner = next((one for one in get_args(owner) if one is not type(None)), owner)
        where = path[: len(path) - len(place[-1])]
        return unknown_key(place[-1], list(inspect.signature(owner).parameters), where)
    if error["type"] == "missing":
        return f"{short(path)} is missing"
    if error["type"] == "union_tag_invalid":
        return f"{path}.kind must be one of {', '.join(_DATA)}, got {shown(error['ctx']['tag'])}"
    if error["type"] == "value_error":
        return f"{path}: {error['ctx']['error']}"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"{short(path) or 'it'}: {message}, got {shown(error['input'])}"


_DATA = {get_args(t.model_fields["kind"].annotation)[0]: t for t in get_args(get_args(Data)[0])}
