# SPDX-License-Identifier: Apache-2.0
"""From a reference checkpoint to a model of ours: every tensor is used, and used once."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from torchvox.models.checkpoints import CheckpointError, build
from torchvox.models.importing.layouts import LAYOUTS, Layout, State

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
# Where training programs keep the tensors: yanx27, Lightning, older Pointnet2_PyTorch.
WRAPPERS = ("model_state_dict", "state_dict", "model_state")
PREFIXES = ("module.", "model.")


@dataclass(frozen=True)
class Imported:
    """model: in evaluation mode. state: the checkpoint's own tensors. used: how many there were."""

    model: nn.Module
    layout: Layout
    state: Dict[str, Tensor]
    used: int


def tensors_of(content: Any) -> Dict[str, Tensor]:
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
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key[len(prefix) :]: value for key, value in state.items()}
    return state


def convert(content: Any, layout: Optional[str] = None) -> Imported:
    """The model of a checkpoint's content. layout: "yanx27" or "pn2"; None: told by the names.

    Raises CheckpointError, naming the tensors, when one is missing, left over or of another shape.
    """
    state = tensors_of(content)
    known = [one for one in LAYOUTS if layout in (None, one.name) and one.matches(state)]
    if not known:
        raise CheckpointError(
            f"the tensors are not named as in {' or '.join(one.source for one in LAYOUTS)}: "
            f"{_some(list(state))}"
        )
    found = known[0].describe(state)
    model = build(found.model, found.config)
    fill(model, state, pairs(known[0], model, state))
    return Imported(model.eval(), known[0], state, len(state))


def pairs(layout: Layout, model: nn.Module, state: State) -> List[Tuple[str, str]]:
    """(tensor there, tensor here), all of them."""
    own = model.state_dict()
    names: List[Tuple[str, str]] = []
    for linear, norm, ours in layout.layers(model, state):
        names.append((f"{linear}.weight", f"{ours}.linear.weight"))
        if f"{ours}.linear.bias" in own:
            names.append((f"{linear}.bias", f"{ours}.linear.bias"))
        names += [(f"{norm}.{part}", f"{ours}.norm.{part}") for part in NORM]
    scores = layout.scores(model, state)
    names += [(f"{scores}.{part}", f"head.scores.{part}") for part in ("weight", "bias")]
    return names


def fill(model: nn.Module, state: State, names: List[Tuple[str, str]]) -> None:
    """Loads the tensors. Trailing sizes of 1, of 1x1 convolutions, are dropped."""
    own, wanted = model.state_dict(), [theirs for theirs, _ in names]
    old = not any(name.endswith("num_batches_tracked") for name in state)  # torch before 0.4.1
    missing = [
        theirs
        for theirs in wanted
        if theirs not in state and not (old and theirs.endswith("num_batches_tracked"))
    ]
    left = sorted(set(state) - set(wanted))
    if missing or left:
        parts = [("has no ", missing), ("has tensors that nothing takes: ", left)]
        said = "; and ".join(f"{words}{_some(keys)}" for words, keys in parts if keys)
        raise CheckpointError(f"the checkpoint {said}")
    assert len(set(wanted)) == len(wanted) and {ours for _, ours in names} == set(own)
    loaded: Dict[str, Tensor] = {}
    for theirs, ours in names:
        tensor = state.get(theirs, own[ours])
        flat = tensor.flatten(1) if tensor.dim() > 2 else tensor
        if flat.shape != own[ours].shape:
            raise CheckpointError(
                f"{theirs} must be {list(own[ours].shape)} to be {ours}, got {list(tensor.shape)}"
            )
        loaded[ours] = flat
    with torch.no_grad():
        model.load_state_dict(loaded)


def _some(names: List[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
