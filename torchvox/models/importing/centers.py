# SPDX-License-Identifier: Apache-2.0
"""Center heads in checkpoints of other programs: classes by task, and where each tensor belongs."""

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.backbone_neck import Pair, State, conv, norm, shape
from torchvox.models.importing.published import NUSCENES_LIMITS, NUSCENES_TASKS
from torchvox.models.importing.settings import Settings, detections
from torchvox.ops.detection import CENTER_DECODE_NMS_CONVENTIONS


@dataclass(frozen=True)
class TaskNames:
    """shared: convolution and batch norm. tasks: the list of tasks. parts: our names to theirs.
    conv, norm: of layer k of a branch, {0}: k, {1}: 3 * k, {2}: 3 * k + 1. last: the convolution
    behind k of these."""

    shared: Tuple[str, str]
    tasks: str
    parts: Mapping[str, str]
    conv: str
    norm: str
    last: str

    def at(self, task: int, part: str, name: str, layer: int) -> str:
        number = name.format(layer, 3 * layer, 3 * layer + 1)
        return f"{self.tasks}.{task}.{self.parts[part]}.{number}"

    def convs(self, state: State, part: str) -> int:
        """Layers of a branch before its last convolution."""
        layers = 0
        while f"{self.at(0, part, self.norm, layers)}.running_mean" in state:
            layers += 1
        return layers


def center_head(
    state: State, settings: Settings, names: TaskNames, convention: str
) -> Tuple[List[str], Dict[str, Any], str]:
    """Class names, the configuration of the head, and why it is none of the published ones, ""
    when it is."""
    counts: List[int] = []
    convs = max(1, names.convs(state, "hm"))
    first = f"{names.at(0, 'hm', names.conv, 0)}.weight"
    while (last := f"{names.at(len(counts), 'hm', names.last, convs)}.weight") in state:
        counts.append(shape(state, last)[0])
    if not counts:
        raise CheckpointError(f"the checkpoint has no {first}")
    unknown = ""
    if counts == [len(task) for task in NUSCENES_TASKS]:
        tasks = settings.choose("head.tasks", NUSCENES_TASKS)
        classes = settings.choose("classes", [name for task in NUSCENES_TASKS for name in task])
    else:
        unknown = f"tasks of {counts} classes are not those of a published net"
        tasks, classes = settings.need("head.tasks", unknown), settings.need("classes", unknown)
    head = {
        "tasks": [list(task) for task in tasks],
        "shared": shape(state, f"{names.shared[0]}.weight")[0],
        "width": shape(state, first)[0],
        "convs": convs,
        "velocity": f"{names.at(0, 'vel', names.last, convs)}.weight" in state,
        "rot": settings.choose("head.rot", CENTER_DECODE_NMS_CONVENTIONS[convention]["rot_order"]),
        "conv_bias": f"{names.shared[0]}.bias" in state,
    }
    return list(classes), head, unknown


def task_pairs(config: Mapping[str, Any], names: TaskNames, rows: bool = False) -> List[Pair]:
    """Of any head in tasks. rows: one of sparse convolutions, whose layers are numbered."""
    head = config["head"]
    bias = head.get("conv_bias", False)
    first = ("0", "1") if rows else ("conv", "norm")
    pairs = conv(names.shared[0], f"head.shared.{first[0]}", bias)
    pairs += norm(names.shared[1], f"head.shared.{first[1]}")
    for t in range(len(head["tasks"])):
        for part in names.parts:
            if part == "vel" and not head.get("velocity", True):
                continue
            ours = f"head.tasks.{t}.{part}"
            for k in range(head["convs"]):
                own = (3 * k, 3 * k + 1) if rows else (f"{k}.conv", f"{k}.norm")
                pairs += conv(names.at(t, part, names.conv, k), f"{ours}.layers.{own[0]}", bias)
                pairs += norm(names.at(t, part, names.norm, k), f"{ours}.layers.{own[1]}")
            pairs += conv(names.at(t, part, names.last, head["convs"]), f"{ours}.out", bias=True)
    return pairs


def center_detections(settings: Settings, convention: str, **more: object) -> Dict[str, Any]:
    """Of nuScenes: a suppression per task."""
    numbers = {"score": 0.1, "pre": 500, "post": 83, "nms": [0.2], **more}
    limits = list(NUSCENES_LIMITS)
    options = CENTER_DECODE_NMS_CONVENTIONS[convention]
    return detections(settings, options, center_range=limits, **numbers)
