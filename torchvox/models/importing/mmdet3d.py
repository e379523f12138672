# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors of open-mmlab/mmdetection3d, from 1.0 on and before, and zhulf0804/PointPillars,
which has the anchor detector of an early release under other names."""

from dataclasses import dataclass
from math import pi
from typing import Any, Dict, List, Mapping

from torch import nn

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.backbone_neck import (
    Pair,
    State,
    backbone,
    backbone_neck_pairs,
    conv,
    encoder,
    encoder_pairs,
    grid_of,
    neck,
    per_cell_of,
    shape,
)
from torchvox.models.importing.centers import (
    CenterNames,
    center_detections,
    center_head,
    center_pairs,
)
from torchvox.models.importing.layouts import Found, Layout
from torchvox.models.importing.published import (
    KITTI,
    KITTI_ANCHORS,
    MMDET3D_KITTI,
    NUSCENES,
    anchors,
)
from torchvox.models.importing.settings import SHAPES, Settings, detections
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS


@dataclass(frozen=True)
class Names:
    linear: str
    norm: str
    blocks: str
    deblocks: str
    head: str


MMDET3D = Names(
    "voxel_encoder.pfn_layers.{}.linear",
    "voxel_encoder.pfn_layers.{}.norm",
    "backbone.blocks",
    "neck.deblocks",
    "bbox_head",
)
ZHULF0804 = Names(
    "pillar_encoder.conv",
    "pillar_encoder.bn",
    "backbone.multi_blocks",
    "neck.decoder_blocks",
    "head",
)
CENTER = Names(*(f"pts_{name}" for name in vars(MMDET3D).values()))
CENTERS = CenterNames(
    ("pts_bbox_head.shared_conv.conv", "pts_bbox_head.shared_conv.bn"),
    "pts_bbox_head.task_heads",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "heatmap"},
    lambda k: (f"{k}.conv", f"{k}.bn"),
    lambda n: f"{n}",
)


def _describe(state: State, settings: Settings) -> Found:
    if CENTER.linear.format(0) + ".weight" in state:
        return _centers(state, settings, "mmdet3d", "lwh")
    return _anchors(state, settings, MMDET3D, "mmdet3d", -pi / 2, "lwh")


def _describe_0(state: State, settings: Settings) -> Found:
    if CENTER.linear.format(0) + ".weight" in state:
        return _centers(state, settings, "mmdet3d_0", "wlh_clockwise")
    return _anchors(state, settings, MMDET3D, "mmdet3d_0", 0.0, "wlh_clockwise")


def _describe_zhulf0804(state: State, settings: Settings) -> Found:
    return _anchors(state, settings, ZHULF0804, "zhulf0804", 0.0, "wlh_clockwise")


def _backbone_and_neck(
    state: State,
    settings: Settings,
    names: Names,
    grid: Mapping[str, Any],
    columns: int,
    legacy: bool,
    stride_one: str,
    unknown: str,
) -> Dict[str, Any]:
    defaults = {"pad_semantics": "reference", "legacy": legacy}
    linear = names.linear + ".weight"
    seen = encoder(state, settings, linear, columns=columns, axes=3, **defaults)
    chosen = grid_of(settings, grid, unknown)
    blocks = backbone(state, settings, names.blocks, 0)
    return {
        **chosen,
        **seen,
        "backbone": blocks,
        "neck": neck(state, settings, names.deblocks, blocks, stride_one),
    }


def _anchors(
    state: State,
    settings: Settings,
    names: Names,
    convention: str,
    dir_offset: float,
    box_format: str,
) -> Found:
    per_cell = per_cell_of(state, f"{names.head}.conv_reg.weight")
    count = shape(state, f"{names.head}.conv_cls.weight")[0] // per_cell
    unknown = ""
    if (per_cell, count) == (6, 3):
        classes = settings.choose("classes", MMDET3D_KITTI)
        published = anchors(KITTI_ANCHORS, MMDET3D_KITTI, box_format != "lwh")
        boxes = settings.choose("head.anchors", published)
    else:
        unknown = f"{per_cell} anchors a cell and {count} classes are not those of a published net"
        classes = settings.need("classes", unknown)
        boxes = settings.need("head.anchors", unknown)
    config = _backbone_and_neck(state, settings, names, KITTI, 4, True, "transposed", unknown)
    bins = shape(state, f"{names.head}.conv_dir_cls.weight")[0] // per_cell
    options = ANCHOR_DECODE_NMS_CONVENTIONS[convention]
    turn = {"offset": dir_offset, "limit": options["dir_limit"], "flip": options["dir_flip"]}
    direction = {k: settings.choose(f"head.direction.{k}", v) for k, v in turn.items()}
    direction["bins"] = settings.choose("head.direction.bins", bins, SHAPES)
    grid = settings.choose("head.grid", "centers")
    config["head"] = {"anchors": boxes, "grid": grid, "code_size": 7, "direction": direction}
    numbers = {"score": 0.1, "pre": 100, "post": 50, "nms": [0.01], "box_format": box_format}
    config["detections"] = detections(settings, options, **numbers)
    return Found("PointPillars", {"classes": classes, **config})


def _centers(state: State, settings: Settings, convention: str, box_format: str) -> Found:
    if f"{CENTER.head}.conv_cls.weight" in state:
        raise CheckpointError(f"{CENTER.head}.conv_cls: anchors that all classes share are unknown")
    grid = {**NUSCENES, "max_pillars": [30_000, 40_000]}
    classes, head, unknown = center_head(state, settings, CENTERS, convention)
    config = _backbone_and_neck(state, settings, CENTER, grid, 5, False, "conv", unknown)
    config["head"] = head
    config["detections"] = center_detections(settings, convention, box_format=box_format)
    return Found("CenterPointPillars", {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    if "conv_bias" in config["head"]:
        pairs = encoder_pairs(config, CENTER.linear, CENTER.norm)
        pairs += backbone_neck_pairs(config, CENTER.blocks, 0, CENTER.deblocks)
        return pairs + center_pairs(config, CENTERS)
    return _anchor_pairs(config, MMDET3D)


def _pairs_zhulf0804(model: nn.Module, state: State) -> List[Pair]:
    return _anchor_pairs(model.config()["config"], ZHULF0804)


def _anchor_pairs(config: Mapping[str, Any], names: Names) -> List[Pair]:
    pairs = encoder_pairs(config, names.linear, names.norm)
    pairs += backbone_neck_pairs(config, names.blocks, 0, names.deblocks)
    for theirs, ours in (("cls", "cls"), ("reg", "box"), ("dir_cls", "dir")):
        pairs += conv(f"{names.head}.conv_{theirs}", f"head.{ours}", bias=True)
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
    _describe_0,
    _pairs,
    boxes="mmdet3d_0",
    release="0.",
    configured=True,
)
MMDET3D_LAYOUT = Layout(
    "mmdet3d", SOURCE, _matches, _describe, _pairs, boxes="mmdet3d", configured=True
)
ZHULF0804_LAYOUT = Layout(
    "zhulf0804",
    "zhulf0804/PointPillars",
    lambda state: any(key.startswith("pillar_encoder.") for key in state),
    _describe_zhulf0804,
    _pairs_zhulf0804,
    boxes="zhulf0804",
)
