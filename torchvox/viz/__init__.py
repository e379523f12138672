# SPDX-License-Identifier: Apache-2.0
"""Pictures of clouds, voxels and bird's-eye views, drawn with matplotlib (extra: viz)."""

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
    "bev_picture",
    "density_picture",
    "height_picture",
    "intensity_picture",
    "overview_picture",
    "samples_picture",
    "save",
]
