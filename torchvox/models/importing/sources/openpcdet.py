# SPDX-License-Identifier: Apache-2.0
"""Detectors of open-mmlab/OpenPCDet on pillars and voxels: names of its tensors, and its
configurations."""

from dataclasses import replace
from itertools import accumulate
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
from torchvox.models.importing.voxels import VoxelNames, nuscenes_voxels, of_rows, of_voxels
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS

Config = Mapping[str, Any]
ENCODERS = ("PillarVFE", "DynPillarVFE", "MeanVFE", "DynMeanVFE")
BACKBONES = ("VoxelBackBone8x", "VoxelResBackBone8x", "VoxelResBackBone8xVoxelNeXt")
PARTS = ["reg:2", "height:1", "size:3", "angle:2", "velo:2"]
HEAD_WIDTHS = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2}
BEV = ("backbone_2d.blocks", "backbone_2d.deblocks", 1)
PILLARS = PillarNames(*BEV, "vfe.pfn_layers.{}.linear", "vfe.pfn_layers.{}.norm")
VOXELS = VoxelNames(*BEV, "backbone_3d.")
STEP = "global_step"
CENTERS = TaskNames(
    ("dense_head.shared_conv.0", "dense_head.shared_conv.1"),
    "dense_head.heads_list",
    {"reg": "center", "z": "center_z", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "hm"},
    "{0}.0",
    "{0}.1",
    "{0}",
)
ROWS = replace(CENTERS, shared=("backbone_3d.shared_conv.0", "backbone_3d.shared_conv.1"))
# Parts in the order of the code of a box.
CODE = {"reg": "reg", "z": "height", "dim": "size", "rot": "angle", "vel": "velo"}
HEADS = TaskNames(
    ("dense_head.shared_conv.0", "dense_head.shared_conv.1"),
    "dense_head.rpn_heads",
    {"cls": "conv_cls", **{ours: f"conv_box.conv_{theirs}" for ours, theirs in CODE.items()}},
    "{1}",
    "{2}",
    "{1}",
)


def _names(state: State) -> Union[PillarNames, VoxelNames]:
    return VOXELS if any(key.startswith(VOXELS.prefix) for key in state) else PILLARS


def _describe(state: State, settings: Settings) -> Found:
    if "dense_head.conv_cls.weight" in state:
        return _single(state, settings)
    if any(key.startswith("dense_head.rpn_heads.") for key in state):
        return _several(state, settings)
    return _centers(state, settings)


def _single(state: State, settings: Settings) -> Found:
    per_cell = per_cell_of(state, "dense_head.conv_box.weight")
    count = shape(state, "dense_head.conv_cls.weight")[0] // per_cell
    names, unknown = _names(state), ""
    inputs, voxels = names.inputs(state), names is VOXELS
    # Four columns, which a pillar net takes with two offsets.
    if (per_cell, count, inputs) != (6, 3, 4 if voxels else 10):
        unknown = f"{per_cell} anchors a cell, {count} classes and {inputs} inputs"
        unknown += " are not those of a published net"
    classes, boxes = classes_and_anchors(
        settings, unknown, published.OPENPCDET_KITTI, published.KITTI_ANCHORS
    )
    grid = published.KITTI_VOXELS if voxels else published.KITTI
    config = names.describe(state, settings, grid, unknown, "transposed")
    direction, options = None, ANCHOR_DECODE_NMS_CONVENTIONS["openpcdet"]
    if "dense_head.conv_dir_cls.weight" in state:
        bins = shape(state, "dense_head.conv_dir_cls.weight")[0] // per_cell
        turn = {"offset": 0.78539, "limit": options["dir_limit"]}
        direction = settings.choices("head.direction", turn)
        direction["bins"] = settings.choose("head.direction.bins", bins, SHAPES)
    ends = settings.choose("head.grid", "ends")
    config["head"] = {"anchors": boxes, "grid": ends, "code_size": 7, "direction": direction}
    config["detections"] = detections(settings, options, score=0.1, pre=4096, post=500, nms=[0.01])
    return Found("Second" if voxels else "PointPillars", {"classes": classes, **config})


