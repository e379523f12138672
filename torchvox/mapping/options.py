# SPDX-License-Identifier: Apache-2.0
"""The options of `torchvox map` and `torchvox clean`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torchvox.mapping.sensor import PRESETS
from torchvox.mapping.store import RegionStore


@dataclass(frozen=True)
class RayOptions:
    """How scans become rays: arguments of `read_poses`, `Trajectory`, `open_points` and of a map,
    None for their defaults. The text of each field is the help of its option."""

    poses: Annotated[
        Path | None, "Poses, one per scan or with --times: KITTI, TUM, EuRoC, [4, 4] or .npy."
    ] = None
    times: Annotated[
        str | None,
        "Times of the scans, to interpolate --poses (TUM, EuRoC) at: a file with one per line "
        "(KITTI's times.txt), or names, for the number that ends the name of each scan; in "
        "seconds, or whole nanoseconds. Default: line i of --poses is for scan i.",
    ] = None
    extrinsic: Annotated[
        Path | None,
        "Pose of the sensor in the frame whose poses are given: KITTI calib.txt (its Tr is needed: "
        "KITTI poses are camera poses), 7 numbers x y z qx qy qz qw, or 12; or identity.",
    ] = None
    relative: Annotated[bool, "Use the frame of the first scan as that of the map."] = False
    odom: Annotated[
        str | None, "Topic of a recording's poses, where there are several; without --poses."
    ] = None
    no_deskew: Annotated[
        bool, "Take one pose for each scan of a recording, also where points have times."
    ] = False
    time_field: Annotated[
        str | None, "Column of the times of a recording's points, or none. Default: by its name."
    ] = None
    max_gap: Annotated[
        float, "Longest gap between two poses to interpolate between, in seconds."
    ] = 0.5
    layout: Annotated[
        str | None,
        "Columns of .bin files: kitti, nuscenes, xyz, xyzrgb, or a list such as x,y,z,_,ring.",
    ] = None
    voxel_size: Annotated[float | None, "Voxel size, in meters."] = None
    origin: Annotated[tuple[float, ...] | None, "A corner of a voxel."] = None
    min_range: Annotated[float | None, "Ignore shorter rays."] = None
    max_range: Annotated[float | None, "Cut longer rays."] = None
    memory: Annotated[
        str | None, "Device cache, e.g. 4GiB; the map itself stays in host memory."
    ] = None

    @property
    def pose_files(self) -> list[Path | None]:
        """The files among these options."""
        times = self.times not in (None, "names")
        return [self.poses, self.extrinsic, Path(f"{self.times}") if times else None]

    def chosen(self, *names: str) -> dict[str, Any]:
        """Options that are neither None nor False."""
        values = {name: getattr(self, name) for name in names}
        return {k: value for k, value in values.items() if not (value is None or value is False)}


@dataclass(frozen=True)
class MapOptions(RayOptions):
    """How files become a map: arguments of `OccupancyMap` and `integrate` too."""

    trajectory: Annotated[Path | None, "TUM or EuRoC poses, for points with gps_time."] = None
    batch_seconds: Annotated[
        float | None, "Integrate points in batches of this many seconds of gps_time."
    ] = None
    point_cloud_range: Annotated[tuple[float, ...] | None, "Map only this box."] = None
    preset: Annotated[str | None, f"Sensor model: {', '.join(PRESETS)}."] = None
    layers: Annotated[tuple[str, ...] | None, "logodds, or logodds,hit_miss."] = None
    ndt: Annotated[bool, "Keep a normal distribution of the points in each voxel."] = False
    capacity: Annotated[str | None, "Limit, e.g. 2GiB; without it the map grows."] = None
    threshold: Annotated[float, "Voxels of at least this probability are occupied."] = 0.5

    @property
    def rays(self) -> dict[str, Any]:
        return self.chosen("point_cloud_range", "min_range", "max_range")

    @property
    def room(self) -> dict[str, Any]:
        if self.memory is not None:
            return {"capacity": self.memory, "store": RegionStore()}
        if self.capacity is None:
            return {}
        number = re.fullmatch(r"\d+", self.capacity)
        capacity = int(self.capacity) if number else self.capacity
        return {"capacity": capacity, "on_overflow": "raise"}
