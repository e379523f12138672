# SPDX-License-Identifier: Apache-2.0
"""Pictures of clouds, voxels, views from above, predictions and boxes (they need the extra viz),
and pages of clouds and maps."""

from torchvox.viz.boxes import boxes_picture
from torchvox.viz.comparison import comparison_picture
from torchvox.viz.map_page import map_page
from torchvox.viz.pictures import (
    bev_picture,
    density_picture,
    height_picture,
    intensity_picture,
    map_picture,
    overview_picture,
    raster_picture,
    samples_picture,
)
from torchvox.viz.predictions import Panel, clouds_picture, confusion_picture, shares_picture
from torchvox.viz.style import save
from torchvox.viz.viewer import Pane, Scale, viewer_page

__all__ = [
    "Pane",
    "Panel",
    "Scale",
    "bev_picture",
    "boxes_picture",
    "clouds_picture",
    "comparison_picture",
    "confusion_picture",
    "density_picture",
    "height_picture",
    "intensity_picture",
    "map_page",
    "map_picture",
    "overview_picture",
    "raster_picture",
    "samples_picture",
    "save",
    "shares_picture",
    "viewer_page",
]
