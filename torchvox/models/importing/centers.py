# SPDX-License-Identifier: Apache-2.0
"""Center heads in checkpoints of other programs: classes by task, and where each tensor belongs."""

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Tuple

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.backbone_neck import Pair, State, conv, norm, shape
from torchvox.models.importing.published import NUSCENES_LIMITS, NUSCENES_TASKS
from torchvox.models.importing.settings import Settings, detections
from torchvox.ops.detection import CENTER_DECODE_NMS_CONVENTIONS


@dataclass(frozen=True)
class TaskNames:
    """shared: convolution and batch norm. tasks: the list of tasks. parts: our names to theirs.
    layer: names of convolution and batch norm k of a branch. last: that behind n of these."""

    shared: Tuple[str, str]
    tasks: str
    parts: Mapping[str, str]
    layer: Callable[[int], Tuple[str, str]]
    last: Callable[[int], str]


def center_head(
    state: State, settings: Settings, names: TaskNames, convention: str
) -> Tuple[List[str], Dict[str, Any], str]:
    """Class names, the configuration of the head, and why it is none of the published ones, ""
    when it is."""
    counts: List[int] = []
    first = f"{names.tasks}.{{}}.{names.parts['hm']}.{names.layer(0)[0]}.weight"
    convs = 1
    while f"{names.tasks}.0.{names.parts['hm']}.{names.layer(convs)[1]}.weight" in state:
        convs += 1
    while first.format(len(counts)) in state:
        at = f"{names.tasks}.{len(counts)}.{names.parts['hm']}.{names.last(convs)}.weight"
        counts.append(shape(state, at)[0])
    if not counts:
        raise CheckpointError(f"the checkpoint has no {first.format(0)}")
    unknown = ""
    if counts == [len(task) for task in NUSCENES_TASKS]:
        tasks = settings.choose("head.tasks", NUSCENES_TASKS)
        classes = settings.choose("classes", [name for task in NUSCENES_TASKS for name in task])
    else:
        unknown = f"tasks of {counts} classes are not those of a published net"
        tasks, classes = settings.need("head.tasks", unknown), settings.need("classes", unknown)
    width = shape(state, first.format(0))[0]
    head = {
        "tasks": [list(task) for task in tasks],
        "shared": shape(state, f"{names.shared[0]}.weight")[0],
        "width": width,
        "convs": convs,
        "velocity": f"{names.tasks}.0.{names.parts['vel']}.{names.last(convs)}.weight" in state,
        "rot": settings.choose("head.rot", CENTER_DECODE_NMS_CONVENTIONS[convention]["rot_order"]),
        "conv_bias": f"{names.shared[0]}.bias" in state,
    }
    return list(classes), head, unknown


def task_pairs(config: Mapping[str, Any], names: TaskNames) -> List[Pair]:
    """Of any head in tasks."""
    head = config["head"]
    bias = head.get("conv_bias", False)
    pairs = conv(names.shared[0], "head.shared.conv", bias)
    pairs += norm(names.shared[1], "head.shared.norm")
    for t in range(len(head["tasks"])):
        for part, theirs in names.parts.items():
            if part == "vel" and not head.get("velocity", True):
                continue
            at, ours = f"{names.tasks}.{t}.{theirs}", f"head.tasks.{t}.{part}"
            for k in range(head["convs"]):
                conv_name, norm_name = names.layer(k)
                pairs += conv(f"{at}.{conv_name}", f"{ours}.layers.{k}.conv", bias)
                pairs += norm(f"{at}.{norm_name}", f"{ours}.layers.{k}.norm")
            pairs += conv(f"{at}.{names.last(head['convs'])}", f"{ours}.out", bias=True)
    return pairs


def center_detections(settings: Settings, convention: str, **more: Any) -> Dict[str, Any]:
    """Of nuScenes: a suppression per task."""
    numbers = {"score": 0.1, "pre": 500, "post": 83, "nms": [0.2], **more}
    limits = list(NUSCENES_LIMITS)
    options = CENTER_DECODE_NMS_CONVENTIONS[convention]
    return detections(settings, options, center_range=limits, **numbers)
