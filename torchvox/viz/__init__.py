# SPDX-License-Identifier: Apache-2.0
"""Pictures of clouds, voxels, views from above and predictions, by matplotlib (extra: viz)."""

from torchvox.viz.learning import Panel, clouds_picture, confusion_picture
from torchvox.viz.pictures import (
    bev_picture,
    density_picture,
    height_picture,
    intensity_picture,
    overview_picture,
    samples_picture,
)
from torchvox.viz.style import save

__all__ = [
    "Panel",
    "bev_picture",
    "clouds_picture",
    "confusion_picture",
    "density_picture",
    "height_picture",
    "intensity_picture",
    "overview_picture",
    "samples_picture",
    "save",
]
