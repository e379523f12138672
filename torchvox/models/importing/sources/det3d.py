# SPDX-License-Identifier: Apache-2.0
"""CenterPoint over voxels of tianweiy/CenterPoint, a fork of det3d: names of its tensors."""

from typing import List

from torch import nn

from torchvox.models.importing.backbone_neck import Pair, State
from torchvox.models.importing.centers import TaskNames, center_detections, center_head, task_pairs
from torchvox.models.importing.layouts import Found, Layout
from torchvox.models.importing.settings import Settings
from torchvox.models.importing.voxels import VoxelNames, nuscenes_voxels

VOXELS = VoxelNames("neck.blocks", "neck.deblocks", 1, "backbone.")
CENTERS = TaskNames(
    ("bbox_head.shared_conv.0", "bbox_head.shared_conv.1"),
    "bbox_head.tasks",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "hm"},
    "{1}",
    "{2}",
    "{1}",
)


def _describe(state: State, settings: Settings) -> Found:
    grid = nuscenes_voxels(settings, [120_000, 160_000])
    classes, head, unknown = center_head(state, settings, CENTERS, "det3d")
    config = VOXELS.describe(state, settings, grid, unknown, "conv")
    rules = center_detections(settings, "det3d", pre=1000, box_format="wlh_clockwise")
    config |= {"head": head, "detections": rules}
    return Found("CenterPointVoxel", {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    return VOXELS.pairs(model, state) + task_pairs(model.config()["config"], CENTERS)


LAYOUT = Layout(
    "det3d",
    "tianweiy/CenterPoint (det3d)",
    ("backbone.conv_input.",),
    _describe,
    _pairs,
    boxes="det3d",
)
