# SPDX-License-Identifier: Apache-2.0
"""Configurations of the programs that trained a detector, as settings of ours: what they say, the
import need not assume. Nothing of them is run."""

import ast
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Dict, List, Mapping, Tuple

from torchvox.models.checkpoints import CheckpointError

Config = Mapping[str, Any]
PCDET_ENCODERS = ("PillarVFE", "DynPillarVFE")
PCDET_PARTS = ["reg:2", "height:1", "size:3", "angle:2", "velo:2"]
HEAD_WIDTHS = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2}


@dataclass(frozen=True)
class Declared:
    """settings: by dotted names. notes: what is to be known of networks trained with it."""

    settings: Dict[str, Any] = field(default_factory=dict)
    notes: Tuple[str, ...] = ()


def _put(settings: Dict[str, Any], **values: Any) -> None:
    """Values by names with __ for dots; None is nothing said."""
    for name, value in values.items():
        if value is not None:
            settings[name.replace("__", ".")] = value


# ------------------------------------------------------------------------------------ OpenPCDet


def openpcdet_config(content: Config) -> Declared:
    """content: of a YAML file of tools/cfgs/, without what it takes from a _BASE_CONFIG_. Raises
    CheckpointError when it is not built like these."""
    model = content.get("MODEL")
    if not isinstance(model, Mapping) or "DENSE_HEAD" not in model:
        raise CheckpointError("the configuration has no MODEL with a DENSE_HEAD, as OpenPCDet's do")
    try:
        return _openpcdet(content, model)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the configuration is not built as OpenPCDet's: {error}") from None


def _openpcdet(content: Config, model: Config) -> Declared:
    settings: Dict[str, Any] = {}
    classes = list(content.get("CLASS_NAMES", [])) or None
    _put(settings, classes=classes)
    data = content.get("DATA_CONFIG", {})
    _put(settings, point_cloud_range=data.get("POINT_CLOUD_RANGE"))
    for step in data.get("DATA_PROCESSOR", []):
        if step["NAME"].startswith("transform_points_to_voxels"):
            caps = step.get("MAX_NUMBER_OF_VOXELS")
            _put(
                settings,
                pillar_size=step["VOXEL_SIZE"],
                max_points=step.get("MAX_POINTS_PER_VOXEL"),
                max_pillars=None if caps is None else [caps["train"], caps["test"]],
            )
    settings |= _openpcdet_encoder(model.get("VFE", {}))
    backbone = model.get("BACKBONE_2D", {})
    _put(settings, backbone__strides=backbone.get("LAYER_STRIDES"))
    _put(settings, neck__strides=backbone.get("UPSAMPLE_STRIDES"))
    head = model["DENSE_HEAD"]
    if "CLASS_NAMES_EACH_HEAD" in head:
        return _openpcdet_centers(settings, head)
    _openpcdet_anchors(settings, head, classes or [])
    chosen = model.get("POST_PROCESSING", {})
    nms = chosen.get("NMS_CONFIG", {})
    _put(settings, detections__score=chosen.get("SCORE_THRESH"), **_openpcdet_nms(nms))
    _put(settings, detections__pre=nms.get("NMS_PRE_MAXSIZE"))
    if "MULTI_CLASSES_NMS" in nms:
        _put(settings, detections__group="class" if nms["MULTI_CLASSES_NMS"] else "none")
    return Declared(settings)


def _openpcdet_encoder(layer: Config) -> Dict[str, Any]:
    """Rows of other columns could be rows of another cloud: no tensor tells them apart."""
    if not layer:
        return {}
    name = layer.get("NAME")
    if name not in PCDET_ENCODERS:
        raise CheckpointError(f"VFE.NAME {name} is unknown: {', '.join(PCDET_ENCODERS)} are known")
    for key, known in (("WITH_DISTANCE", False), ("USE_ABSLOTE_XYZ", True)):
        if layer.get(key, known) is not known:
            raise CheckpointError(f"VFE.{key} {layer[key]} is unknown: {known} is known")
    if name == "PillarVFE":
        return {"encoder.pad_semantics": "reference"}
    return {"encoder.pad_semantics": "none", "max_points": -1, "max_pillars": [-1, -1]}


