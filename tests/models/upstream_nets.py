# SPDX-License-Identifier: Apache-2.0
"""Pillar detectors of other programs, small and as published, with weights that find things."""

from dataclasses import dataclass, replace

import torch
from nets import calibrated
from torch import nn
from upstream import det3d
from upstream import mmdet3d as mmdet
from upstream import openpcdet as pcdet
from upstream.boxes import AnchorClass
from upstream.heads import CenterRules
from upstream.pillars import BackboneNeck, Grid
from upstream.voxels import PlaneConv, Sizes

from torchvox.models.importing import published


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


@torch.no_grad()
def with_weights(network, points):
    """The network in evaluation, batch norms with the statistics of the points, boxes of moderate
    size, few scores above the threshold."""
    for name, conv in network.named_modules():
        # Those before a batch norm are changed too, which undoes it.
        if isinstance(conv, (nn.Conv2d, PlaneConv)) and conv.bias is not None:
            conv.bias -= 2.5 * bool(SCORES & set(name.split(".")))
            conv.weight *= 0.3 if BOXES & set(name.split(".")) else 1.0
    return calibrated(network, points, run=network.maps)


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


def entries(classes):
    return [{"size": list(one.size), "bottom": one.z} for one in classes]


def anchor_settings(classes=CLASSES, **more):
    names = [one.name for one in classes]
    return {**PLACE, "classes": names, "head.anchors": entries(classes), **more}


def wide(classes):
    """Sizes as w, l, h."""
    return tuple(replace(one, size=(one.size[1], one.size[0], one.size[2])) for one in classes)


