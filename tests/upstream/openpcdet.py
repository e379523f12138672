# SPDX-License-Identifier: Apache-2.0
"""The pillar detectors of open-mmlab/OpenPCDet, rewritten in plain torch from their published
behavior: same parameters by the same names, boxes in its convention (x, y, z of the center, l, w,
h, counter-clockwise yaw (, vx, vy)), labels from 0 in the order of the class names.
"""

import torch
from torch import nn

from .boxes import ROTATIONS, AnchorRules, anchors, decoded, joined, selected
from .heads import AnchorNet, CenterNet
from .pillars import NUSCENES_BACKBONE_NECK, BackboneNeck, PillarNet, conv3x3
from .voxels import Norm, PlaneConv, Relu, Voxels, plane_of

NAMES = ("vfe", "backbone_2d", "backbone_2d", "dense_head")
MULTI = AnchorRules(iou=0.2, pre=1000, post=83)


class SingleHead(AnchorNet):
    """PointPillar with AnchorHeadSingle."""

    NAMES, OPENPCDET = NAMES, True

    def detect(self, points):
        boxes, scores = self.candidates(points)
        return selected(boxes, *scores.max(1), self.rules)


class Branches(nn.Module):
    """A head of the multi-head net: classes and codes from small branches of 3x3 convolutions."""

    PARTS = (("reg", 2), ("height", 1), ("size", 3), ("angle", 2), ("velo", 2))

    def __init__(self, channels, per_cell, labels, width):
        super().__init__()
        self.register_buffer("head_label_indices", torch.tensor(labels) + 1)

        def branch(out):
            conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            last = nn.Conv2d(width, out, 3, padding=1)
            return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU(), last)

        self.conv_cls = branch(per_cell * len(labels))
        self.conv_box = nn.ModuleDict({f"conv_{n}": branch(per_cell * c) for n, c in self.PARTS})

    def codes(self, seen):
        # Branch after branch along the channels; what follows reads ten of these channels for an
        # anchor wherever the branches end. Trained so, it has to be read so.
        return torch.cat([self.conv_box[f"conv_{name}"](seen) for name, _ in self.PARTS], 1)


class MultiHead(PillarNet):
    """PointPillar with AnchorHeadMulti. heads: indices of the classes that each head takes."""

    NAMES, OPENPCDET = NAMES, True

    def __init__(
        self,
        columns,
        grid,
        classes,
        heads,
        backbone_neck=NUSCENES_BACKBONE_NECK,
        filters=(64,),
        rules=MULTI,
        shared=64,
        aligned=False,
    ):
        super().__init__(columns, grid, backbone_neck, filters)
        self.classes, self.heads, self.rules = tuple(classes), heads, rules
        self.aligned = aligned
        self.dense_head.shared_conv = nn.Sequential(*conv3x3(self.channels, shared))
        self.dense_head.rpn_heads = nn.ModuleList(
            Branches(shared, len(labels) * len(ROTATIONS), labels, shared) for labels in heads
        )

    def maps(self, points):
        seen = self.dense_head.shared_conv(self.features(points))
        heads = self.dense_head.rpn_heads
        return [[head.conv_cls(seen) for head in heads], [head.codes(seen) for head in heads], []]

    def detect(self, points):
        cls, box, _ = self.maps(points)
        parts = []
        for at, labels in enumerate(self.heads):
            classes = [self.classes[label] for label in labels]
            per_cell, size = len(labels) * len(ROTATIONS), cls[at].shape[2:]
            cells = anchors(self.grid.area, size, classes, self.aligned).flatten(0, -2)
            codes, scores = (  # (y, x, anchor), columns
                image[0].reshape(per_cell, -1, *size).permute(2, 3, 0, 1).flatten(0, 2)
                for image in (box[at], cls[at].sigmoid())
            )
            boxes = decoded(codes, cells)
            for column, label in enumerate(labels):
                own = torch.full((len(boxes),), label)
                parts.append(selected(boxes, scores[:, column], own, self.rules))
        return joined(parts, 9)


class Second(Voxels, SingleHead):
    NAMES = ("backbone_3d", *NAMES[1:])


class CenterPoint(CenterNet):
    """CenterPoint with CenterHead over pillars."""

    NAMES, OPENPCDET, DYNAMIC, FILTERS = NAMES, True, True, (64, 64)
    KINDS = ("hm", "center", "center_z", "dim", "rot", "vel")
    DEFAULT_BACKBONE_NECK = NUSCENES_BACKBONE_NECK

    def layer(self, channels, width, bias):
        conv = nn.Conv2d(channels, width, 3, padding=1, bias=bias)
        return nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU())


class CenterPointVoxel(Voxels, CenterPoint):
    NAMES = Second.NAMES


class RowsOnly(BackboneNeck):
    """None of either."""

    stride = property(lambda self: self.down)


class VoxelNeXt(CenterPointVoxel):
    """filters: Sizes, of which some levels are joined. size: cells of the kernels in branches."""

    def __init__(self, columns, grid, tasks, filters, size=1, shared=64, **more):
        self.size, self.joined, self.last = size, filters.joined, filters.last
        down = 2 ** (len(filters.widths) - filters.joined)
        behind = RowsOnly((), (), (), (), (), down=down)
        super().__init__(columns, grid, tasks, behind, filters, shared=shared, **more)
        conv = PlaneConv(filters.widths[-1], self.last, 3, (0, 1, 1), bias=False)
        self.backbone_3d.conv_out = nn.Sequential(conv, Norm(self.last), Relu())
        self.backbone_3d.shared_conv = self.dense_head.shared_conv
        del self.dense_head.shared_conv

    def layer(self, channels, width, bias):
        """Without channels behind the last layer, the shared one."""
        conv = PlaneConv(channels or self.last, width, self.size if channels else 3, bias=bias)
        return nn.Sequential(conv, Norm(width, 1e-5), Relu())

    def branch(self, shared, out, bias):
        return nn.Sequential(self.layer(shared, shared, bias), PlaneConv(shared, out, 1))

    def maps(self, points):
        """Heat is -inf where no row is."""
        levels = [self.means(points)]
        for name, part in self.backbone_3d.named_children():
            rows = levels[-self.joined :]
            levels.append(part(plane_of(rows) if name == "conv_out" else rows[-1]))
        return [
            [self.placed(task[kind](levels[-1]), kind) for task in self.tasks if kind in task]
            for kind in self.KINDS
        ]

    def placed(self, rows, kind):
        empty = -torch.inf if kind == "hm" else 0.0
        grid = torch.full((1, rows.features.size(1), *rows.shape[1:]), empty)
        grid[0, :, rows.cells[:, 1], rows.cells[:, 2]] = rows.features.T
        return grid
