# SPDX-License-Identifier: Apache-2.0
"""Generated streets: labelled lidar scans in batches, and a drive, on any device."""

from torchvox.data.worlds.street.drive import DriveScan, generate_drive, generate_scan
from torchvox.data.worlds.street.objects import CLASSES
from torchvox.data.worlds.street.sensors import SENSORS, VIEWS, Sensor
from torchvox.data.worlds.street.world import World, generate_world

__all__ = ["CLASSES", "SENSORS", "VIEWS", "DriveScan", "Sensor", "World"]
__all__ += ["generate_drive", "generate_scan", "generate_world"]
