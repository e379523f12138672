# SPDX-License-Identifier: Apache-2.0
"""Paths of scans of recordings, and the stems of files that are made of clouds."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

ROS_1, MCAP, SQLITE, FOLDER = "ROS 1 bag", "ROS 2 bag, MCAP", "ROS 2 bag, SQLite", "ROS 2 bag"
ARGOVERSE, WAYMO, E57 = "Argoverse 2 log", "Waymo Open segment", "E57"
MAGICS = {b"#ROSBAG V": ROS_1, b"\x89MCAP0\r\n": MCAP, b"SQLite format 3\0": SQLITE}
MAGICS |= {b"ASTM-E57": E57, b"PAR1": WAYMO}
CITY = "city_SE3_egovehicle.feather"
COMPONENTS = ("lidar", "lidar_calibration", "vehicle_pose")  # folders of Waymo's


class ScanPath(NamedTuple):
    """What the path of a scan says. topic: with its leading slash, or ""."""

    recording: Path
    topic: str
    number: int


def format_of(path: Path) -> str | None:
    """The format of a recording, by its content; None for anything else."""
    try:
        if path.is_dir():
            if (path / CITY).is_file() and (path / "sensors" / "lidar").is_dir():
                return ARGOVERSE
            if _has_components(path):
                return WAYMO
            head = (path / "metadata.yaml").read_bytes()[:4096]
            return FOLDER if b"rosbag2_bagfile_information" in head else None
        if not path.is_file():  # a pipe would wait, and lose what is read
            return None
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        return None
    found = next((MAGICS[magic] for magic in MAGICS if head.startswith(magic)), None)
    if found == WAYMO:
        own = path.absolute()
        return WAYMO if own.parent.name == "lidar" and _has_components(own.parents[1]) else None
    suffix = {SQLITE: ".db3", E57: ".e57"}.get(found or "", path.suffix)
    return found if path.suffix.lower() == suffix.lower() else None


def _has_components(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in COMPONENTS)


def scan_of(path: str | Path) -> ScanPath | None:
    """The parts of the path of a scan; None for other paths."""
    path = Path(path)
    if not re.fullmatch("[0-9]{6,18}", path.name):
        return None
    recording = next(filter(os.path.exists, path.parents), None)
    if recording is None or format_of(recording) is None:
        return None
    topic = "/".join(["", *path.relative_to(recording).parts[:-1]])
    return ScanPath(recording, topic, int(path.name))


def cloud_stem(path: str | Path) -> str:
    """The file name without its format suffix; .pcd.bin (nuScenes) and .copc.laz are one suffix.
    Of a scan of a recording drive.000123, with a topic drive.ouster_points.000123."""
    path = Path(path)
    if (scan := scan_of(path)) is not None:
        name = scan.recording.name if scan.recording.is_dir() else scan.recording.stem
        return ".".join([name, *scan.topic.split("/", 1)[1:], path.name]).replace("/", "_")
    double = next((s for s in (".pcd.bin", ".copc.laz") if path.name.lower().endswith(s)), "")
    return path.name[: -len(double)] if double else path.stem
