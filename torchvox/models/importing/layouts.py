# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a reference checkpoint say of the network, and where each belongs; here for
the two references of PointNet++."""

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
    """name: of the preset too. matches: whether tensor names are of this layout. describe: the
    network, from tensors and settings. pairs: every tensor with its name in a model of ours.
    boxes: convention of what the network detects. release: how the release that wrote a file must
    begin, where others have the same names. configured: whether files hold the configuration, as
    those of mmdetection3d do. notes: to be said with a model, by its class."""

    name: str
    source: str
    matches: Callable[[State], bool]
    describe: Callable[[State, Settings], Found]
    pairs: Callable[[nn.Module, State], List[Pair]]
    boxes: str = ""
    release: str = ""
    configured: bool = False
    notes: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)


def _width(state: State, name: str, axis: int) -> int:
    return shape(state, name, axis + 1)[axis]


def _pairs(
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


# ------------------------------------------------------------ yanx27/Pointnet_Pointnet2_pytorch


def _describe_yanx27(state: State, settings: Settings) -> Found:
    several = any(key.startswith("sa1.conv_blocks.") for key in state)
    first = "sa1.conv_blocks.0.0.weight" if several else "sa1.mlp_convs.0.weight"
    seen = _width(state, first, 1) - 3  # beside relative coordinates
    config: Dict[str, Any] = {"preset": "yanx27", "scales": "msg" if several else "ssg"}
    if "fc3.weight" in state:
        config |= {"num_classes": _width(state, "fc3.weight", 0), "in_channels": 3 + seen}
        return Found("PointNet2Classifier", config)
    config |= {"num_classes": _width(state, "conv2.weight", 0), "in_channels": seen}
    if any(key.startswith("sa4.") for key in state):
        return Found("PointNet2Segmenter", config)
    config["num_categories"] = _width(state, "fp1.mlp_convs.0.weight", 1) - 128 - 3 - seen
    return Found("PointNet2PartSegmenter", config)


def _layers_yanx27(model: nn.Module, state: State) -> Iterator[Layer]:
    for i, level in enumerate(model.levels):
        several = len(level.mlps) > 1
        for s, mlp in enumerate(level.mlps):
            for j in range(len(mlp.layers)):
                conv = f"conv_blocks.{s}.{j}" if several else f"mlp_convs.{j}"
                norm = f"bn_blocks.{s}.{j}" if several else f"mlp_bns.{j}"
                ours = f"levels.{i}.mlps.{s}.layers.{j}"
                yield f"sa{i + 1}.{conv}", f"sa{i + 1}.{norm}", ours
    ups = getattr(model, "propagation", [])
    for i, up in enumerate(ups):
        for j in range(len(up.mlp.layers)):
            theirs = f"fp{len(ups) - i}"
            ours = f"propagation.{i}.mlp.layers.{j}"
            yield f"{theirs}.mlp_convs.{j}", f"{theirs}.mlp_bns.{j}", ours
    linear = "conv" if ups else "fc"
    for j in range(len(model.head.layers)):
        yield f"{linear}{j + 1}", f"bn{j + 1}", f"head.layers.{j}"
    yield "conv2" if ups else "fc3", "", "head.scores"


# ------------------------------------------------------------- erikwijmans/Pointnet2_PyTorch


def _pn2_head(state: State) -> str:
    """fc_lyaer is how its segmenters spell it."""
    return next((key.split(".")[0] for key in state if key.startswith("fc_l")), "fc_layer")


def _describe_pn2(state: State, settings: Settings) -> Found:
    several = any(key.startswith("SA_modules.0.mlps.1.") for key in state)
    segments = any(key.startswith("FP_modules.") for key in state)
    last = {True: "4", False: "7"}[segments]
    ends = [key for key in state if key.startswith("SA_modules.0.") and key.endswith(".6.weight")]
    pooled = sum(_width(state, key, 0) for key in ends)
    use_xyz = _width(state, "SA_modules.1.mlps.0.0.weight", 1) == pooled + 3
    features = _width(state, "SA_modules.0.mlps.0.0.weight", 1) - (3 if use_xyz else 0)
    config: Dict[str, Any] = {
        "preset": "pn2",
        "scales": "msg" if several else "ssg",
        "num_classes": _width(state, f"{_pn2_head(state)}.{last}.weight", 0),
        "in_channels": 3 + features,
    }
    if not use_xyz:
        config["use_xyz"] = False
    return Found("PointNet2Segmenter" if segments else "PointNet2Classifier", config)


def _layers_pn2(model: nn.Module, state: State) -> Iterator[Layer]:
    for i, level in enumerate(model.levels):
        for s, mlp in enumerate(level.mlps):
            theirs = f"SA_modules.{i}.mlps.{s}"
            for j in range(len(mlp.layers)):
                ours = f"levels.{i}.mlps.{s}.layers.{j}"
                yield f"{theirs}.{3 * j}", f"{theirs}.{3 * j + 1}", ours
    ups = getattr(model, "propagation", [])
    for i, up in enumerate(ups):
        theirs = f"FP_modules.{len(ups) - 1 - i}.mlp"
        for j in range(len(up.mlp.layers)):
            yield f"{theirs}.{3 * j}", f"{theirs}.{3 * j + 1}", f"propagation.{i}.mlp.layers.{j}"
    head = _pn2_head(state)
    for j in range(len(model.head.layers)):
        yield f"{head}.{3 * j}", f"{head}.{3 * j + 1}", f"head.layers.{j}"
    yield f"{head}.{4 if ups else 7}", "", "head.scores"


POINTNET2: List[Layout] = [
    Layout(
        "yanx27",
        "yanx27/Pointnet_Pointnet2_pytorch",
        lambda state: any(key.startswith(("sa1.mlp_convs.", "sa1.conv_blocks.")) for key in state),
        _describe_yanx27,
        _pairs(_layers_yanx27),
    ),
    Layout(
        "pn2",
        "erikwijmans/Pointnet2_PyTorch",
        lambda state: any(key.startswith("SA_modules.0.mlps.0.") for key in state),
        _describe_pn2,
        _pairs(_layers_pn2),
    ),
]
