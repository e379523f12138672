# SPDX-License-Identifier: Apache-2.0
"""Pictures of clouds, voxels, views from above, predictions and boxes; they need torchvox[viz]."""

from torchvox.viz.boxes import boxes_picture
from torchvox.viz.pictures import (
    bev_picture,
    density_picture,
    height_picture,
    intensity_picture,
    overview_picture,
    samples_picture,
)
from torchvox.viz.predictions import Panel, clouds_picture, confusion_picture
from torchvox.viz.style import save

__all__ = [
    "Panel",
    "bev_picture",
    "boxes_picture",
    "clouds_picture",
    "confusion_picture",
    "density_picture",
    "height_picture",
    "intensity_picture",
    "overview_picture",
    "samples_picture",
    "save",
]
