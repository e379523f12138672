# SPDX-License-Identifier: Apache-2.0
"""What a source knows of its checkpoints: which network, and where each tensor belongs."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Tuple

from torch import nn

from torchvox.models.importing.backbone_neck import Pair, State, conv, norm, shape
from torchvox.models.importing.settings import Settings

# Names of a layer: its linear map there, its batch norm there ("": none), the layer here.
Layer = Tuple[str, str, str]


@dataclass(frozen=True)
class Found:
    """The network of a checkpoint: a class of torchvox.models, its arguments."""

    model: str
    config: Dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """name: of the preset too. keys: how names of its tensors alone begin. describe: the network,
    from tensors and settings. pairs: every tensor with its name in a model of ours.
    boxes: convention of what the network detects. release: how the release that wrote a file must
    begin, where others have the same names. configured: whether files hold the configuration, as
    those of mmdetection3d do. notes: printed with a model, by its class."""

    name: str
    source: str
    keys: Tuple[str, ...]
    describe: Callable[[State, Settings], Found]
    pairs: Callable[[nn.Module, State], List[Pair]]
    boxes: str = ""
    release: str = ""
    configured: bool = False
    notes: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)

    def matches(self, state: State) -> bool:
        return any(name.startswith(self.keys) for name in state)


def width(state: State, name: str, axis: int) -> int:
    return shape(state, name, axis + 1)[axis]


def layer_pairs(
    layers: Callable[[nn.Module, State], Iterator[Layer]],
) -> Callable[[nn.Module, State], List[Pair]]:
    def pairs(model: nn.Module, state: State) -> List[Pair]:
        own = model.state_dict()
        names: List[Pair] = []
        for linear, norm_name, ours in layers(model, state):
            mine = f"{ours}.linear" if norm_name else ours
            names += conv(linear, mine, bias=f"{mine}.bias" in own)
            names += norm(norm_name, f"{ours}.norm") if norm_name else []
        return names

    return pairs
