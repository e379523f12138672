# SPDX-License-Identifier: Apache-2.0
"""Detectors from configuration files: `task: detect`, and a `model` with `kind` and `args`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Literal, Mapping, Sequence, Tuple, Type, Union

from torch import nn

from torchvox._util.config_files import read, shipped
from torchvox._util.errors import WrongUseError
from torchvox._util.values import from_plain
from torchvox.models.detection.config import (
    CenterPointPillarsConfig,
    CenterPointVoxelConfig,
    PointPillarsConfig,
    SecondConfig,
    VoxelNeXtConfig,
)
from torchvox.models.detection.detector import (
    CenterPointPillars,
    CenterPointVoxel,
    PointPillars,
    Second,
)
from torchvox.models.detection.validation import validated
from torchvox.models.detection.voxelnext import VoxelNeXt

KINDS: Dict[str, Tuple[Type[nn.Module], type]] = {
    "pointpillars": (PointPillars, PointPillarsConfig),
    "center_pointpillars": (CenterPointPillars, CenterPointPillarsConfig),
    "second": (Second, SecondConfig),
    "center_voxel": (CenterPointVoxel, CenterPointVoxelConfig),
    "voxelnext": (VoxelNeXt, VoxelNeXtConfig),
}
TRAINING = ("data", "train")  # entries about how it is trained, which others read


@dataclass(frozen=True)
class ModelConfig:
    """kind: a key of torchvox.train.tasks.BUILDERS, or "module:Class"; for detect a kind of
    detector. args: its arguments; the numbers of classes, categories and columns come from the
    data."""

    kind: str
    args: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _File:
    task: Literal["detect"]
    model: ModelConfig


def detector_names() -> List[str]:
    """Names that `detector` knows, sorted."""
    return shipped(lambda content: content.get("task") == "detect")


def detector(name: Union[str, Path], overrides: Sequence[str] = ()) -> nn.Module:
    """A detector, not trained, by the name of a configuration or from a .yaml file, with overrides
    such as "model.args.max_points=20".

    Raises WrongUseError for an unknown name, key or value.
    """
    kind, config = checked(read(str(name), overrides), str(name))
    try:
        return KINDS[kind][0](config)
    except ValueError as error:
        raise WrongUseError(f"{name}: model.args: {error}") from None


def checked(content: Mapping[str, Any], name: str) -> Tuple[str, Any]:
    """(kind, its configuration). Raises WrongUseError that names what is wrong."""
    try:
        file = from_plain(_File, {k: v for k, v in content.items() if k not in TRAINING})
    except ValueError as error:
        raise WrongUseError(f"{name}: {error}") from None
    return checked_model(file.model, name)


def checked_model(model: ModelConfig, name: str) -> Tuple[str, Any]:
    """The same of the `model` of a configuration. Raises WrongUseError."""
    kind = model.kind
    if kind not in KINDS:
        raise WrongUseError(f"{name}: model.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        return kind, validated(KINDS[kind][1], model.args)
    except ValueError as error:
        raise WrongUseError(f"{name}: model.args: {error}") from None
