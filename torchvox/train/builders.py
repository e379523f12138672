# SPDX-License-Identifier: Apache-2.0
"""From a configuration to data sets and models: explicit tables, nothing registers itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from torchvox import models
from torchvox._errors import WrongUseError
from torchvox.data.generated import Generated
from torchvox.data.readers import nuscenes
from torchvox.data.readers.folder import ScanFolder
from torchvox.data.readers.kitti import Kitti
from torchvox.data.readers.modelnet import ModelNet40
from torchvox.data.readers.s3dis import S3DIS
from torchvox.data.worlds import furniture, shapes
from torchvox.data.worlds.rooms import Rooms
from torchvox.data.worlds.shapes import Shapes
from torchvox.data.worlds.street import World
from torchvox.data.worlds.street.objects import CLASSES
from torchvox.models.detection.files import KINDS as DETECTORS
from torchvox.models.detection.files import checked_model

if TYPE_CHECKING:
    from torchvox.train.config import Config

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "pointnet2_classifier": models.PointNet2Classifier,
    "pointnet2_part_segmenter": models.PointNet2PartSegmenter,
    "pointnet2_segmenter": models.PointNet2Segmenter,
}
DATA: dict[str, Callable[..., Generated]] = {
    "folder": ScanFolder,
    "kitti": Kitti,
    "modelnet40": ModelNet40,
    "nuscenes": nuscenes.NuScenes,
    "rooms": Rooms,
    "s3dis": S3DIS,
    "shapes": Shapes,
    "world": World,
}
FROM_DATA = ("num_classes", "num_categories", "in_channels")


@dataclass(frozen=True)
class Task:
    """data: kinds it learns from. target: name of the labels in a batch. monitor: the metric that
    the best checkpoint has the highest of."""

    data: tuple[str, ...]
    target: str
    monitor: str


TASKS = {
    "classify": Task(("shapes", "modelnet40"), "label", "accuracy"),
    "parts": Task(("shapes",), "parts", "miou"),
    "segment": Task(("rooms", "s3dis"), "labels", "miou"),
    "detect": Task(("world", "folder", "kitti", "nuscenes"), "labels", "map"),
}


@dataclass(frozen=True)
class Labels:
    """What the labels of a data set mean. categories: of the objects, for parts alone; offsets:
    category c has the classes offsets[c] .. offsets[c + 1]."""

    classes: tuple[str, ...]
    columns: int
    categories: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()


def builder(kind: str) -> Callable[..., nn.Module]:
    """The class of a model: a key of BUILDERS, or "module:Class". Raises WrongUseError."""
    if kind in BUILDERS:
        return BUILDERS[kind]
    module, colon, name = kind.partition(":")
    if not colon:
        raise WrongUseError(
            f"model.kind {kind!r} is unknown: choose {', '.join(BUILDERS)}, or module:Class"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise WrongUseError(f"model.kind {kind!r} cannot be loaded: {error}") from None
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise WrongUseError(f"model.kind {kind!r} must be a class of torch.nn.Module, got {found}")
    return found


def build_model(config: Config, labels: Labels) -> nn.Module:
    """The model of a configuration, for data with these labels. Raises WrongUseError."""
    if config.task == "detect":
        kind, made = checked_detector(config, labels, "the configuration")
        return DETECTORS[kind][0](made)
    build = builder(config.model.kind)
    given: dict[str, Any] = {"num_classes": len(labels.classes), "in_channels": labels.columns}
    if config.task == "parts":
        given["num_categories"] = len(labels.categories)
    known = inspect.signature(build).parameters
    given = {key: value for key, value in given.items() if key in known}
    try:
        return build(**given, **config.model.args)
    except (TypeError, ValueError) as error:
        raise WrongUseError(f"model.args: {error}") from None


def checked_detector(config: Config, labels: Labels, name: str) -> tuple[str, Any]:
    """The kind of detector and its configuration, with the classes and columns of the data unless
    it names these. Raises WrongUseError."""
    args = {"classes": labels.classes, "columns": labels.columns, **config.model.args}
    kind, made = checked_model(config.model.kind, args, name)
    for what, mine, other in (
        ("classes", list(made.classes), list(labels.classes)),
        ("columns", made.columns, labels.columns),
    ):
        if mine != other:
            raise WrongUseError(f"{name}: model.args.{what} must be {other} of data, got {mine}")
    if made.loss is None:
        raise WrongUseError(f"{name}: model.args.loss is missing, without which nothing is taught")
    return kind, made


def build_data(config: Config, split: str) -> Generated:
    """The data of a split, train or val. Raises WrongUseError where it has no sample."""
    options = config.data.model_dump(exclude={"kind", "in_memory", "train_size", "val_size"})
    if size := getattr(config.data, f"{split}_size", None):
        options["size"] = size
    data = DATA[config.data.kind](split=split, **options)
    if len(data) == 0:
        raise WrongUseError(f"data: the split {split} of {config.data.kind} has no sample")
    return data


def labels_of(config: Config, data: Generated | None = None) -> Labels:
    """What the labels of a configuration mean; `data` where its files say it (ModelNet40)."""
    if config.data.kind == "folder":
        return Labels(config.data.classes, len(config.data.columns))
    if config.data.kind == "kitti":
        return Labels(config.data.classes, 4)
    if config.data.kind == "nuscenes":
        return Labels(nuscenes.CLASSES, 5)
    if config.data.kind == "world":
        return Labels(CLASSES, 5 if config.data.sweeps > 1 else 4)
    if config.task == "parts":
        return Labels(shapes.PARTS, 3, shapes.CLASSES, shapes.PART_OFFSETS)
    if config.data.kind == "shapes":
        return Labels(shapes.CLASSES, 3)
    if config.data.kind == "modelnet40":
        known = data if data is not None else build_data(config, "val")
        return Labels(tuple(known.classes), 6 if config.data.normals else 3)
    return Labels(furniture.CLASSES, 9)
