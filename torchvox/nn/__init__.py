# SPDX-License-Identifier: Apache-2.0
"""Scriptable modules over the ops."""

from torchvox.nn.bev import BEVMaxHeight
from torchvox.nn.sampling import FurthestPointSample
from torchvox.nn.voxel import Voxelize

__all__ = ["BEVMaxHeight", "FurthestPointSample", "Voxelize"]
