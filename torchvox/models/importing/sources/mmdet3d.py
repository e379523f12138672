# SPDX-License-Identifier: Apache-2.0
"""Detectors of open-mmlab/mmdetection3d on pillars and voxels, from 1.0 on and before: names of
their tensors, and their configurations. Nothing of a configuration is run."""

import ast
from functools import partial
from math import pi
from typing import Any, Dict, List, Mapping, Union

from torch import nn

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing import published
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
from torchvox.models.importing.settings import SHAPES, Declared, Settings, detections, least, pick
from torchvox.models.importing.voxels import VoxelNames, nuscenes_voxels, of_voxels
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS

Config = Mapping[str, Any]
LAYERS = "voxel_encoder.pfn_layers.{}."
BEV, PTS = ("backbone.blocks", "neck.deblocks", 0), ("pts_backbone.blocks", "pts_neck.deblocks", 0)
MMDET3D = PillarNames(*BEV, f"{LAYERS}linear", f"{LAYERS}norm")
CENTER = PillarNames(*PTS, f"pts_{LAYERS}linear", f"pts_{LAYERS}norm")
MMDET3D_VOXELS = VoxelNames(*BEV, "middle_encoder.")
CENTER_VOXELS = VoxelNames(*PTS, "pts_middle_encoder.")
CENTERS = TaskNames(
    ("pts_bbox_head.shared_conv.conv", "pts_bbox_head.shared_conv.bn"),
    "pts_bbox_head.task_heads",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "heatmap"},
    "{0}.conv",
    "{0}.bn",
    "{0}",
)


def _names(state: State) -> Union[PillarNames, VoxelNames]:
    for names in (MMDET3D_VOXELS, CENTER_VOXELS):
        if any(key.startswith(names.prefix) for key in state):
            return names
    return CENTER if CENTER.linear.format(0) + ".weight" in state else MMDET3D


def _describe(
    state: State, settings: Settings, convention: str, dir_offset: float, box_format: str
) -> Found:
    names = _names(state)
    if names in (CENTER, CENTER_VOXELS):
        return _describe_centers(state, settings, convention, box_format)
    per_cell, unknown = per_cell_of(state, "bbox_head.conv_reg.weight"), ""
    count = shape(state, "bbox_head.conv_cls.weight")[0] // per_cell
    if (per_cell, count) != (6, 3):
        unknown = f"{per_cell} anchors a cell and {count} classes are not those of a published net"
    wide = box_format != "lwh"
    classes, boxes = classes_and_anchors(
        settings, unknown, published.MMDET3D_KITTI, published.KITTI_ANCHORS, wide
    )
    voxels = names is MMDET3D_VOXELS
    place = published.KITTI_VOXELS if voxels else published.KITTI
    config = names.describe(state, settings, place, unknown, "transposed", columns=4, legacy=True)
    bins = shape(state, "bbox_head.conv_dir_cls.weight")[0] // per_cell
    options = ANCHOR_DECODE_NMS_CONVENTIONS[convention]
    turn = {"offset": dir_offset, "limit": options["dir_limit"], "flip": options["dir_flip"]}
    direction = settings.choices("head.direction", turn)
    direction["bins"] = settings.choose("head.direction.bins", bins, SHAPES)
    grid = settings.choose("head.grid", "ends" if voxels else "centers")
    config["head"] = {"anchors": boxes, "grid": grid, "code_size": 7, "direction": direction}
    numbers = {"score": 0.1, "pre": 100, "post": 50, "nms": [0.01], "box_format": box_format}
    config["detections"] = detections(settings, options, **numbers)
    return Found("Second" if voxels else "PointPillars", {"classes": classes, **config})


