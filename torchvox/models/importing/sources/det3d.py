# SPDX-License-Identifier: Apache-2.0
"""The pillar net of tianweiy/CenterPoint (det3d)."""

from typing import List

from torch import nn

from torchvox.models.importing.backbone_neck import Pair, PillarNames, State
from torchvox.models.importing.centers import TaskNames, center_detections, center_head, task_pairs
from torchvox.models.importing.layouts import Found, Layout
from torchvox.models.importing.published import NUSCENES
from torchvox.models.importing.settings import Settings

PILLARS = PillarNames(
    "reader.pfn_layers.{}.linear", "reader.pfn_layers.{}.norm", "neck.blocks", "neck.deblocks", 1
)
CENTERS = TaskNames(
    ("bbox_head.shared_conv.0", "bbox_head.shared_conv.1"),
    "bbox_head.tasks",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "hm"},
    lambda k: (f"{3 * k}", f"{3 * k + 1}"),
    lambda n: f"{3 * n}",
)


def _describe(state: State, settings: Settings) -> Found:
    classes, head, unknown = center_head(state, settings, CENTERS, "det3d")
    grid = {**NUSCENES, "max_pillars": [30_000, 60_000]}
    config = PILLARS.described(state, settings, grid, unknown, "conv", axes=2)
    more = {"pre": 1000, "box_format": "wlh_clockwise"}
    config |= {"head": head, "detections": center_detections(settings, "det3d", **more)}
    return Found("CenterPointPillars", {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    return PILLARS.pairs(config) + task_pairs(config, CENTERS)


LAYOUT = Layout(
    "det3d",
    "tianweiy/CenterPoint",
    lambda state: any(key.startswith("reader.pfn_layers.") for key in state),
    _describe,
    _pairs,
    boxes="det3d",
)
