# SPDX-License-Identifier: Apache-2.0
"""Generated streets: labelled lidar scans in batches, and a drive, on any device."""

from torchvox.data.worlds.street.drive import DriveScan, generate_drive, generate_scan
from torchvox.data.worlds.street.objects import CLASSES, SURFACES
from torchvox.data.worlds.street.sensors import SENSORS, VIEWS, Sensor
from torchvox.data.worlds.street.world import World, WorldSurfaces, generate_world

__all__ = [
    "CLASSES",
    "SENSORS",
    "SURFACES",
    "VIEWS",
    "DriveScan",
    "Sensor",
    "World",
    "WorldSurfaces",
]
__all__ += ["generate_drive", "generate_scan", "generate_world"]
