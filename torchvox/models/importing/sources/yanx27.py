# SPDX-License-Identifier: Apache-2.0
"""PointNet++ of yanx27/Pointnet_Pointnet2_pytorch."""

from typing import Any, Dict, Iterator

from torch import nn

from torchvox.models.importing.backbone_neck import State
from torchvox.models.importing.layouts import Found, Layer, Layout, layer_pairs, width
from torchvox.models.importing.settings import Settings


def _describe(state: State, settings: Settings) -> Found:
    several = any(key.startswith("sa1.conv_blocks.") for key in state)
    first = "sa1.conv_blocks.0.0.weight" if several else "sa1.mlp_convs.0.weight"
    seen = width(state, first, 1) - 3  # beside relative coordinates
    config: Dict[str, Any] = {"preset": "yanx27", "scales": "msg" if several else "ssg"}
    if "fc3.weight" in state:
        config |= {"num_classes": width(state, "fc3.weight", 0), "in_channels": 3 + seen}
        return Found("PointNet2Classifier", config)
    config |= {"num_classes": width(state, "conv2.weight", 0), "in_channels": seen}
    if any(key.startswith("sa4.") for key in state):
        return Found("PointNet2Segmenter", config)
    config["num_categories"] = width(state, "fp1.mlp_convs.0.weight", 1) - 128 - 3 - seen
    return Found("PointNet2PartSegmenter", config)


def _layers(model: nn.Module, state: State) -> Iterator[Layer]:
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


LAYOUT = Layout(
    "yanx27",
    "yanx27/Pointnet_Pointnet2_pytorch",
    ("sa1.mlp_convs.", "sa1.conv_blocks."),
    _describe,
    layer_pairs(_layers),
)