def _several(state: State, settings: Settings) -> Found:
    if _names(state) is VOXELS:
        raise CheckpointError(
            "dense_head.rpn_heads behind backbone_3d, AnchorHeadMulti over voxels, cannot be "
            "imported: import the network with CenterHead or AnchorHeadSingle, or over pillars"
        )
    heads: List[List[int]] = []
    while f"dense_head.rpn_heads.{len(heads)}.head_label_indices" in state:
        labels = state[f"dense_head.rpn_heads.{len(heads)}.head_label_indices"]
        heads.append([int(label) - 1 for label in labels.flatten()])
    names = [name for task in published.NUSCENES_TASKS for name in task]
    count = sum(len(head) for head in heads)
    if sorted(label for head in heads for label in head) != list(range(count)) or not count:
        raise CheckpointError("dense_head.rpn_heads: head_label_indices must be 1, 2, .. once each")
    unknown = ""
    if count != len(names):
        unknown = f"{count} classes are not those of a published net"
    classes, boxes = classes_and_anchors(settings, unknown, names, published.NUSCENES_ANCHORS)
    config = PILLARS.describe(state, settings, published.NUSCENES, unknown, "transposed")
    tasks = [[classes[label] for label in head] for head in heads]
    config["head"] = {
        "anchors": boxes,
        "tasks": settings.choose("head.tasks", tasks, SHAPES),
        "grid": settings.choose("head.grid", "ends"),
        "code_size": 10,
        "shared": shape(state, "dense_head.shared_conv.0.weight")[0],
        "width": shape(state, "dense_head.rpn_heads.0.conv_cls.0.weight")[0],
        "convs": HEADS.convs(state, "cls"),
    }
    options = ANCHOR_DECODE_NMS_CONVENTIONS["openpcdet_multihead"]
    config["detections"] = detections(settings, options, score=0.1, pre=1000, post=83, nms=[0.2])
    return Found("PointPillars", {"classes": classes, **config})


