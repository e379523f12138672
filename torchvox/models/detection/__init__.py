# SPDX-License-Identifier: Apache-2.0
"""Detectors: raw points to boxes."""

from torchvox.models.detection.config import (
    CenterPointPillarsConfig,
    CenterPointVoxelConfig,
    PointPillarsConfig,
    SecondConfig,
    VoxelNeXtConfig,
)
from torchvox.models.detection.detector import (
    CenterPointPillars,
    CenterPointVoxel,
    DetectionNet,
    PointPillars,
    Second,
)
from torchvox.models.detection.files import detector, detector_names
from torchvox.models.detection.sparse_backbone import measure_rows
from torchvox.models.detection.voxelnext import VoxelNeXt

__all__ = [
    "CenterPointPillars", "CenterPointPillarsConfig", "CenterPointVoxel", "CenterPointVoxelConfig",
    "DetectionNet", "PointPillars", "PointPillarsConfig", "Second", "SecondConfig", "VoxelNeXt",
    "VoxelNeXtConfig", "detector", "detector_names", "measure_rows",
]  # fmt: skip
