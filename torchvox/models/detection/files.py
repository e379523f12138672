# SPDX-License-Identifier: Apache-2.0
"""Detectors from configuration files: `task: detect`, and a `model` with `kind` and `args`."""

from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Type, Union

from torch import nn

from torchvox._configs import read, shipped, unknown_key
from torchvox._errors import WrongUseError
from torchvox.models.detection.config import CenterPointPillarsConfig, PointPillarsConfig
from torchvox.models.detection.detector import CenterPointPillars, PointPillars
from torchvox.models.detection.validation import validated

KINDS: Dict[str, Tuple[Type[nn.Module], type]] = {
    "pointpillars": (PointPillars, PointPillarsConfig),
    "center_pointpillars": (CenterPointPillars, CenterPointPillarsConfig),
}
TRAINING = ("data", "train")  # entries about how it is trained, which others read


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
    content = {key: part for key, part in content.items() if key not in TRAINING}
    for key, known in (("", ("task", "model")), ("model", ("kind", "args"))):
        part = content.get(key) if key else content
        if not isinstance(part, Mapping):
            raise WrongUseError(f"{name}: {key} must hold keys and values")
        for one in part:
            if one not in known:
                raise WrongUseError(f"{name}: {unknown_key(one, known, key and key + '.')}")
        for one in known:
            if one not in part:
                raise WrongUseError(f"{name}: {key and key + '.'}{one} is missing")
    if content["task"] != "detect":
        raise WrongUseError(f"{name}: task must be detect, got {content['task']!r}")
    return checked_model(content["model"]["kind"], content["model"]["args"], name)


def checked_model(kind: Any, args: Any, name: str) -> Tuple[str, Any]:
    """The same of the `model` of a configuration. Raises WrongUseError."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise WrongUseError(f"{name}: model.kind must be one of {', '.join(KINDS)}, got {kind!r}")
    try:
        return kind, validated(KINDS[kind][1], args)
    except ValueError as error:
        raise WrongUseError(f"{name}: model.args: {error}") from None