def _openpcdet_nms(nms: Config) -> Dict[str, Any]:
    threshold, kind = nms.get("NMS_THRESH"), nms.get("NMS_TYPE", "nms_gpu")
    if kind != "nms_gpu":
        raise CheckpointError(f"NMS_CONFIG.NMS_TYPE {kind} is unknown: nms_gpu is known")
    return {
        "detections__nms": None if threshold is None else [threshold],
        "detections__post": nms.get("NMS_POST_MAXSIZE"),
    }


def _openpcdet_anchors(settings: Dict[str, Any], head: Config, classes: List[str]) -> None:
    parts = (head.get("SEPARATE_REG_CONFIG") or {}).get("REG_LIST", PCDET_PARTS)
    if list(parts) != PCDET_PARTS:  # the order of the channels, which no name of a tensor tells
        raise CheckpointError(f"REG_LIST {parts} is unknown: {PCDET_PARTS} is known")
    boxes = {}
    for one in head.get("ANCHOR_GENERATOR_CONFIG", []):
        if len(one["anchor_sizes"]) != 1 or len(one["anchor_bottom_heights"]) != 1:
            raise CheckpointError(f"{one['class_name']}: anchors of one size and height are known")
        boxes[one["class_name"]] = {
            "size": one["anchor_sizes"][0],
            "bottom": one["anchor_bottom_heights"][0],
            "rotations": one["anchor_rotations"],
        }
        settings["head.grid"] = "centers" if one.get("align_center") else "ends"
    if boxes and set(boxes) == set(classes):
        settings["head.anchors"] = [boxes[name] for name in classes]
    if head.get("USE_DIRECTION_CLASSIFIER"):
        offset, limit = head.get("DIR_OFFSET"), head.get("DIR_LIMIT_OFFSET")
        _put(settings, head__direction__offset=offset, head__direction__limit=limit)


def _openpcdet_centers(settings: Dict[str, Any], head: Config) -> Declared:
    chosen = head.get("POST_PROCESSING", {})
    nms = chosen.get("NMS_CONFIG", {})
    caps = [chosen.get("MAX_OBJ_PER_SAMPLE"), nms.get("NMS_PRE_MAXSIZE")]
    _put(
        settings,
        head__tasks=[list(names) for names in head["CLASS_NAMES_EACH_HEAD"]],
        detections__score=chosen.get("SCORE_THRESH"),
        detections__center_range=chosen.get("POST_CENTER_LIMIT_RANGE"),
        detections__pre=min((cap for cap in caps if cap is not None), default=None),
        **_openpcdet_nms(nms),
    )
    note = misplaced_code_weights(
        head.get("SEPARATE_HEAD_CFG", {}).get("HEAD_ORDER", []),
        head.get("LOSS_CONFIG", {}).get("LOSS_WEIGHTS", {}).get("code_weights", []),
    )
    return Declared(settings, (note,) if note else ())


def misplaced_code_weights(order: List[str], weights: List[float]) -> str:
    """What to say of a center head whose smaller weights, meant for the velocity, fall on another
    part of the box; "" when they do not. OpenPCDet's configurations have weights in det3d's order,
    velocity before angle, beside a head with the angle first."""
    if "vel" not in order or any(name not in HEAD_WIDTHS for name in order):
        return ""
    ends = list(accumulate(HEAD_WIDTHS[name] for name in order))
    parts = {name: weights[end - HEAD_WIDTHS[name] : end] for name, end in zip(order, ends)}  # noqa: B905
    small = [name for name, mine in parts.items() if name != "vel" and min(mine, default=1) < 1]
    if not small or min(parts["vel"], default=0) < 1:
        return ""
    return (
        f"trained with code weights of another order: {min(parts[small[0]])} on {small[0]}, "
        f"{max(parts['vel'])} on vel; its {small[0]} is worse than the net can be"
    )


# -------------------------------------------------------------------------------- mmdetection3d


