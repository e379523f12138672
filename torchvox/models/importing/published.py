# SPDX-License-Identifier: Apache-2.0
"""Published configurations: what their checkpoints do not contain. Meters, z of lower sides."""

from typing import Any, Dict, List, Mapping, Tuple

Size = Tuple[float, float, float]

KITTI: Dict[str, Any] = {
    "point_cloud_range": [0.0, -39.68, -3.0, 69.12, 39.68, 1.0],
    "pillar_size": [0.16, 0.16, 4.0],
    "max_points": 32,
    "max_pillars": [16_000, 40_000],
    "column_scale": [],
}
NUSCENES: Dict[str, Any] = {
    "point_cloud_range": [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0],
    "pillar_size": [0.2, 0.2, 8.0],
    "max_points": 20,
    "max_pillars": [30_000, 30_000],
    # Intensity arrives as 0..255: divided inside the model, multiplied into the imported weights.
    "column_scale": [1.0, 1.0, 1.0, 1 / 255, 1.0],
}
# max_rows: of the levels of sparse convolutions; not published, see `measure_rows`.
KITTI_VOXELS: Dict[str, Any] = {
    "point_cloud_range": [0.0, -40.0, -3.0, 70.4, 40.0, 1.0],
    "voxel_size": [0.05, 0.05, 0.1],
    "max_points": 5,
    "max_voxels": [16_000, 40_000],
    "column_scale": [],
    "max_rows": [50_000, 32_000, 14_000, 12_000],
}
NUSCENES_VOXELS: Dict[str, Any] = {
    "point_cloud_range": [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0],
    "voxel_size": [0.075, 0.075, 0.2],
    "max_points": 10,
    "max_voxels": [120_000, 160_000],
    "column_scale": NUSCENES["column_scale"],
    "max_rows": [200_000, 100_000, 40_000, 30_000],
}
NUSCENES_ROWS: Dict[str, Any] = {
    **NUSCENES_VOXELS,
    "max_rows": [200_000, 100_000, 40_000, 15_000, 6_000, 30_000],
}

KITTI_ANCHORS: Dict[str, Tuple[Size, float]] = {
    "Car": ((3.9, 1.6, 1.56), -1.78),
    "Pedestrian": ((0.8, 0.6, 1.73), -0.6),
    "Cyclist": ((1.76, 0.6, 1.73), -0.6),
}
OPENPCDET_KITTI = ["Car", "Pedestrian", "Cyclist"]
MMDET3D_KITTI = ["Pedestrian", "Cyclist", "Car"]

NUSCENES_ANCHORS: Dict[str, Tuple[Size, float]] = {
    "car": ((4.63, 1.97, 1.74), -0.95),
    "truck": ((6.93, 2.51, 2.84), -0.6),
    "construction_vehicle": ((6.37, 2.85, 3.19), -0.225),
    "bus": ((10.5, 2.94, 3.47), -0.085),
    "trailer": ((12.29, 2.90, 3.87), 0.115),
    "barrier": ((0.50, 2.53, 0.98), -1.33),
    "motorcycle": ((2.11, 0.77, 1.47), -1.085),
    "bicycle": ((1.70, 0.60, 1.28), -1.18),
    "pedestrian": ((0.73, 0.67, 1.77), -0.935),
    "traffic_cone": ((0.41, 0.41, 1.07), -1.285),
}
NUSCENES_TASKS = [
    ["car"],
    ["truck", "construction_vehicle"],
    ["bus", "trailer"],
    ["barrier"],
    ["motorcycle", "bicycle"],
    ["pedestrian", "traffic_cone"],
]
NUSCENES_LIMITS = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]


def anchors(
    table: Mapping[str, Tuple[Size, float]], names: List[str], width_first: bool = False
) -> List[Dict[str, Any]]:
    """Entries of a configuration. width_first: sizes as w, l, h."""
    entries = []
    for name in names:
        (length, width, height), bottom = table[name]
        size = [width, length, height] if width_first else [length, width, height]
        entries.append({"size": size, "bottom": bottom, "rotations": [0.0, 1.57]})
    return entries
