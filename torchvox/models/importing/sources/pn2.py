# SPDX-License-Identifier: Apache-2.0
"""PointNet++ of erikwijmans/Pointnet2_PyTorch."""

from typing import Any, Dict, Iterator

from torch import nn

from torchvox.models.importing.backbone_neck import State
from torchvox.models.importing.layouts import Found, Layer, Layout, layer_pairs, width
from torchvox.models.importing.settings import Settings


def _head(state: State) -> str:
    """fc_lyaer is how its segmenters spell it."""
    return next((key.split(".")[0] for key in state if key.startswith("fc_l")), "fc_layer")


def _describe(state: State, settings: Settings) -> Found:
    several = any(key.startswith("SA_modules.0.mlps.1.") for key in state)
    segments = any(key.startswith("FP_modules.") for key in state)
    last = {True: "4", False: "7"}[segments]
    ends = [key for key in state if key.startswith("SA_modules.0.") and key.endswith(".6.weight")]
    pooled = sum(width(state, key, 0) for key in ends)
    use_xyz = width(state, "SA_modules.1.mlps.0.0.weight", 1) == pooled + 3
    features = width(state, "SA_modules.0.mlps.0.0.weight", 1) - (3 if use_xyz else 0)
    config: Dict[str, Any] = {
        "preset": "pn2",
        "scales": "msg" if several else "ssg",
        "num_classes": width(state, f"{_head(state)}.{last}.weight", 0),
        "in_channels": 3 + features,
    }
    if not use_xyz:
        config["use_xyz"] = False
    return Found("PointNet2Segmenter" if segments else "PointNet2Classifier", config)


def _layers(model: nn.Module, state: State) -> Iterator[Layer]:
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
    head = _head(state)
    for j in range(len(model.head.layers)):
        yield f"{head}.{3 * j}", f"{head}.{3 * j + 1}", f"head.layers.{j}"
    yield f"{head}.{4 if ups else 7}", "", "head.scores"


LAYOUT = Layout(
    "pn2",
    "erikwijmans/Pointnet2_PyTorch",
    ("SA_modules.0.mlps.0.",),
    _describe,
    layer_pairs(_layers),
)
