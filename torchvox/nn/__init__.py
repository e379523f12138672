# SPDX-License-Identifier: Apache-2.0
"""Scriptable modules over the ops."""

from torchvox.nn.bev import BEVMaxHeight
from torchvox.nn.feature_propagation import FeaturePropagation
from torchvox.nn.pillars import PillarFeatureNet
from torchvox.nn.rays import RayVisibility
from torchvox.nn.sampling import FurthestPointSample
from torchvox.nn.set_abstraction import SetAbstraction
from torchvox.nn.shared_mlp import SharedMLP
from torchvox.nn.voxel import Voxelize

__all__ = [
    "BEVMaxHeight", "FeaturePropagation", "FurthestPointSample", "PillarFeatureNet",
    "RayVisibility", "SetAbstraction", "SharedMLP", "Voxelize",
]  # fmt: skip
