# SPDX-License-Identifier: Apache-2.0
"""The plain-torch network that an imported detector is compared with, from its configuration."""

from typing import Any, Dict, List, Mapping, Tuple

from torch import Tensor, nn

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing.convert import Imported
from torchvox.reference import (
    centerpoint_det3d,
    pointpillars_mmdet3d,
    pointpillars_openpcdet,
    pointpillars_zhulf0804,
)
from torchvox.reference.boxes_plain import AnchorClass
from torchvox.reference.centers_plain import CenterRules
from torchvox.reference.pillars_plain import BackboneNeck, Grid

Config = Mapping[str, Any]
# The maps of a task in the order of our center heads; names there by layout.
CENTER_MAPS = {
    "openpcdet": ("hm", "center", "center_z", "dim", "rot", "vel"),
    "mmdet3d": ("heatmap", "reg", "height", "dim", "rot", "vel"),
    "mmdet3d_0": ("heatmap", "reg", "height", "dim", "rot", "vel"),
    "det3d": ("hm", "reg", "height", "dim", "rot", "vel"),
}


def reference_detector(imported: Imported) -> nn.Module:
    """With the checkpoint's tensors, in evaluation mode. Raises CheckpointError for a network that
    the original program has but its re-implementation here has not."""
    config = imported.model.config()["config"]
    if config["detections"]["mode"] == "circle" and "conv_bias" not in config["head"]:
        raise CheckpointError("parity: detections.mode circle is known for heat maps alone")
    network = BUILDERS[imported.layout.name](config)
    state: Dict[str, Tensor] = dict(imported.state)
    for name, value in network.state_dict().items():
        if name.endswith(("num_batches_tracked", "global_step")):
            state.setdefault(name, value)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"parity: no such network in plain torch: {error}") from None
    return network.eval()


def reference_maps(network: nn.Module, points: Tensor, layout: str) -> List[List[Tensor]]:
    """What its heads give for one cloud, in the order of our heads."""
    maps = network.maps(points)
    if isinstance(maps, list):
        return [[task[name] for task in maps if name in task] for name in CENTER_MAPS[layout]]
    if "cls" in maps:
        return [[maps["cls"]], [maps["box"]], [maps["dir"]]]
    tasks = range(len(maps) // 2)
    return [[maps[f"cls.{t}"] for t in tasks], [maps[f"box.{t}"] for t in tasks], []]


def _openpcdet(config: Config) -> nn.Module:
    columns, grid, backbone_neck, filters = _common(config)
    head, detections = config["head"], config["detections"]
    if "conv_bias" in head:
        return pointpillars_openpcdet.CenterPoint(
            columns,
            grid,
            [len(task) for task in head["tasks"]],
            backbone_neck,
            filters,
            _center_rules(config),
            head["shared"],
            dynamic=config["encoder"]["pad_semantics"] == "none",
            bias=head["conv_bias"],
            velocity=head["velocity"],
        )
    selection = {"score": detections["score"], "iou": detections["nms"][0]}
    selection |= {"pre": detections["pre"], "post": detections["post"]}
    turn = head["direction"]
    if turn is not None:
        selection |= {"dir_offset": turn["offset"], "dir_limit": turn["limit"]}
    chosen, aligned = pointpillars_openpcdet.AnchorRules(**selection), head["grid"] == "centers"
    if "tasks" not in head:
        return pointpillars_openpcdet.SingleHead(
            columns, grid, _classes(config), backbone_neck, filters, chosen, aligned
        )
    tasks = [[config["classes"].index(name) for name in task] for task in head["tasks"]]
    return pointpillars_openpcdet.MultiHead(
        columns,
        grid,
        _classes(config),
        tasks,
        backbone_neck,
        filters,
        chosen,
        head["shared"],
        aligned,
    )


def _mmdet3d(config: Config) -> nn.Module:
    columns, grid, backbone_neck, filters = _common(config)
    head, encoder = config["head"], config["encoder"]
    how: Dict[str, Any] = {"legacy": encoder["legacy"], "axes": encoder["center_axes"]}
    how["clockwise"] = config["detections"]["box_format"] == "wlh_clockwise"
    if "conv_bias" in head:
        tasks = [len(task) for task in head["tasks"]]
        rules, shared = _center_rules(config), head["shared"]
        return pointpillars_mmdet3d.CenterPoint(
            columns,
            grid,
            tasks,
            backbone_neck,
            filters,
            rules,
            shared,
            velocity=head["velocity"],
            **how,
        )
    return pointpillars_mmdet3d.VoxelNet(
        columns,
        grid,
        _classes(config),
        backbone_neck,
        filters,
        _anchor_rules(config),
        aligned=head["grid"] == "centers",
        area=head["area"],
        **how,
    )


def _zhulf0804(config: Config) -> nn.Module:
    columns, grid, backbone_neck, filters = _common(config)
    rules = _anchor_rules(config)
    return pointpillars_zhulf0804.PointPillars(
        columns, grid, _classes(config), backbone_neck, filters, rules
    )


def _det3d(config: Config) -> nn.Module:
    columns, grid, backbone_neck, filters = _common(config)
    tasks = [len(task) for task in config["head"]["tasks"]]
    rules, head = _center_rules(config), config["head"]
    return centerpoint_det3d.PointPillars(
        columns, grid, tasks, backbone_neck, filters, rules, head["shared"], head["velocity"]
    )


BUILDERS = {
    "openpcdet": _openpcdet,
    "mmdet3d": _mmdet3d,
    "mmdet3d_0": _mmdet3d,
    "zhulf0804": _zhulf0804,
    "det3d": _det3d,
}


def _common(config: Config) -> Tuple[int, Grid, BackboneNeck, Tuple[int, ...]]:
    grid = Grid(
        tuple(config["pillar_size"]),
        tuple(config["point_cloud_range"]),
        max(0, config["max_points"]),
        max(0, config["max_pillars"][1]),
    )
    blocks, neck = config["backbone"], config["neck"]
    backbone_neck = BackboneNeck(
        tuple(blocks["layers"]),
        tuple(blocks["strides"]),
        tuple(blocks["channels"]),
        tuple(neck["strides"]),
        tuple(neck["channels"]),
        conv_at_one=neck["stride_one"] == "conv",
    )
    return config["columns"], grid, backbone_neck, tuple(config["encoder"]["channels"])


def _classes(config: Config) -> List[AnchorClass]:
    boxes = zip(config["classes"], config["head"]["anchors"], strict=True)
    return [AnchorClass(name, tuple(box["size"]), box["bottom"]) for name, box in boxes]


def _anchor_rules(config: Config) -> pointpillars_mmdet3d.Rules:
    detections, turn = config["detections"], config["head"]["direction"]
    return pointpillars_mmdet3d.Rules(
        detections["score"],
        detections["nms"][0],
        detections["pre"],
        detections["post"],
        turn["offset"],
        turn["limit"],
    )


def _center_rules(config: Config) -> CenterRules:
    detections = config["detections"]
    return CenterRules(
        detections["score"],
        tuple(detections["center_range"]),
        tuple(detections["nms"]),
        detections["mode"] == "circle",
        top=detections["pre"],
        pre=detections["pre"],
        post=detections["post"],
        every_class=not detections["best_class"],
    )
