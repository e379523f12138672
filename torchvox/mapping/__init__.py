# SPDX-License-Identifier: Apache-2.0
"""Occupancy maps as modules, and their files."""

from torchvox.mapping.clean import Evidence, Judgement, Verdict
from torchvox.mapping.contents import MapContents, read_map, write_map
from torchvox.mapping.knots import pose_knots
from torchvox.mapping.map import OccupancyMap
from torchvox.mapping.octomap import read_graph, read_octomap, write_octomap
from torchvox.mapping.regions import MapRegions, MapVoxels
from torchvox.mapping.sensor import PRESETS, NdtModel, SensorModel
from torchvox.mapping.store import RegionStore
from torchvox.mapping.streamed import StreamedMap

__all__ = [
    "PRESETS",
    "Evidence",
    "Judgement",
    "MapContents",
    "MapRegions",
    "MapVoxels",
    "NdtModel",
    "OccupancyMap",
    "RegionStore",
    "SensorModel",
    "StreamedMap",
    "Verdict",
    "pose_knots",
    "read_graph",
    "read_map",
    "read_octomap",
    "write_map",
    "write_octomap",
]
