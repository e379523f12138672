# SPDX-License-Identifier: Apache-2.0
"""Models by name, as in torchvision: `get_model("center_world_small", weights="default")`.

registry.json beside this file says what each name is, so that torch and NumPy are enough; it is
written from configs/models by configs/registry.py, and tests hold the two together.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Literal,
    Mapping,
    Optional,
    Tuple,
    Union,
    overload,
)

from torch import nn

from torchvox._util.config_files import merged
from torchvox._util.errors import WrongUseError, short
from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError

if TYPE_CHECKING:
    from torchvox.models.detection import (
        CenterPointPillars,
        CenterPointVoxel,
        PointPillars,
        Second,
        VoxelNeXt,
    )
    from torchvox.models.minkunet import MinkUNet
    from torchvox.models.pointnet2 import (
        PointNet2Classifier,
        PointNet2PartSegmenter,
        PointNet2Segmenter,
    )

FOLDER = Path(__file__).parent
DEFAULT = "default"
Weights = Union[None, str, Path]
# The names of each class, for editors; a test compares them with the registry.
Centers = Literal["center_world_small", "centerpoint_pillars_nuscenes", "centerpoint_world"]
Anchors = Literal["pointpillars_kitti", "pointpillars_nuscenes_multihead", "pointpillars_world"]
VoxelAnchors = Literal["second_kitti", "second_world"]
VoxelCenters = Literal["centerpoint_voxel_nuscenes"]
VoxelRows = Literal["voxelnext_nuscenes"]
Classifiers = Literal["pointnet2_cls_shapes", "pointnet2_cls_shapes_small"]
Parts = Literal["pointnet2_part_shapes"]
Segmenters = Literal["pointnet2_rooms"]
UNets = Literal["minkunet_world"]


@dataclass(frozen=True)
class ModelWeights:
    """Weights that are shipped. name: of the set. classes: what the labels of the model mean.
    metrics: measured with the command `measured`, on data that no training step and no choice of an
    epoch has seen. command: made them."""

    model: str
    name: str
    path: Path
    sha256: str
    classes: Tuple[str, ...]
    metrics: Mapping[str, float]
    measured: str
    command: str
    license: str


def list_models(task: Optional[str] = None) -> List[str]:
    """Names that `get_model` knows, sorted. task: "classify", "detect", "parts" or "segment"; None:
    all.

    Raises WrongUseError for an unknown task.
    """
    tasks = sorted({entry["task"] for entry in _registry().values()})
    if task is not None and task not in tasks:
        rule = f"list_models: task must be one of {', '.join(tasks)}"
        raise WrongUseError(f"{rule}, got {short(repr(task))}")
    return sorted(name for name, one in _registry().items() if task in (None, one["task"]))


def get_model_weights(name: str) -> Dict[str, ModelWeights]:
    """The sets of weights that are shipped for a model, by their names, the default one first.

    Raises WrongUseError for an unknown name.
    """
    sets = {}
    for key, one in _entry(name, "get_model_weights").get("weights", {}).items():
        path, classes = FOLDER / "weights" / f"{name}.{key}.pt", tuple(one["classes"])
        sets[key] = ModelWeights(name, key, path, **{**one, "classes": classes})
    return sets


@overload
def get_model(
    name: Centers, weights: Weights = ..., **overrides: object
) -> "CenterPointPillars": ...
@overload
def get_model(name: Anchors, weights: Weights = ..., **overrides: object) -> "PointPillars": ...
@overload
def get_model(name: VoxelAnchors, weights: Weights = ..., **overrides: object) -> "Second": ...
@overload
def get_model(
    name: VoxelCenters, weights: Weights = ..., **overrides: object
) -> "CenterPointVoxel": ...
@overload
def get_model(name: VoxelRows, weights: Weights = ..., **overrides: object) -> "VoxelNeXt": ...
@overload
def get_model(
    name: Classifiers, weights: Weights = ..., **overrides: object
) -> "PointNet2Classifier": ...
@overload
def get_model(
    name: Parts, weights: Weights = ..., **overrides: object
) -> "PointNet2PartSegmenter": ...
@overload
def get_model(
    name: Segmenters, weights: Weights = ..., **overrides: object
) -> "PointNet2Segmenter": ...
@overload
def get_model(name: UNets, weights: Weights = ..., **overrides: object) -> "MinkUNet": ...
@overload
def get_model(name: str, weights: Weights = ..., **overrides: object) -> nn.Module: ...
def get_model(name: str, weights: Weights = None, **overrides: object) -> nn.Module:
    """A network by its name, on the CPU, in evaluation mode with weights, in training mode without.

    name: one of `list_models()`. weights: None: not trained, from torch's random numbers;
    "default", or the name of a set of `get_model_weights(name)`: shipped with the package and
    checked against its digest; a path of a .pt file: what `torchvox train`, `torchvox import` or
    `models.save` wrote for a network of this class.
    overrides: arguments of the network in place of those of the configuration (or of the file with
    weights), mappings key by key: `detections={"score": 0.3}`, `num_classes=40`.

    Raises WrongUseError for an unknown name, set of weights or argument, CheckpointError for a file
    that is damaged or does not fit.

    >>> model = torchvox.models.get_model("pointnet2_cls_shapes_small", weights="default")
    >>> model(torchvox.data.generate_shapes([3])["points"]).shape
    torch.Size([1, 16])
    """
    entry = _entry(name, "get_model")
    if weights is None:
        return _built(name, entry["args"], overrides)
    path = weights_file(name, weights)
    model = checkpoints.load(path)
    if type(model).__name__ != entry["model"]:
        kind = type(model).__name__
        raise CheckpointError(f"{path} must hold a {entry['model']} to be {name}, got a {kind}")
    if not overrides:
        return model
    changed = _built(name, model.config(), overrides)
    try:
        changed.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            f"get_model: {path} does not fit {name} with {', '.join(overrides)}: {short(error)}"
        ) from None
    return changed.eval()


def weights_file(name: str, weights: Union[str, Path] = DEFAULT) -> Path:
    """The file of a set of weights, once its bytes are those that the registry knows; a path as it
    is. Raises WrongUseError, CheckpointError."""
    entry, sets = _entry(name, "get_model"), get_model_weights(name)
    if isinstance(weights, Path) or str(weights).endswith(".pt"):
        return Path(weights)
    names = (DEFAULT, *sets)
    if not sets or weights not in names:
        rule = f"no weights of {name} are shipped: {entry['made_by']}, and weights takes the path"
        if sets:
            rule = f"weights of {name} must be None, {', '.join(names)} or the path"
        raise WrongUseError(f"get_model: {rule} of a .pt file, got {short(repr(weights))}")
    chosen = sets[next(iter(sets)) if weights == DEFAULT else weights]
    try:
        digest = hashlib.sha256(chosen.path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{chosen.path}: {error.strerror or error}") from None
    if digest != chosen.sha256:
        raise CheckpointError(
            f"{chosen.path} is damaged: its SHA-256 digest must be {chosen.sha256}, got {digest}"
        )
    return chosen.path


def named_file(path: Union[str, Path]) -> Path:
    """Of a command's argument: the file, or the shipped one of the model of this name."""
    if Path(path).exists() or str(path) not in _registry():
        return Path(path)
    return weights_file(str(path))


def _built(name: str, args: Mapping[str, Any], overrides: Mapping[str, Any]) -> nn.Module:
    """From arguments of the class with overrides; those of a detector are its configuration."""
    if "config" in args:
        changed = {"config": merged(args["config"], overrides)}
    else:
        changed = merged(args, overrides)
    try:
        return checkpoints.build(_registry()[name]["model"], changed)
    except (TypeError, ValueError) as error:
        raise WrongUseError(f"get_model: {name}: {short(error)}") from None


def _entry(name: str, function: str) -> Dict[str, Any]:
    if isinstance(name, str) and name in _registry():
        return _registry()[name]
    near = get_close_matches(str(name), list_models(), 3, 0.4) or list_models()
    hint = f"did you mean {' or '.join(near)}?" if len(near) < 4 else f"choose {', '.join(near)}"
    raise WrongUseError(f"{function}: no model {short(repr(name))}: {hint}")


@functools.lru_cache(None)
def _registry() -> Dict[str, Dict[str, Any]]:
    return json.loads((FOLDER / "registry.json").read_text(encoding="utf-8"))
