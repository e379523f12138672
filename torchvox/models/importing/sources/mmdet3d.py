# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors of open-mmlab/mmdetection3d, from 1.0 on and before: names of their tensors, and
their configurations. Nothing of a configuration is run."""

import ast
from functools import partial
from math import pi
from typing import Any, Dict, List, Mapping

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
from torchvox.models.importing.settings import SHAPES, Declared, Settings, detections, put
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS

Config = Mapping[str, Any]
LAYERS = "voxel_encoder.pfn_layers.{}."
MMDET3D = PillarNames(f"{LAYERS}linear", f"{LAYERS}norm", "backbone.blocks", "neck.deblocks", 0)
CENTER = PillarNames(
    f"pts_{LAYERS}linear", f"pts_{LAYERS}norm", "pts_backbone.blocks", "pts_neck.deblocks", 0
)
CENTERS = TaskNames(
    ("pts_bbox_head.shared_conv.conv", "pts_bbox_head.shared_conv.bn"),
    "pts_bbox_head.task_heads",
    {"reg": "reg", "z": "height", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "heatmap"},
    "{0}.conv",
    "{0}.bn",
    "{0}",
)


def _describe(
    state: State, settings: Settings, convention: str, dir_offset: float, box_format: str
) -> Found:
    if CENTER.linear.format(0) + ".weight" in state:
        return _describe_centers(state, settings, convention, box_format)
    per_cell, unknown = per_cell_of(state, "bbox_head.conv_reg.weight"), ""
    count = shape(state, "bbox_head.conv_cls.weight")[0] // per_cell
    if (per_cell, count) != (6, 3):
        unknown = f"{per_cell} anchors a cell and {count} classes are not those of a published net"
    wide = box_format != "lwh"
    classes, boxes = classes_and_anchors(settings, unknown, MMDET3D_KITTI, KITTI_ANCHORS, wide)
    config = MMDET3D.describe(state, settings, KITTI, unknown, "transposed", columns=4, legacy=True)
    bins = shape(state, "bbox_head.conv_dir_cls.weight")[0] // per_cell
    options = ANCHOR_DECODE_NMS_CONVENTIONS[convention]
    turn = {"offset": dir_offset, "limit": options["dir_limit"], "flip": options["dir_flip"]}
    direction = settings.choices("head.direction", turn)
    direction["bins"] = settings.choose("head.direction.bins", bins, SHAPES)
    grid = settings.choose("head.grid", "centers")
    config["head"] = {"anchors": boxes, "grid": grid, "code_size": 7, "direction": direction}
    numbers = {"score": 0.1, "pre": 100, "post": 50, "nms": [0.01], "box_format": box_format}
    config["detections"] = detections(settings, options, **numbers)
    return Found("PointPillars", {"classes": classes, **config})


def _describe_centers(state: State, settings: Settings, convention: str, box_format: str) -> Found:
    if "pts_bbox_head.conv_cls.weight" in state:
        raise CheckpointError("pts_bbox_head.conv_cls: anchors that all classes share are unknown")
    grid = {**NUSCENES, "max_pillars": [30_000, 40_000]}
    classes, head, unknown = center_head(state, settings, CENTERS, convention)
    config = CENTER.describe(state, settings, grid, unknown, "conv", columns=5)
    rules = center_detections(settings, convention, box_format=box_format)
    config |= {"head": head, "detections": rules}
    return Found("CenterPointPillars", {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    if "conv_bias" in config["head"]:
        return CENTER.pairs(config) + task_pairs(config, CENTERS)
    pairs = MMDET3D.pairs(config)
    for theirs, ours in (("cls", "cls"), ("reg", "box"), ("dir_cls", "dir")):
        pairs += conv(f"bbox_head.conv_{theirs}", f"head.{ours}", bias=True)
    return pairs


SOURCE = "open-mmlab/mmdetection3d"
KEYS = ("voxel_encoder.pfn_layers.", "pts_voxel_encoder.pfn_layers.")
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


def _declared(values: Config, model: Config) -> Declared:
    settings: Dict[str, Any] = {}
    head = model.get("bbox_head") or model.get("pts_bbox_head") or {}
    encoder = model.get("voxel_encoder") or model.get("pts_voxel_encoder") or {}
    put(settings, classes=values.get("class_names"), **_declared_grid(model, encoder))
    backbone = model.get("backbone") or model.get("pts_backbone") or {}
    necks = model.get("neck") or model.get("pts_neck") or {}
    put(settings, backbone__strides=backbone.get("layer_strides"))
    put(settings, neck__strides=necks.get("upsample_strides"))
    # A part without `type` continues that of another file, which holds what is missing here.
    if "legacy" in encoder or "type" in encoder:
        put(settings, encoder__legacy=bool(encoder.get("legacy", True)))
    if "use_conv_for_no_stride" in necks or "type" in necks:
        conv = necks.get("use_conv_for_no_stride", False)
        put(settings, neck__stride_one="conv" if conv else "transposed")
    test_cfg: Config = model.get("test_cfg") or values.get("test_cfg") or {}
    if "tasks" in head:
        _declared_centers(settings, head, test_cfg.get("pts", test_cfg))
    elif "anchor_generator" in head:
        _declared_anchors(settings, head, test_cfg.get("pts", test_cfg))
    return Declared(settings)


def _class_name(part: Config) -> str:
    """Of a part's type, without the name of a registry or a module."""
    return str(part.get("type", "")).split(".")[-1]


