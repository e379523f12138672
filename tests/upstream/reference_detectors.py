# SPDX-License-Identifier: Apache-2.0
"""The plain-torch network that an imported detector is compared with, from its configuration."""

from typing import Any, Dict, Mapping

from torch import Tensor

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.voxels import is_old

from . import det3d, mmdet3d, openpcdet
from .boxes import AnchorClass, AnchorRules
from .heads import CenterRules
from .pillars import BackboneNeck, Grid
from .voxels import Sizes

Config = Mapping[str, Any]


def reference_detector(imported):
    """With the checkpoint's tensors, in evaluation mode. Raises CheckpointError for a network that
    the original program has but its re-implementation here has not."""
    config = imported.model.config()["config"]
    if config["detections"]["mode"] == "circle" and "conv_bias" not in config["head"]:
        raise CheckpointError("parity: detections.mode circle is known for heat maps alone")
    network = _network(imported.layout.name, config, is_old(imported.state))
    state: Dict[str, Tensor] = dict(imported.state)
    for name, value in network.state_dict().items():
        if name.endswith(("num_batches_tracked", "global_step")):
            state.setdefault(name, value)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"parity: no such network in plain torch: {error}") from None
    return network.eval()


def _network(layout, config, old):
    program = {"openpcdet": openpcdet, "det3d": det3d}.get(layout, mmdet3d)
    if "joined" in config.get("sparse", ()):
        return _rows(config)
    net, head = _common(config, old), config["head"]
    encoder = config.get("encoder", {"pad_semantics": "reference"})
    how = (
        {} if "sparse" in config else {"legacy": encoder["legacy"], "axes": encoder["center_axes"]}
    )
    how["clockwise"] = config["detections"]["box_format"] == "wlh_clockwise"
    if "conv_bias" in head:
        how |= {"dynamic": encoder["pad_semantics"] == "none", "bias": head["conv_bias"]}
        kind = program.CenterPointVoxel if "sparse" in config else program.CenterPoint
        return kind(**net, **_centers(config), **how)
    net |= {**_anchors(config), "aligned": head["grid"] == "centers"}
    if "sparse" in config and "tasks" not in head:
        return program.Second(**net, area=head["area"], **how)
    if "tasks" in head:
        heads = [[config["classes"].index(name) for name in task] for task in head["tasks"]]
        return program.MultiHead(**net, heads=heads, shared=head["shared"])
    kind = program.SingleHead if program is openpcdet else program.VoxelNet
    return kind(**net, area=head["area"], **how)


def _common(config, old):
    """Arguments that all networks take. old: weights of sparse convolutions are spconv 1's."""
    blocks, neck, sparse = config["backbone"], config["neck"], config.get("sparse")
    kind = "voxel" if sparse else "pillar"
    caps = max(0, config["max_points"]), max(0, config[f"max_{kind}s"][1])
    sizes = blocks["layers"], blocks["strides"], blocks["channels"], neck["strides"]
    more = neck["channels"], neck["stride_one"] == "conv"
    if sparse:
        blocky = sparse["block"] == "residual", sparse["bias"]
        filters = Sizes(sparse["layers"], sparse["channels"], *blocky, old, sparse["out_channels"])
        more += (2 ** (len(filters.widths) - 1),)
    return {
        "columns": config["columns"],
        "grid": Grid(config[f"{kind}_size"], config["point_cloud_range"], *caps),
        "backbone_neck": BackboneNeck(*sizes, *more),
        "filters": filters if sparse else config["encoder"]["channels"],
    }


def _rows(config):
    """VoxelNeXt."""
    sparse, caps = config["sparse"], (config["max_points"], config["max_voxels"][1])
    sizes = Sizes(
        *(sparse["layers"], sparse["channels"], sparse["block"] == "residual", sparse["bias"]),
        **{"last": sparse["out_channels"], "joined": sparse["joined"]},
    )
    grid, size = Grid(config["voxel_size"], config["point_cloud_range"], *caps), "kernel"
    net = {"columns": config["columns"], "grid": grid, "filters": sizes}
    return openpcdet.VoxelNeXt(**net, size=config["head"][size], **_centers(config))


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
