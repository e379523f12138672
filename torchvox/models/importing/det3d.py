# SPDX-License-Identifier: Apache-2.0
"""The pillar net of tianweiy/CenterPoint (det3d)."""

from typing import List

from torch import nn

from torchvox.models.importing.backbone_neck import (
    Pair,
    State,
    backbone,
    backbone_neck_pairs,
    encoder,
    encoder_pairs,
    grid_of,
    neck,
)
from torchvox.models.importing.centers import (
    CenterNames,
    center_detections,
    center_head,
    center_pairs,
)
from torchvox.models.importing.layouts import Found, Layout
from torchvox.models.importing.published import NUSCENES
from torchvox.models.importing.settings import Settings

LINEAR, LINEAR_NORM = "reader.pfn_layers.{}.linear", "reader.pfn_layers.{}.norm"
BLOCKS, DEBLOCKS = "neck.blocks", "neck.deblocks"
CENTERS = CenterNames(
    ("bbox_head.shared_conv.0", "bbox_head.shared_conv.1"),
    "bbox_head.tasks",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "hm"},
    lambda k: (f"{3 * k}", f"{3 * k + 1}"),
    lambda n: f"{3 * n}",
)


def _describe(state: State, settings: Settings) -> Found:
    defaults = {"pad_semantics": "reference", "legacy": False}
    seen = encoder(state, settings, LINEAR + ".weight", columns=None, axes=2, **defaults)
    classes, head, unknown = center_head(state, settings, CENTERS, "det3d")
    chosen = grid_of(settings, {**NUSCENES, "max_pillars": [30_000, 60_000]}, unknown)
    blocks = backbone(state, settings, BLOCKS, 1)
    necks = neck(state, settings, DEBLOCKS, blocks, "conv")
    config = {**chosen, **seen, "backbone": blocks, "neck": necks, "head": head}
    more = {"pre": 1000, "box_format": "wlh_clockwise"}
    config["detections"] = center_detections(settings, "det3d", **more)
    return Found("CenterPointPillars", {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    pairs = encoder_pairs(config, LINEAR, LINEAR_NORM)
    return pairs + backbone_neck_pairs(config, BLOCKS, 1, DEBLOCKS) + center_pairs(config, CENTERS)


DET3D = Layout(
    "det3d",
    "tianweiy/CenterPoint",
    lambda state: any(key.startswith("reader.pfn_layers.") for key in state),
    _describe,
    _pairs,
    boxes="det3d",
)
