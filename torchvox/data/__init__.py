# SPDX-License-Identifier: Apache-2.0
"""Clouds to work with: generated street scans, shapes and rooms, and batches of clouds."""

from torchvox.data.collate import collate_points
from torchvox.data.drive import DriveScan, generate_drive
from torchvox.data.lidar import World, generate_world
from torchvox.data.occupancy import Camera, OccupancyLabels, occupancy_labels, write_labels
from torchvox.data.rooms import Rooms, generate_rooms
from torchvox.data.scene import generate_scan
from torchvox.data.shapes import Shapes, generate_shapes

__all__ = [
    "Camera",
    "DriveScan",
    "OccupancyLabels",
    "Rooms",
    "Shapes",
    "World",
    "collate_points",
    "generate_drive",
    "generate_rooms",
    "generate_scan",
    "generate_shapes",
    "generate_world",
    "occupancy_labels",
    "write_labels",
]
