# SPDX-License-Identifier: Apache-2.0
"""From a configuration to data sets and models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from torchvox._util.errors import WrongUseError
from torchvox._util.values import plain
from torchvox.data.generated import Generated
from torchvox.data.readers.folder import ScanFolder
from torchvox.data.readers.kitti import Kitti
from torchvox.data.readers.modelnet import ModelNet40
from torchvox.data.readers.nuscenes import NuScenes
from torchvox.data.readers.objects import Objects
from torchvox.data.readers.s3dis import S3DIS
from torchvox.data.readers.segments import Segments
from torchvox.data.worlds.rooms import Rooms
from torchvox.data.worlds.shapes import Shapes
from torchvox.data.worlds.street import World, WorldSurfaces
from torchvox.models.detection.files import KINDS as DETECTORS
from torchvox.train.config import Config, ModelNet40Data, ObjectsData
from torchvox.train.tasks import Labels, builder, checked_detector

DATA: dict[str, Callable[..., Generated]] = {
    "folder": ScanFolder,
    "kitti": Kitti,
    "modelnet40": ModelNet40,
    "nuscenes": NuScenes,
    "objects": Objects,
    "rooms": Rooms,
    "s3dis": S3DIS,
    "segments": Segments,
    "shapes": Shapes,
    "world": World,
}
NOT_OF_DATA = ("kind", "in_memory", "train_size", "val_size")


def build_model(config: Config, labels: Labels) -> nn.Module:
    """The model of a configuration, for data with these labels. Raises WrongUseError."""
    if config.task == "detect":
        kind, detector = checked_detector(config.model, labels, "the configuration")
        return DETECTORS[kind][0](detector)
    if len(labels.classes) < 2:
        got = ", ".join(labels.classes) or "none"
        raise WrongUseError(f"data: the task {config.task} needs two classes or more, got {got}")
    build = builder(config.model.kind)
    sizes = {"num_classes": len(labels.classes), "in_channels": labels.columns}
    if config.task == "parts":
        sizes["num_categories"] = len(labels.categories)
    parameters = inspect.signature(build).parameters
    sizes = {key: value for key, value in sizes.items() if key in parameters}
    try:
        return build(**sizes, **config.model.args)
    except (TypeError, ValueError) as error:
        raise WrongUseError(f"model.args: {error}") from None


def build_data(config: Config, split: str) -> Generated:
    """The data of a split, train or val. Raises WrongUseError where it has no sample."""
    options: dict[str, Any] = {
        key: getattr(config.data, key) for key in plain(config.data) if key not in NOT_OF_DATA
    }
    if size := getattr(config.data, f"{split}_size", None):
        options["size"] = size
    kind = DATA[config.data.kind]
    if config.task == "segment" and kind is World:
        kind = WorldSurfaces
    data = kind(split=split, **options)
    if len(data) == 0:
        raise WrongUseError(f"data: the split {split} of {config.data.kind} has no sample")
    return data


def labels_of(config: Config, data: Generated | None = None) -> Labels:
    """What the labels of a configuration mean; `data` where its files say it."""
    if isinstance(config.data, (ModelNet40Data, ObjectsData)):
        data = data if data is not None else build_data(config, "val")
        assert isinstance(data, (ModelNet40, Objects))
        return Labels(tuple(data.classes), data.columns)
    return config.labels()
