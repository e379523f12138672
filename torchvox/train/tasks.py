# SPDX-License-Identifier: Apache-2.0
"""Tasks, and the models that learn them: explicit tables, nothing registers itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from torchvox import models
from torchvox._util.config_files import unknown_key
from torchvox._util.errors import WrongUseError
from torchvox.models.detection.files import ModelConfig, checked_model

BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "pointnet2_classifier": models.PointNet2Classifier,
    "pointnet2_part_segmenter": models.PointNet2PartSegmenter,
    "pointnet2_segmenter": models.PointNet2Segmenter,
    "minkunet": models.MinkUNet,
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
    "classify": Task(("shapes", "modelnet40", "objects"), "label", "accuracy"),
    "parts": Task(("shapes",), "parts", "miou"),
    "segment": Task(("rooms", "s3dis", "segments", "world"), "labels", "miou"),
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
        built = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise WrongUseError(f"model.kind {kind!r} cannot be loaded: {error}") from None
    if not (inspect.isclass(built) and issubclass(built, nn.Module)):
        raise WrongUseError(f"model.kind {kind!r} must be a class of torch.nn.Module, got {built}")
    return built


def check_arguments(model: ModelConfig, name: str) -> None:
    """Raises WrongUseError for arguments of a model that it does not take or the data give."""
    parameters = inspect.signature(builder(model.kind)).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in model.args:
        if key in FROM_DATA:
            raise WrongUseError(f"{name}: model.args.{key} comes from the data")
        if key not in parameters and not open_ended:  # else the model itself refuses it
            mine = [one for one in parameters if one not in FROM_DATA]
            raise WrongUseError(f"{name}: {unknown_key(key, mine, 'model.args.')}")


def checked_detector(model: ModelConfig, labels: Labels, name: str) -> tuple[str, Any]:
    """The kind of detector and its configuration, with the classes and columns of the data unless
    it names these. Raises WrongUseError."""
    data: Mapping[str, Any] = {"classes": labels.classes, "columns": labels.columns}
    kind, config = checked_model(replace(model, args={**data, **model.args}), name)
    for key, value in data.items():
        if (mine := getattr(config, key)) != value:
            mine, value = (list(v) if isinstance(v, tuple) else v for v in (mine, value))
            raise WrongUseError(f"{name}: model.args.{key} must be {value} of data, got {mine}")
    if config.loss is None:
        raise WrongUseError(f"{name}: model.args.loss is required for training")
    return kind, config
