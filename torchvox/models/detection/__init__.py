# SPDX-License-Identifier: Apache-2.0
"""Detectors: raw points to boxes."""

from torchvox.models.detection.config import CenterPointPillarsConfig, PointPillarsConfig
from torchvox.models.detection.detector import CenterPointPillars, PillarDetector, PointPillars
from torchvox.models.detection.files import detector, detector_names

__all__ = [
    "CenterPointPillars", "CenterPointPillarsConfig", "PillarDetector", "PointPillars",
    "PointPillarsConfig", "detector", "detector_names",
]  # fmt: skip