def _centers(state: State, settings: Settings) -> Found:
    """Two layers of the pillar net are the dynamic one of the published configuration."""
    dynamic = PILLARS.linear.format(1) + ".weight" in state
    padding = settings.peek("encoder.pad_semantics", "none" if dynamic else "reference")
    grid = dict(published.NUSCENES)
    if padding == "none":
        grid |= {"max_points": -1, "max_pillars": [-1, -1]}
    rows = of_rows(state)
    tasks = ROWS if rows else CENTERS
    classes, head, unknown = center_head(state, settings, tasks, "openpcdet")
    names = _names(state)
    if rows:
        grid = published.NUSCENES_ROWS
        head["kernel"] = shape(state, tasks.at(0, "hm", tasks.conv, 0) + ".weight", 4)[1]
    elif names is VOXELS:
        grid = nuscenes_voxels(settings, [120_000, 160_000])
    config = names.describe(state, settings, grid, unknown, "transposed", pad_semantics=padding)
    config |= {"head": head, "detections": center_detections(settings, "openpcdet")}
    kind = "CenterPointVoxel" if names is VOXELS else "CenterPointPillars"
    return Found("VoxelNeXt" if rows else kind, {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    pairs: List[Pair] = [(STEP, None)] if STEP in state else []
    pairs += _names(state).pairs(model, state)
    if "conv_bias" in config["head"]:
        rows = of_rows(state)
        return pairs + task_pairs(config, ROWS if rows else CENTERS, rows)
    if "tasks" not in config["head"]:
        for theirs, ours in (("cls", "cls"), ("box", "box"), ("dir_cls", "dir")):
            if ours != "dir" or config["head"]["direction"] is not None:
                pairs += conv(f"dense_head.conv_{theirs}", f"head.{ours}", bias=True)
        return pairs
    labels = [f"{HEADS.tasks}.{t}.head_label_indices" for t in range(len(config["head"]["tasks"]))]
    return pairs + [(name, None) for name in labels] + task_pairs(config, HEADS)


NOTES = dict.fromkeys(
    ("CenterPointPillars", "CenterPointVoxel", "VoxelNeXt"),
    (
        "published weights of this net were trained with code weights of another order (0.2 on "
        "rot, not on vel): their angles are worse than the net can be",
    ),
)

LAYOUT = Layout(
    "openpcdet",
    "open-mmlab/OpenPCDet",
    ("vfe.pfn_layers.", VOXELS.prefix),
    _describe,
    _pairs,
    boxes="openpcdet",
    notes=NOTES,
)


# ------------------------------------------------------------------------------- configurations


def openpcdet_config(content: Config) -> Declared:
    """content: of a YAML file of tools/cfgs/, without what it takes from a _BASE_CONFIG_. Raises
    CheckpointError when it is not built like these."""
    model = content.get("MODEL")
    if not isinstance(model, Mapping) or "DENSE_HEAD" not in model:
        raise CheckpointError("the configuration has no MODEL with a DENSE_HEAD, as OpenPCDet's do")
    try:
        return _declared(content, model)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the configuration is not built as OpenPCDet's: {error}") from None


PLACES = {
    "classes": "CLASS_NAMES",
    "point_cloud_range": "DATA_CONFIG.POINT_CLOUD_RANGE",
    "backbone.strides": "MODEL.BACKBONE_2D.LAYER_STRIDES",
    "neck.strides": "MODEL.BACKBONE_2D.UPSAMPLE_STRIDES",
}
VOXEL_STEP = {"pillar_size": "VOXEL_SIZE", "max_points": "MAX_POINTS_PER_VOXEL"}
DIRECTION = {"head.direction.offset": "DIR_OFFSET", "head.direction.limit": "DIR_LIMIT_OFFSET"}
SELECTION = {
    "detections.score": "SCORE_THRESH",
    "detections.post": "NMS_CONFIG.NMS_POST_MAXSIZE",
    "detections.center_range": "POST_CENTER_LIMIT_RANGE",
}


def _declared(content: Config, model: Config) -> Declared:
    settings, head = pick(content, PLACES), model["DENSE_HEAD"]
    for step in content.get("DATA_CONFIG", {}).get("DATA_PROCESSOR", []):
        if step["NAME"].startswith("transform_points_to_voxels"):
            settings |= pick(step, VOXEL_STEP)
            if caps := step.get("MAX_NUMBER_OF_VOXELS"):
                settings["max_pillars"] = [caps["train"], caps["test"]]
    settings |= _declared_encoder(model.get("VFE", {}))
    if sparse := model.get("BACKBONE_3D"):
        if sparse.get("NAME") not in BACKBONES:
            known = ", ".join(BACKBONES)
            raise CheckpointError(f"BACKBONE_3D.NAME {sparse.get('NAME')} is unknown: {known} are")
        if any(size != 3 for size in sparse.get("SPCONV_KERNEL_SIZES", [])):
            raise CheckpointError("BACKBONE_3D.SPCONV_KERNEL_SIZES other than 3 are not known")
        settings = of_voxels(settings | pick(sparse, {"sparse.last_pad": "last_pad"}))
    if "CLASS_NAMES_EACH_HEAD" not in head:
        settings |= _declared_anchors(head, settings.get("classes", []))
        rules = model.get("POST_PROCESSING", {})
        settings |= _declared_selection(rules)
        if "MULTI_CLASSES_NMS" in (nms := rules.get("NMS_CONFIG", {})):
            settings["detections.group"] = "class" if nms["MULTI_CLASSES_NMS"] else "none"
        return Declared(settings)
    settings["head.tasks"] = [list(names) for names in head["CLASS_NAMES_EACH_HEAD"]]
    settings |= _declared_selection(head.get("POST_PROCESSING", {}))
    note = misplaced_code_weights(
        head.get("SEPARATE_HEAD_CFG", {}).get("HEAD_ORDER", []),
        head.get("LOSS_CONFIG", {}).get("LOSS_WEIGHTS", {}).get("code_weights", []),
    )
    return Declared(settings, (note,) if note else ())


def _declared_encoder(layer: Config) -> Dict[str, Any]:
    """Rows of other columns could be rows of another cloud: their tensors look alike."""
    if not layer:
        return {}
    name = layer.get("NAME")
    if name not in ENCODERS:
        raise CheckpointError(f"VFE.NAME {name} is unknown: {', '.join(ENCODERS)} are known")
    dynamic = {"max_points": -1, "max_pillars": [-1, -1]} if name.startswith("Dyn") else {}
    if name.endswith("MeanVFE"):
        return dynamic
    for key, supported in (("WITH_DISTANCE", False), ("USE_ABSLOTE_XYZ", True)):
        if layer.get(key, supported) is not supported:
            raise CheckpointError(f"VFE.{key} {layer[key]} is unknown: {supported} is known")
    return {"encoder.pad_semantics": "none" if dynamic else "reference", **dynamic}


def _declared_selection(rules: Config) -> Dict[str, Any]:
    """From the POST_PROCESSING of a model or a head."""
    settings, nms = pick(rules, SELECTION), rules.get("NMS_CONFIG", {})
    threshold, kind = nms.get("NMS_THRESH"), nms.get("NMS_TYPE", "nms_gpu")
    if kind != "nms_gpu":
        raise CheckpointError(f"NMS_CONFIG.NMS_TYPE {kind} is unknown: nms_gpu is known")
    if threshold is not None:
        settings["detections.nms"] = [threshold]
    return settings | least(rules.get("MAX_OBJ_PER_SAMPLE"), nms.get("NMS_PRE_MAXSIZE"))


def _declared_anchors(head: Config, classes: List[str]) -> Dict[str, Any]:
    settings = pick(head, DIRECTION) if head.get("USE_DIRECTION_CLASSIFIER") else {}
    parts = (head.get("SEPARATE_REG_CONFIG") or {}).get("REG_LIST", PARTS)
    if list(parts) != PARTS:  # the order of the channels, which no name of a tensor shows
        raise CheckpointError(f"REG_LIST {parts} is unknown: {PARTS} is known")
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
    return settings


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