def small_points(columns, count=3000):
    """More than the caps hold, some out of range, one not finite."""
    generator = torch.Generator().manual_seed(2)
    points = torch.rand(count, columns, generator=generator)
    points[:, :3] = points[:, :3] * torch.tensor([18.0, 18.0, 4.4]) - torch.tensor([1.0, 9.0, 3.2])
    points[: count // 2, :2] = points[: count // 2, :2] * 0.3 + torch.tensor([4.0, 1.0])
    points[7, 1] = float("nan")
    return points


ANCHORS = {"grid": GRID, "backbone_neck": ANCHOR_BACKBONE_NECK, "filters": (16,)}
HEATS = {"tasks": TASKS, "backbone_neck": CENTER_BACKBONE_NECK, "shared": 8}
CONV_HEATS = {**HEATS, "grid": GRID, "backbone_neck": CONV_BACKBONE_NECK, "filters": (16,)}
TRUNK = 6 + 6 * 6  # tensors of the pillar net, of backbone and neck
AREA = (0.0, -8.0, 18.0, 8.0)
ENDS = {"head.grid": "ends"}
CIRCLES = {"detections.mode": "circle", "detections.nms": [4.0, 0.85]}
LIMITED = replace(mmdet.VoxelNet.RULES, dir_offset=0.0, dir_limit=1.0)
# Class, columns, arguments; how many tensors, settings and perhaps the release.
SMALL = {
    "openpcdet anchors": (
        *(pcdet.SingleHead, 4, {**ANCHORS, "classes": CLASSES}),
        *(1 + TRUNK + 6, anchor_settings()),
    ),
    "openpcdet heads": (
        *(pcdet.MultiHead, 5),
        {
            **{**ANCHORS, "classes": (*CLASSES, SIGN), "heads": [[0], [1, 2]], "shared": 8},
            "backbone_neck": CENTER_BACKBONE_NECK,
        },
        *(1 + TRUNK + 6 + 2 * (1 + 6 * 8), anchor_settings((*CLASSES, SIGN))),
    ),
    "openpcdet centers": (
        *(pcdet.CenterPoint, 5, {**HEATS, "grid": DYNAMIC, "filters": (16, 16)}),
        *(7 + TRUNK + 7 + 2 * 6 * 9, UNCAPPED),
    ),
    "openpcdet centers, hard": (
        *(pcdet.CenterPoint, 4),
        {**HEATS, "grid": GRID, "filters": (16, 8), "dynamic": False, "bias": False,
         "velocity": False},
        *(7 + TRUNK + 6 + 2 * 5 * 8, {**CENTERS, "encoder.pad_semantics": "reference"}),
    ),
    "mmdet3d anchors": (
        *(mmdet.VoxelNet, 4, {**ANCHORS, "classes": CLASSES}),
        *(TRUNK + 6, anchor_settings()),
    ),
    "mmdet3d anchors, old": (
        *(mmdet.VoxelNet, 4),
        {**ANCHORS, "classes": CLASSES, "aligned": False, "legacy": False, "axes": 2},
        *(TRUNK + 6, anchor_settings(**ENDS, **{"encoder.legacy": False})),
    ),
    "mmdet3d centers": (mmdet.CenterPoint, 5, CONV_HEATS, TRUNK + 6 + 2 * 6 * 8, CENTERS),
    "mmdet3d_0 anchors": (
        *(mmdet.VoxelNet, 4),
        {
            **{**ANCHORS, "classes": wide(CLASSES), "aligned": False, "area": AREA},
            **{"rules": LIMITED, "clockwise": True},
        },
        *(TRUNK + 6, anchor_settings(wide(CLASSES), **ENDS, **{"head.area": list(AREA)}), "0.6.0"),
    ),
    "mmdet3d_0 centers": (
        *(mmdet.CenterPoint, 5),
        {**CONV_HEATS, "clockwise": True, "rules": CenterRules(nms=(4.0, 0.85), circle=True)},
        *(TRUNK + 6 + 2 * 6 * 8, {**CENTERS, **CIRCLES}, "0.17.3"),
    ),
}  # fmt: skip


VOXEL_GRID = Grid((0.25, 0.25, 0.2), GRID.point_cloud_range, 3, 2000)
VOXEL_PLACE = {
    "point_cloud_range": list(GRID.point_cloud_range),
    "voxel_size": list(VOXEL_GRID.voxel_size),
    "max_points": 3,
    "max_voxels": [1000, 2000],
}
VOXEL_ANCHORS = {k: v for k, v in anchor_settings(**VOXEL_PLACE).items() if "pillar" not in k}
VOXEL_CENTERS = {**VOXEL_PLACE, "classes": NAMES, "head": CENTERS["head"]}
SMALL_NECK = BackboneNeck((1, 1), (1, 2), (8, 16), (1, 2), (16, 16), down=4)
PLAIN, RESIDUAL = Sizes((1, 2, 1), (6, 8, 10)), Sizes((1, 2, 1), (6, 8, 10), blocks=True)
JOINED = Sizes((1, 1, 2, 1), (6, 8, 10, 10), blocks=True, bias=True, joined=2)
ON_VOXELS = {"grid": VOXEL_GRID, "backbone_neck": SMALL_NECK}
HEATS_ON_VOXELS = {**ON_VOXELS, "tasks": TASKS, "shared": 8}
CONV_NECK = {"backbone_neck": replace(SMALL_NECK, conv_at_one=True)}
PLAIN_TENSORS, RESIDUAL_TENSORS = 6 * 8 + 6 * 6, 6 * (4 + 2 * 4) + 6 * 6
SMALL |= {
    "openpcdet voxels": (
        *(pcdet.Second, 4, {**ON_VOXELS, "classes": CLASSES, "filters": PLAIN}),
        *(1 + PLAIN_TENSORS + 6, VOXEL_ANCHORS),
    ),
    "openpcdet voxels, spconv 1": (
        *(pcdet.Second, 4),
        {**ON_VOXELS, "classes": CLASSES, "filters": replace(PLAIN, old=True)},
        *(1 + PLAIN_TENSORS + 6, VOXEL_ANCHORS),
    ),
    "openpcdet voxel centers": (
        *(pcdet.CenterPointVoxel, 5),
        {**HEATS_ON_VOXELS, "filters": replace(RESIDUAL, bias=True)},
        *(1 + RESIDUAL_TENSORS + 8 + 7 + 2 * 6 * 9, VOXEL_CENTERS),
    ),
    "det3d voxel centers": (
        *(det3d.CenterPointVoxel, 5),
        {**HEATS_ON_VOXELS, **CONV_NECK, "filters": replace(RESIDUAL, bias=True, old=True),
         "clockwise": True},
        *(RESIDUAL_TENSORS + 8 + 7 + 2 * 6 * 9, VOXEL_CENTERS),
    ),
    "openpcdet rows": (
        *(pcdet.VoxelNeXt, 5),
        {"grid": VOXEL_GRID, "tasks": TASKS, "shared": 8, "filters": JOINED},
        *(216, {**VOXEL_CENTERS, "sparse.joined": 2}),
    ),
    "mmdet3d voxels": (
        *(mmdet.Second, 4),
        {**ON_VOXELS, "classes": CLASSES, "filters": replace(PLAIN, old=True)},
        *(PLAIN_TENSORS + 6, VOXEL_ANCHORS),
    ),
    "mmdet3d voxel centers": (
        *(mmdet.CenterPointVoxel, 5, {**HEATS_ON_VOXELS, **CONV_NECK, "filters": RESIDUAL}),
        *(RESIDUAL_TENSORS + 6 + 2 * 6 * 8, VOXEL_CENTERS),
    ),
}  # fmt: skip


def small(name, weights=True):
    torch.manual_seed(0)
    kind, columns, arguments, *rest = SMALL[name]
    upstream = UpstreamNet(kind(columns, **arguments), columns, *rest)
    if weights:
        with_weights(upstream.network, small_points(upstream.columns))
    return upstream


# -------------------------------------------------------------------------------- as published

KITTI = Grid((0.16, 0.16, 4.0), (0.0, -39.68, -3.0, 69.12, 39.68, 1.0), 32, 40_000)
NUSCENES = Grid((0.2, 0.2, 8.0), (-51.2, -51.2, -5.0, 51.2, 51.2, 3.0), 20, 30_000)
CAR = AnchorClass("Car", (3.9, 1.6, 1.56), -1.78)
PEDESTRIAN = AnchorClass("Pedestrian", (0.8, 0.6, 1.73), -0.6)
CYCLIST = AnchorClass("Cyclist", (1.76, 0.6, 1.73), -0.6)
NUSCENES_TASKS = (1, 2, 2, 1, 2, 2)
NUSCENES_CLASSES = [AnchorClass(k, *value) for k, value in published.NUSCENES_ANCHORS.items()]
HEADS = [[0], [1, 2], [3, 4], [5], [6, 7], [8, 9]]


def capped(pillars, points=NUSCENES.max_points):
    return replace(NUSCENES, max_pillars=pillars, max_points=points)


DETECTORS = {
    "openpcdet KITTI": (pcdet.SingleHead, 4, 127, KITTI, (CAR, PEDESTRIAN, CYCLIST)),
    "openpcdet nuScenes multihead": (pcdet.MultiHead, 5, 421, NUSCENES, NUSCENES_CLASSES, HEADS),
    "openpcdet nuScenes centers": (pcdet.CenterPoint, 5, 458, capped(0, 0), NUSCENES_TASKS),
    "mmdet3d KITTI": (mmdet.VoxelNet, 4, 126, KITTI, (PEDESTRIAN, CYCLIST, CAR)),
    "mmdet3d nuScenes centers": (mmdet.CenterPoint, 5, 414, capped(40_000), NUSCENES_TASKS),
}
PUBLISHED = tuple(DETECTORS)
NUSCENES_VOXELS = Grid((0.075, 0.075, 0.2), (-54.0, -54.0, -5.0, 54.0, 54.0, 3.0))
VOXEL_NECK = BackboneNeck((5, 5), (1, 2), (128, 256), (1, 2), (256, 256), down=8)
DETECTORS |= {
    "openpcdet KITTI voxels": (
        *(pcdet.Second, 4, 163, Grid((0.05, 0.05, 0.1), (0.0, -40.0, -3.0, 70.4, 40.0, 1.0))),
        *((CAR, PEDESTRIAN, CYCLIST), VOXEL_NECK, Sizes((1, 2, 2, 2), (16, 32, 64, 64), last=128)),
    ),
    "openpcdet nuScenes voxels": (
        *(pcdet.CenterPointVoxel, 5, 558, NUSCENES_VOXELS, NUSCENES_TASKS, VOXEL_NECK),
        Sizes((2, 2, 2, 2), (16, 32, 64, 128), blocks=True, bias=True, last=128),
    ),
    "openpcdet nuScenes rows": (
        *(pcdet.VoxelNeXt, 5, 542, NUSCENES_VOXELS, NUSCENES_TASKS),
        replace(JOINED, layers=[2] * 6, widths=(16, 32, 64, 128, 128, 128), last=128, joined=3),
        *(1, 128),
    ),
}


def as_published(name):
    torch.manual_seed(0)
    kind, columns, tensors, *arguments = DETECTORS[name]
    settings = {"voxel_size": [0.075, 0.075, 0.2]} if name == "openpcdet nuScenes voxels" else {}
    return UpstreamNet(kind(columns, *arguments), columns, tensors, settings)