def mmdet3d_config(text: str) -> Declared:
    """text: of a configuration in Python, as checkpoints hold it, all values in place; what stands
    in a _base_ is not followed. Only literals and dict(..) are understood; other statements are
    passed over. Raises CheckpointError for a model that is not built as those of mmdetection3d."""
    values = literals(text)
    model = values.get("model")
    if not isinstance(model, dict):
        return Declared()
    try:
        return _mmdet3d(values, model)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"the configuration is not built as mmdetection3d's: {error}"
        ) from None


def _mmdet3d(values: Config, model: Config) -> Declared:
    settings: Dict[str, Any] = {}
    head = model.get("bbox_head") or model.get("pts_bbox_head") or {}
    encoder = model.get("voxel_encoder") or model.get("pts_voxel_encoder") or {}
    _put(settings, classes=values.get("class_names"), **_mmdet3d_grid(model, encoder))
    backbone = model.get("backbone") or model.get("pts_backbone") or {}
    necks = model.get("neck") or model.get("pts_neck") or {}
    _put(settings, backbone__strides=backbone.get("layer_strides"))
    _put(settings, neck__strides=necks.get("upsample_strides"))
    # Where `type` is not said, the part goes on from that of another file, and what it leaves out
    # is said there.
    if "legacy" in encoder or "type" in encoder:
        _put(settings, encoder__legacy=bool(encoder.get("legacy", True)))
    if "use_conv_for_no_stride" in necks or "type" in necks:
        conv = necks.get("use_conv_for_no_stride", False)
        _put(settings, neck__stride_one="conv" if conv else "transposed")
    test_cfg: Config = model.get("test_cfg") or values.get("test_cfg") or {}
    if "tasks" in head:
        _mmdet3d_centers(settings, head, test_cfg.get("pts", test_cfg))
    elif "anchor_generator" in head:
        _mmdet3d_anchors(settings, head, test_cfg.get("pts", test_cfg))
    return Declared(settings)


def _class_name(part: Config) -> str:
    """Of a part's type, without the name of a registry or a module."""
    return str(part.get("type", "")).split(".")[-1]


def _mmdet3d_grid(model: Config, encoder: Config) -> Dict[str, Any]:
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


def _mmdet3d_anchors(settings: Dict[str, Any], head: Config, test_cfg: Config) -> None:
    if not test_cfg.get("use_rotate_nms", True):
        raise CheckpointError("use_rotate_nms=False is unknown: boxes are compared as they turn")
    generator = head["anchor_generator"]
    ranges, sizes = generator.get("ranges", []), generator.get("sizes", [])
    if "type" in generator:
        aligned = _class_name(generator).startswith("Aligned")
        _put(settings, head__grid="centers" if aligned else "ends")
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
    _put(
        settings,
        head__direction__offset=head.get("dir_offset"),
        head__direction__limit=head.get("dir_limit_offset"),
        detections__score=test_cfg.get("score_thr"),
        detections__pre=test_cfg.get("nms_pre"),
        detections__post=test_cfg.get("max_num"),
        detections__nms=[test_cfg["nms_thr"]] if "nms_thr" in test_cfg else None,
    )


def _mmdet3d_centers(settings: Dict[str, Any], head: Config, test_cfg: Config) -> None:
    tasks = [list(task["class_names"]) for task in head["tasks"]]
    coder = head.get("bbox_coder", {})
    circle = test_cfg.get("nms_type") == "circle"
    threshold = test_cfg.get("min_radius") if circle else test_cfg.get("nms_thr")
    if threshold is not None and not isinstance(threshold, list):
        threshold = [threshold]
    caps = [coder.get("max_num"), test_cfg.get("pre_max_size")]
    _put(
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
    known: Dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            try:
                known[name] = _value(statement.value, known)
            except (ValueError, KeyError, TypeError, RecursionError, MemoryError):
                known.pop(name, None)  # what it was before is not what it is
    return known


def _value(node: ast.AST, known: Dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item, known) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value(key, known): _value(value, known) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {one.arg: _value(one.value, known) for one in node.keywords if one.arg is not None}
    return ast.literal_eval(node)
