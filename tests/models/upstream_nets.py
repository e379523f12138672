# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors of other programs, small and as published, with weights that find things."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchvox.models.importing import published
from torchvox.reference import (
    centerpoint_det3d,
    pointpillars_mmdet3d,
    pointpillars_openpcdet,
    pointpillars_zhulf0804,
)
from torchvox.reference.boxes_plain import AnchorClass
from torchvox.reference.centers_plain import CenterRules
from torchvox.reference.pillars_plain import BackboneNeck, Grid


@dataclass(frozen=True)
class UpstreamNet:
    """tensors: how many its checkpoint has. settings: those that an import needs. release: that
    the checkpoint names."""

    network: nn.Module
    columns: int
    tensors: int
    settings: dict
    release: str = ""


SCORES = {"conv_cls", "hm", "heatmap"}
BOXES = {"conv_box", "conv_reg", "reg", "dim", "height", "center"}


def with_weights(network: nn.Module, points: Tensor) -> nn.Module:
    """The network in evaluation, batch norms with the statistics of the points, boxes of moderate
    size, few scores above the threshold."""
    generator = torch.Generator().manual_seed(1)
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    with torch.no_grad():
        for norm in norms:
            norm.momentum = 1.0
            norm.weight += 0.3 * torch.randn(norm.weight.shape, generator=generator)
            norm.bias += 0.2 * torch.randn(norm.bias.shape, generator=generator)
        for name, conv in network.named_modules():
            # Those before a batch norm are changed too, which undoes it.
            if isinstance(conv, nn.Conv2d) and conv.bias is not None:
                conv.bias -= 2.5 * bool(SCORES & set(name.split(".")))
                conv.weight *= 0.3 if BOXES & set(name.split(".")) else 1.0
        network.train().maps(points)
    for norm in norms:
        norm.running_var.clamp_(min=0.2 * float(norm.running_var.mean()))
    return network.eval()


# ------------------------------------------------------------------------------------ small

GRID = Grid((0.5, 0.5, 4.0), (0.0, -8.0, -3.0, 16.0, 8.0, 1.0), 8, 200)
ANCHOR_BACKBONE_NECK = BackboneNeck((1, 1), (2, 2), (8, 16), (1, 2), (16, 16))
CENTER_BACKBONE_NECK = BackboneNeck((1, 1), (2, 2), (8, 16), (0.5, 1), (16, 16))
CONV_BACKBONE_NECK = replace(CENTER_BACKBONE_NECK, conv_at_one=True)
CLASSES = (AnchorClass("van", (4.5, 1.8, 2.0), -1.7), AnchorClass("person", (0.8, 0.6, 1.7), -0.6))
SIGN = AnchorClass("sign", (0.3, 0.5, 2.5), -0.8)
TASKS = (1, 2)
NAMES = ["van", "person", "sign"]
PLACE = {
    "point_cloud_range": list(GRID.point_cloud_range),
    "pillar_size": list(GRID.voxel_size),
    "max_points": 8,
    "max_pillars": [100, 200],
}
DYNAMIC = replace(GRID, max_points=0, max_pillars=0)
CENTERS = {**PLACE, "classes": NAMES, "head": {"tasks": [["van"], ["person", "sign"]]}}
UNCAPPED = {**CENTERS, "max_points": -1, "max_pillars": [-1, -1]}


def entries(classes) -> list[dict]:
    return [{"size": list(one.size), "bottom": one.z} for one in classes]


def anchor_settings(classes=CLASSES, **more) -> dict:
    names = [one.name for one in classes]
    return {**PLACE, "classes": names, "head.anchors": entries(classes), **more}


def wide(classes) -> tuple[AnchorClass, ...]:
    """Sizes as w, l, h."""
    return tuple(replace(one, size=(one.size[1], one.size[0], one.size[2])) for one in classes)


