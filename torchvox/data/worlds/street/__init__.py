# SPDX-License-Identifier: Apache-2.0
"""The generated world: labelled lidar scans of streets, in batches on any device."""

from torchvox.data.worlds.street.objects import CLASSES
from torchvox.data.worlds.street.sensors import SENSORS, VIEWS, Sensor
from torchvox.data.worlds.street.world import World, generate_world

__all__ = ["CLASSES", "SENSORS", "VIEWS", "Sensor", "World", "generate_world"]
