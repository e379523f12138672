# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors of open-mmlab/OpenPCDet."""

from typing import List

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
from torchvox.models.importing.published import (
    KITTI,
    KITTI_ANCHORS,
    NUSCENES,
    NUSCENES_ANCHORS,
    NUSCENES_TASKS,
    OPENPCDET_KITTI,
)
from torchvox.models.importing.settings import SHAPES, Settings, detections
from torchvox.ops.detection import ANCHOR_DECODE_NMS_CONVENTIONS

PILLARS = PillarNames(
    "vfe.pfn_layers.{}.linear",
    "vfe.pfn_layers.{}.norm",
    "backbone_2d.blocks",
    "backbone_2d.deblocks",
    1,
)
STEP = "global_step"
KITTI_INPUTS = 10  # of the pillar net: four columns, two offsets
CENTERS = TaskNames(
    ("dense_head.shared_conv.0", "dense_head.shared_conv.1"),
    "dense_head.heads_list",
    {"reg": "center", "z": "center_z", "dim": "dim", "rot": "rot", "vel": "vel", "hm": "hm"},
    lambda k: (f"{k}.0", f"{k}.1"),
    lambda n: f"{n}",
)
# Parts in the order of the code of a box.
CODE = {"reg": "reg", "z": "height", "dim": "size", "rot": "angle", "vel": "velo"}
HEADS = TaskNames(
    ("dense_head.shared_conv.0", "dense_head.shared_conv.1"),
    "dense_head.rpn_heads",
    {"cls": "conv_cls", **{ours: f"conv_box.conv_{theirs}" for ours, theirs in CODE.items()}},
    lambda k: (f"{3 * k}", f"{3 * k + 1}"),
    lambda n: f"{3 * n}",
)


def _describe(state: State, settings: Settings) -> Found:
    if "dense_head.conv_cls.weight" in state:
        return _single(state, settings)
    if any(key.startswith("dense_head.rpn_heads.") for key in state):
        return _several(state, settings)
    return _centers(state, settings)


def _single(state: State, settings: Settings) -> Found:
    per_cell = per_cell_of(state, "dense_head.conv_box.weight")
    count = shape(state, "dense_head.conv_cls.weight")[0] // per_cell
    inputs, unknown = shape(state, PILLARS.linear.format(0) + ".weight", 2)[1], ""
    if (per_cell, count, inputs) != (6, 3, KITTI_INPUTS):
        unknown = f"{per_cell} anchors a cell, {count} classes and {inputs} inputs"
        unknown += " are not those of a published net"
    classes, boxes = classes_and_anchors(settings, unknown, OPENPCDET_KITTI, KITTI_ANCHORS)
    config = PILLARS.described(state, settings, KITTI, unknown, "transposed")
    direction, options = None, ANCHOR_DECODE_NMS_CONVENTIONS["openpcdet"]
    if "dense_head.conv_dir_cls.weight" in state:
        bins = shape(state, "dense_head.conv_dir_cls.weight")[0] // per_cell
        turn = {"offset": 0.78539, "limit": options["dir_limit"]}
        direction = settings.choices("head.direction", turn)
        direction["bins"] = settings.choose("head.direction.bins", bins, SHAPES)
    grid = settings.choose("head.grid", "ends")
    config["head"] = {"anchors": boxes, "grid": grid, "code_size": 7, "direction": direction}
    config["detections"] = detections(settings, options, score=0.1, pre=4096, post=500, nms=[0.01])
    return Found("PointPillars", {"classes": classes, **config})


def _several(state: State, settings: Settings) -> Found:
    heads: List[List[int]] = []
    while f"dense_head.rpn_heads.{len(heads)}.head_label_indices" in state:
        labels = state[f"dense_head.rpn_heads.{len(heads)}.head_label_indices"]
        heads.append([int(label) - 1 for label in labels.flatten()])
    count, names = sum(len(head) for head in heads), [n for task in NUSCENES_TASKS for n in task]
    if sorted(label for head in heads for label in head) != list(range(count)) or not count:
        raise CheckpointError("dense_head.rpn_heads: head_label_indices must be 1, 2, .. once each")
    unknown = ""
    if count != len(names):
        unknown = f"{count} classes are not those of a published net"
    classes, boxes = classes_and_anchors(settings, unknown, names, NUSCENES_ANCHORS)
    config = PILLARS.described(state, settings, NUSCENES, unknown, "transposed")
    tasks = [[classes[label] for label in head] for head in heads]
    convs = 0
    while f"dense_head.rpn_heads.0.conv_cls.{3 * convs + 1}.running_mean" in state:
        convs += 1
    config["head"] = {
        "anchors": boxes,
        "tasks": settings.choose("head.tasks", tasks, SHAPES),
        "grid": settings.choose("head.grid", "ends"),
        "code_size": 10,
        "shared": shape(state, "dense_head.shared_conv.0.weight")[0],
        "width": shape(state, "dense_head.rpn_heads.0.conv_cls.0.weight")[0],
        "convs": convs,
    }
    options = ANCHOR_DECODE_NMS_CONVENTIONS["openpcdet_multihead"]
    config["detections"] = detections(settings, options, score=0.1, pre=1000, post=83, nms=[0.2])
    return Found("PointPillars", {"classes": classes, **config})


def _centers(state: State, settings: Settings) -> Found:
    """Two layers of the pillar net are the dynamic one of the published configuration."""
    dynamic = PILLARS.linear.format(1) + ".weight" in state
    padding = settings.peek("encoder.pad_semantics", "none" if dynamic else "reference")
    grid = dict(NUSCENES)
    if padding == "none":
        grid |= {"max_points": -1, "max_pillars": [-1, -1]}
    classes, head, unknown = center_head(state, settings, CENTERS, "openpcdet")
    config = PILLARS.described(state, settings, grid, unknown, "transposed", pad_semantics=padding)
    config |= {"head": head, "detections": center_detections(settings, "openpcdet")}
    return Found("CenterPointPillars", {"classes": classes, **config})


def _pairs(model: nn.Module, state: State) -> List[Pair]:
    config = model.config()["config"]
    pairs: List[Pair] = [(STEP, None)] if STEP in state else []
    pairs += PILLARS.pairs(config)
    if "conv_bias" in config["head"]:
        return pairs + task_pairs(config, CENTERS)
    if "tasks" not in config["head"]:
        for theirs, ours in (("cls", "cls"), ("box", "box"), ("dir_cls", "dir")):
            if ours != "dir" or config["head"]["direction"] is not None:
                pairs += conv(f"dense_head.conv_{theirs}", f"head.{ours}", bias=True)
        return pairs
    labels = [f"{HEADS.tasks}.{t}.head_label_indices" for t in range(len(config["head"]["tasks"]))]
    return pairs + [(name, None) for name in labels] + task_pairs(config, HEADS)


NOTES = {
    "CenterPointPillars": (
        "published dyn_pp_centerpoint weights were trained with code weights of another order (0.2 "
        "on rot, not on vel): their angles are worse than the net can be",
    )
}

OPENPCDET = Layout(
    "openpcdet",
    "open-mmlab/OpenPCDet",
    lambda state: (
        any(key.startswith("vfe.pfn_layers.") for key in state)
        and any(key.startswith("dense_head.") for key in state)
    ),
    _describe,
    _pairs,
    boxes="openpcdet",
    notes=NOTES,
)
