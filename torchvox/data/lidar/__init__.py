# SPDX-License-Identifier: Apache-2.0
"""The generated world: labelled lidar scans of streets, in batches on any device."""

from torchvox.data.lidar.objects import CLASSES
from torchvox.data.lidar.sensors import SENSORS, VIEWS, Sensor
from torchvox.data.lidar.world import World, generate_world

__all__ = ["CLASSES", "SENSORS", "VIEWS", "Sensor", "World", "generate_world"]
