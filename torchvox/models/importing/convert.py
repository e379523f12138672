# SPDX-License-Identifier: Apache-2.0
"""From a reference checkpoint to a model of ours: every tensor is used, and used once."""

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from torchvox.models.checkpoints import CheckpointError, build
from torchvox.models.importing.backbone_neck import Pair, State
from torchvox.models.importing.layouts import Layout
from torchvox.models.importing.settings import Declared, Flag, Settings
from torchvox.models.importing.sources import LAYOUTS
from torchvox.models.importing.sources.mmdet3d import mmdet3d_config
from torchvox.models.importing.voxels import in_our_order
from torchvox.models.sizes import check_network, check_tensors, check_values

# Where training programs keep the tensors: yanx27, Lightning, older Pointnet2_PyTorch.
WRAPPERS = ("model_state_dict", "state_dict", "model_state")
PREFIXES = ("module.", "model.")
# What values of a configuration can raise that are not of the type they should be.
UNFIT = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError)


@dataclass(frozen=True)
class Imported:
    """model: in evaluation mode. state: the checkpoint's own tensors. used: how many there were.
    flags: what was chosen that the network does not show. notes: warnings about such models."""

    model: nn.Module
    layout: Layout
    state: Dict[str, Tensor]
    used: int
    flags: Tuple[Flag, ...] = ()
    notes: Tuple[str, ...] = ()


def tensors_of(content: object) -> Dict[str, Tensor]:
    """The state dict inside a checkpoint, without the prefix of a wrapping module."""
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content:
        raise CheckpointError("the checkpoint holds no state dict")
    state = {str(k): v for k, v in content.items()}
    strange = [k for k, v in state.items() if not isinstance(v, Tensor)]
    if strange:
        raise CheckpointError(f"the state dict holds more than tensors: {_some(strange)}")
    try:
        check_tensors(state)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key[len(prefix) :]: value for key, value in state.items()}
    return state


def meta_of(content: object) -> Dict[str, Any]:
    """What programs of OpenMMLab write beside the tensors: their release, their configuration."""
    meta = content.get("meta") if isinstance(content, dict) else None
    return meta if isinstance(meta, dict) else {}


def convert(
    content: object,
    layout: Optional[str] = None,
    settings: Optional[Mapping[str, Any]] = None,
    declared: Optional[Declared] = None,
) -> Imported:
    """The model of a checkpoint's content. layout: name of one of LAYOUTS; None: inferred from the
    names.
    settings: values of a detector's configuration, nested or by dotted names, that no tensor
    shows and that are not those of the published networks. declared: the same from the
    configuration of the program; None: from the file, where mmdetection3d wrote it.

    Raises CheckpointError, naming the tensors, when one is missing, left over or of another shape,
    and when a setting is needed or does not fit.
    """
    state = tensors_of(content)
    chosen = _layout_of(content, state, layout)
    detector = bool(chosen.boxes)
    if (settings or declared) and not detector:
        raise CheckpointError(f"{chosen.source}: its tensors say everything, nothing can be set")
    if declared is None:
        meta = meta_of(content) if chosen.configured else {}
        text = meta.get("config") or meta.get("cfg") or ""  # of mmcv, of mmengine
        declared = mmdet3d_config(str(text))
    options = Settings(settings or {}, declared.settings)
    try:
        network = chosen.describe(state, options)
        config = {"config": options.applied(network.config)} if detector else network.config
        check_values(config)
        check_network(lambda: build(network.model, config), state)
        model = build(network.model, config)
        pairs = chosen.pairs(model, state)
    except CheckpointError:
        raise
    except UNFIT as error:
        raise CheckpointError(f"{chosen.source}: {error}") from None
    fill(model, in_our_order(state), pairs)
    if detector:
        _unscale(model)
    notes = declared.notes if declared.settings else chosen.notes.get(network.model, ())
    return Imported(model.eval(), chosen, state, len(state), tuple(options.flags), notes)


def _layout_of(content: object, state: State, name: Optional[str]) -> Layout:
    """The layout of this name, or that of the tensors' names and the release in the file."""
    named = [one for one in LAYOUTS if name in (None, one.name)]
    if not named:
        names = ", ".join(one.name for one in LAYOUTS)
        raise CheckpointError(f"no layout {name!r}: there are {names}")
    release = str(meta_of(content).get("mmdet3d_version", "")) if name is None else ""
    for one in named:
        if one.matches(state) and (name is not None or release.startswith(one.release)):
            return one
    sources = " or ".join(one.source for one in named)
    raise CheckpointError(f"the tensors are not named as in {sources}: {_some(list(state))}")


def fill(model: nn.Module, state: State, names: List[Pair]) -> None:
    """Loads the tensors. Trailing sizes of 1, of 1x1 convolutions, are dropped where the model has
    none."""
    own, taken = model.state_dict(), [theirs for theirs, _ in names]
    old = not any(name.endswith("num_batches_tracked") for name in state)  # torch before 0.4.1
    missing = [
        theirs
        for theirs in taken
        if theirs not in state and not (old and theirs.endswith("num_batches_tracked"))
    ]
    left = sorted(set(state) - set(taken))
    if missing or left:
        parts = [("has no ", missing), ("has tensors that nothing takes: ", left)]
        problems = "; and ".join(f"{words}{_some(keys)}" for words, keys in parts if keys)
        raise CheckpointError(f"the checkpoint {problems}")
    kept = [(theirs, ours) for theirs, ours in names if ours is not None]
    apart = sorted(set(own) ^ {ours for _, ours in kept})
    if apart:
        raise CheckpointError(f"the checkpoint and the network differ in {_some(apart)}")
    assert len(set(taken)) == len(taken) and len(kept) == len(own)
    loaded: Dict[str, Tensor] = {}
    for theirs, ours in kept:
        tensor = state.get(theirs, own[ours])
        fits = tensor.shape == own[ours].shape
        ones = tensor.dim() > 2 and all(size == 1 for size in tensor.shape[2:])
        flat = tensor.flatten(1) if ones and not fits else tensor
        if flat.shape != own[ours].shape:
            raise CheckpointError(
                f"{theirs} must be {list(own[ours].shape)} to be {ours}, got {list(tensor.shape)}"
            )
        loaded[ours] = flat
    with torch.no_grad():
        model.load_state_dict(loaded)


def _unscale(model: nn.Module) -> None:
    """Weights that were trained on columns as they come take what the model divides by."""
    config = model.config()["config"]
    with torch.no_grad():
        weight = model.column_weight()
        for column, factor in enumerate(config["column_scale"]):
            weight[..., column] = (weight[..., column].double() / factor).to(weight.dtype)


def _some(names: List[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