def small_points(columns: int, count: int = 3000) -> Tensor:
    """More than the caps hold, some out of range, one not finite."""
    generator = torch.Generator().manual_seed(2)
    points = torch.rand(count, columns, generator=generator)
    points[:, :3] = points[:, :3] * torch.tensor([18.0, 18.0, 4.4]) - torch.tensor([1.0, 9.0, 3.2])
    points[: count // 2, :2] = points[: count // 2, :2] * 0.3 + torch.tensor([4.0, 1.0])
    points[7, 1] = float("nan")
    return points


def _small(name: str) -> UpstreamNet:
    pcdet, mmdet = pointpillars_openpcdet, pointpillars_mmdet3d
    if name == "openpcdet anchors":
        network = pcdet.SingleHead(4, GRID, CLASSES, ANCHOR_BACKBONE_NECK, (16,))
        return UpstreamNet(network, 4, 1 + 6 + 6 * 6 + 6, anchor_settings())
    if name == "openpcdet heads":
        classes = (*CLASSES, SIGN)
        tasks = [[0], [1, 2]]
        network = pcdet.MultiHead(5, GRID, classes, tasks, CENTER_BACKBONE_NECK, (16,), shared=8)
        tensors = 1 + 6 + 6 * 6 + 6 + 2 * (1 + 6 * 8)
        return UpstreamNet(network, 5, tensors, anchor_settings(classes))
    if name == "openpcdet centers":
        network = pcdet.CenterPoint(5, DYNAMIC, TASKS, CENTER_BACKBONE_NECK, (16, 16), shared=8)
        return UpstreamNet(network, 5, 1 + 12 + 6 * 6 + 7 + 2 * 6 * 9, UNCAPPED)
    if name == "openpcdet centers, hard":
        network = pcdet.CenterPoint(
            4, GRID, TASKS, CENTER_BACKBONE_NECK, (16, 8), shared=8, dynamic=False, bias=False
        )
        settings = {**CENTERS, "encoder.pad_semantics": "reference"}
        return UpstreamNet(network, 4, 1 + 12 + 6 * 6 + 6 + 2 * 6 * 8, settings)
    if name == "openpcdet centers, no velocity":
        network = pcdet.CenterPoint(
            5, DYNAMIC, TASKS, CENTER_BACKBONE_NECK, (16, 16), shared=8, velocity=False
        )
        return UpstreamNet(network, 5, 1 + 12 + 6 * 6 + 7 + 2 * 5 * 9, UNCAPPED)
    if name == "mmdet3d anchors":
        network = mmdet.VoxelNet(4, GRID, CLASSES, ANCHOR_BACKBONE_NECK, (16,))
        return UpstreamNet(network, 4, 6 + 6 * 6 + 6, anchor_settings())
    if name == "mmdet3d anchors, old":
        network = mmdet.VoxelNet(
            4, GRID, CLASSES, ANCHOR_BACKBONE_NECK, (16,), aligned=False, legacy=False, axes=2
        )
        settings = anchor_settings(**{"encoder.legacy": False, "head.grid": "ends"})
        return UpstreamNet(network, 4, 6 + 6 * 6 + 6, settings)
    if name == "mmdet3d centers, circles":
        rules = CenterRules(nms=(4.0, 0.85), circle=True)
        network = mmdet.CenterPoint(5, GRID, TASKS, CONV_BACKBONE_NECK, (16,), rules, shared=8)
        more = {"detections.mode": "circle", "detections.nms": [4.0, 0.85]}
        return UpstreamNet(network, 5, 6 + 6 * 6 + 6 + 2 * 6 * 8, {**CENTERS, **more})
    if name == "mmdet3d_0 anchors":
        network = mmdet.VoxelNet(
            4,
            GRID,
            wide(CLASSES),
            ANCHOR_BACKBONE_NECK,
            (16,),
            mmdet.Rules(dir_offset=0.0, dir_limit=1.0),
            aligned=False,
            area=(0.0, -8.0, 18.0, 8.0),
            clockwise=True,
        )
        more = {"head.grid": "ends", "head.area": [0.0, -8.0, 18.0, 8.0]}
        return UpstreamNet(
            network, 4, 6 + 6 * 6 + 6, anchor_settings(wide(CLASSES), **more), "0.6.0"
        )
    if name == "mmdet3d_0 centers":
        network = mmdet.CenterPoint(
            5, GRID, TASKS, CONV_BACKBONE_NECK, (16,), shared=8, clockwise=True
        )
        return UpstreamNet(network, 5, 6 + 6 * 6 + 6 + 2 * 6 * 8, CENTERS, "0.17.3")
    if name == "mmdet3d centers":
        network = mmdet.CenterPoint(5, GRID, TASKS, CONV_BACKBONE_NECK, (16,), shared=8)
        return UpstreamNet(network, 5, 6 + 6 * 6 + 6 + 2 * 6 * 8, CENTERS)
    if name == "zhulf0804":
        network = pointpillars_zhulf0804.PointPillars(
            4, GRID, wide(CLASSES), ANCHOR_BACKBONE_NECK, (16,)
        )
        return UpstreamNet(network, 4, 6 + 6 * 6 + 6, anchor_settings(wide(CLASSES)))
    network = centerpoint_det3d.PointPillars(5, GRID, TASKS, CONV_BACKBONE_NECK, (16, 16), shared=8)
    return UpstreamNet(network, 5, 12 + 6 * 6 + 7 + 2 * 6 * 9, CENTERS)


SMALL = (
    "openpcdet anchors",
    "openpcdet heads",
    "openpcdet centers",
    "openpcdet centers, hard",
    "openpcdet centers, no velocity",
    "mmdet3d anchors",
    "mmdet3d anchors, old",
    "mmdet3d centers",
    "mmdet3d centers, circles",
    "mmdet3d_0 anchors",
    "mmdet3d_0 centers",
    "zhulf0804",
    "det3d",
)


def small(name: str, weights: bool = True) -> UpstreamNet:
    torch.manual_seed(0)
    upstream = _small(name)
    if weights:
        with_weights(upstream.network, small_points(upstream.columns))
    return upstream


# -------------------------------------------------------------------------------- as published

KITTI = Grid((0.16, 0.16, 4.0), (0.0, -39.68, -3.0, 69.12, 39.68, 1.0), 32, 40_000)
NUSCENES = Grid((0.2, 0.2, 8.0), (-51.2, -51.2, -5.0, 51.2, 51.2, 3.0), 20, 30_000)
CAR = AnchorClass("Car", (3.9, 1.6, 1.56), -1.78)
PEDESTRIAN = AnchorClass("Pedestrian", (0.8, 0.6, 1.73), -0.6)
CYCLIST = AnchorClass("Cyclist", (1.76, 0.6, 1.73), -0.6)
# Sizes as w, l, h.
WIDE = (
    AnchorClass("Pedestrian", (0.6, 0.8, 1.73), -0.6),
    AnchorClass("Cyclist", (0.6, 1.76, 1.73), -0.6),
    AnchorClass("Car", (1.6, 3.9, 1.56), -1.78),
)
NUSCENES_TASKS = (1, 2, 2, 1, 2, 2)
HEADS = [[0], [1, 2], [3, 4], [5], [6, 7], [8, 9]]


def _published(name: str) -> UpstreamNet:
    pcdet, mmdet = pointpillars_openpcdet, pointpillars_mmdet3d
    if name == "openpcdet KITTI":
        return UpstreamNet(pcdet.SingleHead(4, KITTI, (CAR, PEDESTRIAN, CYCLIST)), 4, 127, {})
    if name == "openpcdet nuScenes multihead":
        table = published.NUSCENES_ANCHORS.items()
        classes = [AnchorClass(key, size, bottom) for key, (size, bottom) in table]
        return UpstreamNet(pcdet.MultiHead(5, NUSCENES, classes, HEADS), 5, 421, {})
    if name == "openpcdet nuScenes centers":
        grid = replace(NUSCENES, max_points=0, max_pillars=0)
        return UpstreamNet(pcdet.CenterPoint(5, grid, NUSCENES_TASKS), 5, 458, {})
    if name == "mmdet3d KITTI":
        return UpstreamNet(mmdet.VoxelNet(4, KITTI, (PEDESTRIAN, CYCLIST, CAR)), 4, 126, {})
    if name == "mmdet3d nuScenes centers":
        grid = replace(NUSCENES, max_pillars=40_000)
        return UpstreamNet(mmdet.CenterPoint(5, grid, NUSCENES_TASKS), 5, 414, {})
    if name == "zhulf0804 KITTI":
        return UpstreamNet(pointpillars_zhulf0804.PointPillars(4, KITTI, WIDE), 4, 126, {})
    grid = replace(NUSCENES, max_pillars=60_000)
    return UpstreamNet(centerpoint_det3d.PointPillars(5, grid, NUSCENES_TASKS), 5, 457, {})


PUBLISHED = (
    "openpcdet KITTI",
    "openpcdet nuScenes multihead",
    "openpcdet nuScenes centers",
    "mmdet3d KITTI",
    "mmdet3d nuScenes centers",
    "zhulf0804 KITTI",
    "det3d nuScenes centers",
)


def as_published(name: str) -> UpstreamNet:
    torch.manual_seed(0)
    return _published(name)
