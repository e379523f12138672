# SPDX-License-Identifier: Apache-2.0
"""CenterPoint over voxels of tianweiy/CenterPoint, rewritten in plain torch from its published
behavior: same parameters by the same names, boxes in its convention (x, y, z of the center, w, l,
h, vx, vy, angle clockwise from -y)."""

from functools import partial

import torch
from torch import nn

from .heads import CenterNet
from .openpcdet import CenterPoint
from .voxels import Voxels, pcdet_net


class CenterPointVoxel(Voxels, CenterNet):
    NAMES, DET3D = ("backbone", "neck", "neck", "bbox_head"), True
    NET, OUT = staticmethod(partial(pcdet_net, flat=True)), "extra_conv"
    HEADS, KINDS = "tasks", ("hm", "reg", "height", "dim", "rot", "vel")
    SINE_FIRST, BEST_CLASS = True, True
    layer = CenterPoint.layer

    def branch(self, shared, out, bias):
        layers = self.layer(shared, shared, bias)
        return nn.Sequential(*layers, nn.Conv2d(shared, out, 3, padding=1))

    def detect(self, points):
        found = super().detect(points)
        boxes = found.boxes
        found.boxes[:] = torch.cat([boxes[:, :6], boxes[:, 7:], boxes[:, 6:7]], 1)
        return found
