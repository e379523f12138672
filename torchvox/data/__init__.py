# SPDX-License-Identifier: Apache-2.0
"""Clouds to work with: generated streets, shapes and rooms, and batches of clouds."""

import importlib
from typing import TYPE_CHECKING, Any

from torchvox.data.collate import collate_points
from torchvox.data.labels import Camera, OccupancyLabels, occupancy_labels, write_labels
from torchvox.data.worlds.rooms import Rooms, generate_rooms
from torchvox.data.worlds.shapes import Shapes, generate_shapes
from torchvox.data.worlds.street.drive import DriveScan, generate_drive, generate_scan
from torchvox.data.worlds.street.world import World, WorldSurfaces, generate_world

if TYPE_CHECKING:
    from torchvox.data.label_scenes import LabelOptions
    from torchvox.data.label_stages import LabelScene, scene_rows

__all__ = ["Camera", "DriveScan", "OccupancyLabels", "Rooms", "Shapes", "World", "WorldSurfaces"]
__all__ += [
    "collate_points",
    "generate_drive",
    "generate_rooms",
    "generate_scan",
    "generate_shapes",
]
__all__ += ["generate_world", "occupancy_labels", "write_labels"]
__all__ += ["LabelOptions", "LabelScene", "scene_rows"]


def __getattr__(name: str) -> Any:
    """What stands on torchvox.mapping and torchvox.filter, which import this package."""
    if name in ("LabelOptions", "LabelScene", "scene_rows"):
        return getattr(importlib.import_module("torchvox.data.label_stages"), name)
    raise AttributeError(f"module 'torchvox.data' has no attribute '{name}'")
