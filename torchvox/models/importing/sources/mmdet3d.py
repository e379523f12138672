# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors of open-mmlab/mmdetection3d, from 1.0 on and before, and zhulf0804/PointPillars,
which has the anchor detector of an early release under other names."""

from math import pi
from typing import Callable, List

from torch import nn

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.backbone_neck import (
    Pair,
    PillarNames,
    State,
    classes_and_anchors,
    conv,
    per_cell_of,
    shape,
)
from torchvox.models.importing.centers import TaskNames, center_detections, center_head, task_pairs
from torchvox.models.importing.layouts import Found, Layout
from torchvox.models.importing.published import KITTI, KITTI_ANCHORS, MMDET3D_KITTI, NUSCENES
from torchvox.models.importing.settings import SHAPES, Settings, detections
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS

LAYERS = "voxel_encoder.pfn_layers.{}."
MMDET3D = PillarNames(f"{LAYERS}linear", f"{LAYERS}norm", "backbone.blocks", "neck.deblocks", 0)
CENTER = PillarNames(
    f"pts_{LAYERS}linear", f"pts_{LAYERS}norm", "pts_backbone.blocks", "pts_neck.deblocks", 0
)
ZHULF0804 = PillarNames(
    "pillar_encoder.conv", "pillar_encoder.bn", "backbone.multi_blocks", "neck.decoder_blocks", 0
)
CENTERS = TaskNames(
    ("pts_bbox_head.shared_conv.conv", "pts_bbox_head.shared_conv.bn"),
    "pts_bbox_head.task_heads",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "heatmap"},
    lambda k: (f"{k}.conv", f"{k}.bn"),
    lambda n: f"{n}",
)


def _described(
    names: PillarNames, head: str, convention: str, dir_offset: float, box_format: str
) -> Callable[[State, Settings], Found]:
    def describe(state: State, settings: Settings) -> Found:
        if CENTER.linear.format(0) + ".weight" in state:
            return _centers(state, settings, convention, box_format)
        return _anchors(state, settings, names, head, convention, dir_offset, box_format)

    return describe


def _anchors(
    state: State,
    settings: Settings,
    names: PillarNames,
    at: str,
    convention: str,
    dir_offset: float,
    box_format: str,
) -> Found:
    per_cell = per_cell_of(state, f"{at}.conv_reg.weight")
    count, unknown = shape(state, f"{at}.conv_cls.weight")[0] // per_cell, ""
    if (per_cell, count) != (6, 3):
        unknown = f"{per_cell} anchors a cell and {count} classes are not those of a published net"
    wide = box_format != "lwh"
    classes, boxes = classes_and_anchors(settings, unknown, MMDET3D_KITTI, KITTI_ANCHORS, wide)
    config = names.described(state, settings, KITTI, unknown, "transposed", columns=4, legacy=True)
    bins = shape(state, f"{at}.conv_dir_cls.weight")[0] // per_cell
    options = ANCHOR_DECODE_NMS_CONVENTIONS[convention]
    turn = {"offset": dir_offset, "limit": options["dir_limit"], "flip": options["dir_flip"]}
    direction = settings.choices("head.direction", turn)
    direction["bins"] = settings.choose("head.direction.bins", bins, SHAPES)
    grid = settings.choose("head.grid", "centers")
    config["head"] = {"anchors": boxes, "grid": grid, "code_size": 7, "direction": direction}
    numbers = {"score": 0.1, "pre": 100, "post": 50, "nms": [0.01], "box_format": box_format}
    config["detections"] = detections(settings, options, **numbers)
    return Found("PointPillars", {"classes": classes, **config})


def _centers(state: State, settings: Settings, convention: str, box_format: str) -> Found:
    if "pts_bbox_head.conv_cls.weight" in state:
        raise CheckpointError("pts_bbox_head.conv_cls: anchors that all classes share are unknown")
    grid = {**NUSCENES, "max_pillars": [30_000, 40_000]}
    classes, head, unknown = center_head(state, settings, CENTERS, convention)
    config = CENTER.described(state, settings, grid, unknown, "conv", columns=5)
    chosen = center_detections(settings, convention, box_format=box_format)
    config |= {"head": head, "detections": chosen}
    return Found("CenterPointPillars", {"classes": classes, **config})


def _pairs(names: PillarNames, head: str) -> Callable[[nn.Module, State], List[Pair]]:
    def pairs(model: nn.Module, state: State) -> List[Pair]:
        config = model.config()["config"]
        if "conv_bias" in config["head"]:
            return CENTER.pairs(config) + task_pairs(config, CENTERS)
        found = names.pairs(config)
        for theirs, ours in (("cls", "cls"), ("reg", "box"), ("dir_cls", "dir")):
            found += conv(f"{head}.conv_{theirs}", f"head.{ours}", bias=True)
        return found

    return pairs


def _matches(state: State) -> bool:
    known = ("voxel_encoder.pfn_layers.", "pts_voxel_encoder.pfn_layers.")
    return any(key.startswith(known) for key in state)


SOURCE = "open-mmlab/mmdetection3d"
# Nothing in the tensors tells the two: the release that wrote a file does.
MMDET3D_0_LAYOUT = Layout(
    "mmdet3d_0",
    f"{SOURCE} before 1.0",
    _matches,
    _described(MMDET3D, "bbox_head", "mmdet3d_0", 0.0, "wlh_clockwise"),
    _pairs(MMDET3D, "bbox_head"),
    boxes="mmdet3d_0",
    release="0.",
    configured=True,
)
MMDET3D_LAYOUT = Layout(
    "mmdet3d",
    SOURCE,
    _matches,
    _described(MMDET3D, "bbox_head", "mmdet3d", -pi / 2, "lwh"),
    _pairs(MMDET3D, "bbox_head"),
    boxes="mmdet3d",
    configured=True,
)
ZHULF0804_LAYOUT = Layout(
    "zhulf0804",
    "zhulf0804/PointPillars",
    lambda state: any(key.startswith("pillar_encoder.") for key in state),
    _described(ZHULF0804, "head", "zhulf0804", 0.0, "wlh_clockwise"),
    _pairs(ZHULF0804, "head"),
    boxes="zhulf0804",
)
