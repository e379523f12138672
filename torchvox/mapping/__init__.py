# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps as modules."""

from torchvox.mapping.map import PRESETS, MapVoxels, NdtModel, OccupancyMap, SensorModel
from torchvox.mapping.regions import MapRegions
from torchvox.mapping.store import RegionStore

__all__ = [
    "PRESETS",
    "MapRegions",
    "MapVoxels",
    "NdtModel",
    "OccupancyMap",
    "RegionStore",
    "SensorModel",
]
