# SPDX-License-Identifier: Apache-2.0
"""Networks over the ops, their checkpoints and programs; they need torch and NumPy alone."""

from torchvox.models.checkpoints import CheckpointError, load, save
from torchvox.models.conventions import PRESETS, Conventions, Level
from torchvox.models.detection import (
    CenterPointPillars,
    CenterPointPillarsConfig,
    CenterPointVoxel,
    CenterPointVoxelConfig,
    PointPillars,
    PointPillarsConfig,
    Second,
    SecondConfig,
    VoxelNeXt,
    VoxelNeXtConfig,
    measure_rows,
)
from torchvox.models.detection.running import Box, Boxes, Detector
from torchvox.models.export import export_model, export_program
from torchvox.models.fuse import fuse_batch_norms, merge_heads
from torchvox.models.importing import import_checkpoint, parity
from torchvox.models.minkunet import MinkUNet
from torchvox.models.pointnet2 import (
    PointNet2Classifier,
    PointNet2PartSegmenter,
    PointNet2Segmenter,
)
from torchvox.models.registry import ModelWeights, get_model, get_model_weights, list_models

__all__ = [
    "PRESETS", "Box", "Boxes", "CenterPointPillars", "CenterPointPillarsConfig", "CenterPointVoxel",
    "CenterPointVoxelConfig", "CheckpointError", "Conventions", "Detector", "Level", "MinkUNet",
    "ModelWeights", "PointNet2Classifier", "PointNet2PartSegmenter", "PointNet2Segmenter",
    "PointPillars", "PointPillarsConfig", "Second", "SecondConfig", "VoxelNeXt", "VoxelNeXtConfig",
    "export_model", "export_program", "fuse_batch_norms", "get_model", "get_model_weights",
    "import_checkpoint", "list_models", "load", "measure_rows", "merge_heads", "parity", "save",
]  # fmt: skip
