# SPDX-License-Identifier: Apache-2.0
"""The pillar detectors of open-mmlab/mmdetection3d, rewritten in plain torch from their published
behavior: same parameters by the same names, boxes in its convention (x, y of the center, z of the
bottom, l, w, h, counter-clockwise yaw (, vx, vy)); `clockwise` for that of releases before 1.0 (w,
l, h, angle clockwise from -y).
"""

import torch
from torch import nn

from .boxes import PI, AnchorRules, per_class
from .heads import AnchorNet, CenterNet
from .pillars import NUSCENES_CONV_BACKBONE_NECK
from .voxels import Voxels, mmdet_net


class VoxelNet(AnchorNet):
    """The anchor detector of KITTI. axes: of the offset to the pillar center, 2 before release
    0.13."""

    NAMES = ("voxel_encoder", "backbone", "neck", "bbox_head")
    BOX, BOTTOM, ALIGNED, LEGACY = "conv_reg", True, True, True
    RULES = AnchorRules(pre=100, post=50, dir_offset=-PI / 2)

    def detect(self, points):
        # Their order, suppression before the direction, comes to the same: half a turn leaves
        # overlaps as they are.
        return per_class(*self.candidates(points), self.rules, self.clockwise)


class ConvModule(nn.Module):
    """Convolution without bias, batch norm, ReLU."""

    def __init__(self, channels, width):
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class CenterPoint(CenterNet):
    """CenterPoint over pillars, in a detector that could see images too ("pts_")."""

    NAMES = tuple(f"pts_{name}" for name in VoxelNet.NAMES)
    HEADS, KINDS = "task_heads", ("heatmap", "reg", "height", "dim", "rot", "vel")
    BOTTOM, SINE_FIRST = True, True
    DEFAULT_BACKBONE_NECK = NUSCENES_CONV_BACKBONE_NECK

    def layer(self, channels, width, bias):
        return ConvModule(channels, width)


class Second(Voxels, VoxelNet):
    NAMES, NET, ALIGNED = ("middle_encoder", *VoxelNet.NAMES[1:]), staticmethod(mmdet_net), False


class CenterPointVoxel(Voxels, CenterPoint):
    NAMES, NET = tuple(f"pts_{name}" for name in Second.NAMES), staticmethod(mmdet_net)
