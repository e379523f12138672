# SPDX-License-Identifier: Apache-2.0
"""Networks over the ops; they need torch and NumPy alone."""

from torchvox.models.pointnet2 import (
    PointNet2Classifier,
    PointNet2PartSegmenter,
    PointNet2Segmenter,
)

__all__ = ["PointNet2Classifier", "PointNet2PartSegmenter", "PointNet2Segmenter"]