def _describe_centers(state: State, settings: Settings, convention: str, box_format: str) -> Found:
    if "pts_bbox_head.conv_cls.weight" in state:
        raise CheckpointError("pts_bbox_head.conv_cls: anchors that all classes share are unknown")
    names, grid = _names(state), {**published.NUSCENES, "max_pillars": [30_000, 40_000]}
    if names is CENTER_VOXELS:
        grid = nuscenes_voxels(settings, [90_000, 120_000])
    classes, head, unknown = center_head(state, settings, CENTERS, convention)
    config = names.describe(state, settings, grid, unknown, "conv", columns=5)
    rules = center_detections(settings, convention, box_format=box_format)
    config |= {"head": head, "detections": rules}
    kind = "CenterPointVoxel" if names is CENTER_VOXELS else "CenterPointPillars"
    return Found(kind, {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    pairs = _names(state).pairs(model, state)
    if "conv_bias" in config["head"]:
        return pairs + task_pairs(config, CENTERS)
    for theirs, ours in (("cls", "cls"), ("reg", "box"), ("dir_cls", "dir")):
        pairs += conv(f"bbox_head.conv_{theirs}", f"head.{ours}", bias=True)
    return pairs


SOURCE = "open-mmlab/mmdetection3d"
KEYS = (
    *("voxel_encoder.pfn_layers.", "pts_voxel_encoder.pfn_layers."),
    *(MMDET3D_VOXELS.prefix, CENTER_VOXELS.prefix),
)
# No tensor differs between the two: the release that wrote a file does.
LAYOUT_0 = Layout(
    "mmdet3d_0",
    f"{SOURCE} before 1.0",
    KEYS,
    partial(_describe, convention="mmdet3d_0", dir_offset=0.0, box_format="wlh_clockwise"),
    _pairs,
    boxes="mmdet3d_0",
    release="0.",
    configured=True,
)
LAYOUT = Layout(
    "mmdet3d",
    SOURCE,
    KEYS,
    partial(_describe, convention="mmdet3d", dir_offset=-pi / 2, box_format="lwh"),
    _pairs,
    boxes="mmdet3d",
    configured=True,
)


# ------------------------------------------------------------------------------- configurations


def mmdet3d_config(text: str) -> Declared:
    """text: of a configuration in Python, as checkpoints hold it, with all values in place; a
    _base_ is not followed. Only literals and dict(..) are understood; other statements are
    skipped. Raises CheckpointError for a model that is not built as those of mmdetection3d."""
    values = literals(text)
    model = values.get("model")
    if not isinstance(model, dict):
        return Declared()
    try:
        return _declared(values, model)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"the configuration is not built as mmdetection3d's: {error}"
        ) from None


MEANS = ("HardSimpleVFE", "DynamicSimpleVFE")  # the mean of each voxel
ANCHOR_HEAD = {"head.direction.offset": "dir_offset", "head.direction.limit": "dir_limit_offset"}
ANCHOR_RULES = {
    "detections.score": "score_thr",
    "detections.pre": "nms_pre",
    "detections.post": "max_num",
}
CENTER_RULES = {"detections.score": "score_threshold", "detections.post": "post_max_size"}
CODER = {"detections.score": "score_threshold", "detections.center_range": "post_center_range"}


def _declared(values: Config, model: Config) -> Declared:
    def part(name: str) -> Config:
        return model.get(name) or model.get(f"pts_{name}") or {}

    head, encoder, necks = part("bbox_head"), part("voxel_encoder"), part("neck")
    layer = part("voxel_layer") or (model.get("data_preprocessor") or {}).get("voxel_layer") or {}
    settings = pick(values, {"classes": "class_names"}) | _declared_grid(layer, encoder)
    settings |= pick(part("backbone"), {"backbone.strides": "layer_strides"})
    settings |= pick(necks, {"neck.strides": "upsample_strides"})
    # A part without `type` continues that of another file, which holds what is missing here.
    if "legacy" in encoder or "type" in encoder:
        settings["encoder.legacy"] = bool(encoder.get("legacy", True))
    if "use_conv_for_no_stride" in necks or "type" in necks:
        conv = necks.get("use_conv_for_no_stride", False)
        settings["neck.stride_one"] = "conv" if conv else "transposed"
    rules: Config = model.get("test_cfg") or values.get("test_cfg") or {}
    rules = rules.get("pts", rules)
    if "tasks" in head:
        settings |= _declared_centers(head, rules)
    elif "anchor_generator" in head:
        settings |= _declared_anchors(settings, head, rules)
    sparse = _class_name(part("middle_encoder")) not in ("", "PointPillarsScatter")
    return Declared(of_voxels(settings) if sparse else settings)


def _class_name(part: Config) -> str:
    """Of a part's type, without the name of a registry or a module."""
    return str(part.get("type", "")).split(".")[-1]


def _declared_grid(layer: Config, encoder: Config) -> Dict[str, Any]:
    grid = {"point_cloud_range": "point_cloud_range", "pillar_size": "voxel_size"}
    settings = pick(encoder, grid) | pick(layer, {**grid, "max_points": "max_num_points"})
    if layer.get("max_voxels") is not None:
        settings["max_pillars"] = list(layer["max_voxels"])
    kind = _class_name(encoder)
    if kind not in ("", "PillarFeatureNet", "DynamicPillarFeatureNet", *MEANS):
        raise CheckpointError(f"voxel_encoder of type {kind} is unknown: PillarFeatureNet is known")
    if kind.startswith("Dynamic"):
        settings |= {"max_points": -1, "max_pillars": [-1, -1]}
    if kind:
        settings["encoder.pad_semantics"] = "none" if kind.startswith("Dynamic") else "reference"
    return settings


def _declared_anchors(before: Config, head: Config, rules: Config) -> Dict[str, Any]:
    """before: the other settings."""
    if not rules.get("use_rotate_nms", True):
        raise CheckpointError("use_rotate_nms=False is unknown: boxes are compared as they turn")
    settings = pick(head, ANCHOR_HEAD) | pick(rules, ANCHOR_RULES)
    if "nms_thr" in rules:
        settings["detections.nms"] = [rules["nms_thr"]]
    generator = head["anchor_generator"]
    ranges, sizes = generator.get("ranges", []), generator.get("sizes", [])
    if "type" in generator:
        aligned = _class_name(generator).startswith("Aligned")
        settings["head.grid"] = "centers" if aligned else "ends"
    if len(ranges) == len(sizes) == len(before.get("classes", [])):
        rotations = generator.get("rotations", [0, 1.57])
        settings["head.anchors"] = [
            {"size": size, "bottom": span[2], "rotations": rotations}
            for size, span in zip(sizes, ranges, strict=True)
        ]
    areas = {(span[0], span[1], span[3], span[4]) for span in ranges}
    if len(areas) > 1:
        raise CheckpointError("anchors of classes with areas of their own are unknown")
    limits = before.get("point_cloud_range", [])
    whole = tuple(limits[i] for i in (0, 1, 3, 4)) if limits else ()
    if areas and areas != {whole}:
        settings["head.area"] = list(areas.pop())
    return settings


def _declared_centers(head: Config, rules: Config) -> Dict[str, Any]:
    tasks, coder = [list(task["class_names"]) for task in head["tasks"]], head.get("bbox_coder", {})
    circle = rules.get("nms_type") == "circle"
    settings = pick(rules, CENTER_RULES) | pick(coder, CODER)
    settings |= least(coder.get("max_num"), rules.get("pre_max_size"))
    threshold = rules.get("min_radius") if circle else rules.get("nms_thr")
    if threshold is not None:
        settings["detections.nms"] = threshold if isinstance(threshold, list) else [threshold]
    settings["detections.mode"] = "circle" if circle else "rotated"
    return {**settings, "classes": [name for task in tasks for name in task], "head.tasks": tasks}


def literals(text: str) -> Dict[str, Any]:
    """Names that a Python text assigns values of literals, dict(..) and names before them."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return {}
    names: Dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            try:
                names[name] = _value(statement.value, names)
            except (ValueError, KeyError, TypeError, RecursionError, MemoryError):
                names.pop(name, None)  # its earlier value no longer holds
    return names


def _value(node: ast.AST, names: Dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(key, names): _value(value, names) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {one.arg: _value(one.value, names) for one in node.keywords if one.arg is not None}
    return ast.literal_eval(node)
