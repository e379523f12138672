# SPDX-License-Identifier: Apache-2.0
"""Scriptable modules over the ops."""

from torchvox.nn.bev import BEVMaxHeight
from torchvox.nn.feature_propagation import FeaturePropagation
from torchvox.nn.pillars import PillarFeatureNet
from torchvox.nn.rays import RayVisibility
from torchvox.nn.sampling import FurthestPointSample
from torchvox.nn.sensor import SensorInput
from torchvox.nn.set_abstraction import SetAbstraction
from torchvox.nn.shared_mlp import SharedMLP
from torchvox.nn.sparse import (
    SparseBatchNorm,
    SparseReLU,
    SparseSequential,
    SparseTables,
    SparseTensor,
    ToDense,
    sparse_tensor,
    with_features,
)
from torchvox.nn.sparse_conv import (
    SparseConv2d,
    SparseConv3d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseMaxPool3d,
    SubMConv2d,
    SubMConv3d,
)
from torchvox.nn.voxel import Voxelize

__all__ = [
    "BEVMaxHeight", "FeaturePropagation", "FurthestPointSample", "PillarFeatureNet",
    "RayVisibility", "SensorInput", "SetAbstraction", "SharedMLP", "SparseBatchNorm",
    "SparseConv2d", "SparseConv3d", "SparseInverseConv2d", "SparseInverseConv3d",
    "SparseMaxPool3d", "SparseReLU", "SparseSequential", "SparseTables", "SparseTensor",
    "SubMConv2d", "SubMConv3d", "ToDense", "Voxelize", "sparse_tensor", "with_features",
]  # fmt: skip
