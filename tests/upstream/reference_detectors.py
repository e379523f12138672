# SPDX-License-Identifier: Apache-2.0
"""The plain-torch network that an imported detector is compared with, from its configuration."""

from typing import Any, Dict, Mapping

from torch import Tensor

from torchvox.models.checkpoints import CheckpointError

from . import mmdet3d, openpcdet
from .boxes import AnchorClass, AnchorRules
from .heads import CenterRules
from .pillars import BackboneNeck, Grid

Config = Mapping[str, Any]


def reference_detector(imported):
    """With the checkpoint's tensors, in evaluation mode. Raises CheckpointError for a network that
    the original program has but its re-implementation here has not."""
    config = imported.model.config()["config"]
    if config["detections"]["mode"] == "circle" and "conv_bias" not in config["head"]:
        raise CheckpointError("parity: detections.mode circle is known for heat maps alone")
    network = _network(imported.layout.name, config)
    state: Dict[str, Tensor] = dict(imported.state)
    for name, value in network.state_dict().items():
        if name.endswith(("num_batches_tracked", "global_step")):
            state.setdefault(name, value)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"parity: no such network in plain torch: {error}") from None
    return network.eval()


def _network(layout, config):
    program = openpcdet if layout == "openpcdet" else mmdet3d
    net, head, encoder = _common(config), config["head"], config["encoder"]
    how = {"legacy": encoder["legacy"], "axes": encoder["center_axes"]}
    how["clockwise"] = config["detections"]["box_format"] == "wlh_clockwise"
    if "conv_bias" in head:
        how |= {"dynamic": encoder["pad_semantics"] == "none", "bias": head["conv_bias"]}
        return program.CenterPoint(**net, **_centers(config), **how)
    net |= {**_anchors(config), "aligned": head["grid"] == "centers"}
    if "tasks" in head:
        heads = [[config["classes"].index(name) for name in task] for task in head["tasks"]]
        return program.MultiHead(**net, heads=heads, shared=head["shared"])
    kind = program.SingleHead if program is openpcdet else program.VoxelNet
    return kind(**net, area=head["area"], **how)


def _common(config):
    """Arguments that all networks take."""
    blocks, neck = config["backbone"], config["neck"]
    caps = max(0, config["max_points"]), max(0, config["max_pillars"][1])
    sizes = blocks["layers"], blocks["strides"], blocks["channels"], neck["strides"]
    return {
        "columns": config["columns"],
        "grid": Grid(config["pillar_size"], config["point_cloud_range"], *caps),
        "backbone_neck": BackboneNeck(*sizes, neck["channels"], neck["stride_one"] == "conv"),
        "filters": config["encoder"]["channels"],
    }


def _anchors(config):
    head, detections = config["head"], config["detections"]
    turn = head["direction"] or {"offset": 0.0, "limit": 0.0}
    caps = detections["pre"], detections["post"]
    rules = AnchorRules(
        detections["score"], detections["nms"][0], *caps, turn["offset"], turn["limit"]
    )
    boxes = zip(config["classes"], head["anchors"], strict=True)
    classes = [AnchorClass(name, box["size"], box["bottom"]) for name, box in boxes]
    return {"classes": classes, "rules": rules}


def _centers(config):
    head, detections = config["head"], config["detections"]
    caps = {"top": detections["pre"], "pre": detections["pre"], "post": detections["post"]}
    circle = detections["mode"] == "circle"
    rules = CenterRules(
        detections["score"], detections["center_range"], detections["nms"], circle, **caps
    )
    more = {"shared": head["shared"], "velocity": head["velocity"]}
    return {"tasks": [len(task) for task in head["tasks"]], "rules": rules, **more}