def _declared_grid(model: Config, encoder: Config) -> Dict[str, Any]:
    layers = [model.get("voxel_layer"), model.get("pts_voxel_layer")]
    layers.append((model.get("data_preprocessor") or {}).get("voxel_layer"))
    layer: Config = next((one for one in layers if one), {})
    limits = layer.get("point_cloud_range", encoder.get("point_cloud_range"))
    caps = layer.get("max_voxels")
    kind = _class_name(encoder)
    if kind not in ("", "PillarFeatureNet", "DynamicPillarFeatureNet"):
        raise CheckpointError(f"voxel_encoder of type {kind} is unknown: PillarFeatureNet is known")
    dynamic = kind.startswith("Dynamic")
    padding = "none" if dynamic else "reference"
    return {
        "point_cloud_range": limits,
        "pillar_size": layer.get("voxel_size", encoder.get("voxel_size")),
        "max_points": -1 if dynamic else layer.get("max_num_points"),
        "max_pillars": [-1, -1] if dynamic else None if caps is None else list(caps),
        "encoder__pad_semantics": padding if kind else None,
    }


def _declared_anchors(settings: Dict[str, Any], head: Config, test_cfg: Config) -> None:
    if not test_cfg.get("use_rotate_nms", True):
        raise CheckpointError("use_rotate_nms=False is unknown: boxes are compared as they turn")
    generator = head["anchor_generator"]
    ranges, sizes = generator.get("ranges", []), generator.get("sizes", [])
    if "type" in generator:
        aligned = _class_name(generator).startswith("Aligned")
        put(settings, head__grid="centers" if aligned else "ends")
    if len(ranges) == len(sizes) == len(settings.get("classes", [])):
        rotations = generator.get("rotations", [0, 1.57])
        settings["head.anchors"] = [
            {"size": size, "bottom": span[2], "rotations": rotations}
            for size, span in zip(sizes, ranges, strict=True)
        ]
    areas = {(span[0], span[1], span[3], span[4]) for span in ranges}
    if len(areas) > 1:
        raise CheckpointError("anchors of classes with areas of their own are unknown")
    limits = settings.get("point_cloud_range", [])
    whole = tuple(limits[i] for i in (0, 1, 3, 4)) if limits else ()
    if areas and areas != {whole}:
        settings["head.area"] = list(areas.pop())
    put(
        settings,
        head__direction__offset=head.get("dir_offset"),
        head__direction__limit=head.get("dir_limit_offset"),
        detections__score=test_cfg.get("score_thr"),
        detections__pre=test_cfg.get("nms_pre"),
        detections__post=test_cfg.get("max_num"),
        detections__nms=[test_cfg["nms_thr"]] if "nms_thr" in test_cfg else None,
    )


def _declared_centers(settings: Dict[str, Any], head: Config, test_cfg: Config) -> None:
    tasks = [list(task["class_names"]) for task in head["tasks"]]
    coder = head.get("bbox_coder", {})
    circle = test_cfg.get("nms_type") == "circle"
    threshold = test_cfg.get("min_radius") if circle else test_cfg.get("nms_thr")
    if threshold is not None and not isinstance(threshold, list):
        threshold = [threshold]
    caps = [coder.get("max_num"), test_cfg.get("pre_max_size")]
    put(
        settings,
        classes=[name for task in tasks for name in task],
        head__tasks=tasks,
        detections__mode="circle" if circle else "rotated",
        detections__nms=threshold,
        detections__score=coder.get("score_threshold", test_cfg.get("score_threshold")),
        detections__pre=min((cap for cap in caps if cap is not None), default=None),
        detections__post=test_cfg.get("post_max_size"),
        detections__center_range=coder.get("post_center_range"),
    )


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
