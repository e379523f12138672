# SPDX-License-Identifier: Apache-2.0
"""Argoverse 2 sensor logs: a folder of Feather files, of which each sweep of the lidars is one."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.errors import CloudFileError, explained, short
from torchvox._util.extras import require
from torchvox.io.paths import ARGOVERSE, CITY
from torchvox.io.poses import inverse, joined, moved, rotations
from torchvox.io.recording import WHOLE, Log, Scan, TrackedBoxes
from torchvox.io.table import PointTable, TableReader

if TYPE_CHECKING:
    from collections.abc import Iterable

LIDARS = ("up_lidar", "down_lidar")
FIRST_DOWN = 32  # of laser_number
POSE = ("qx", "qy", "qz", "qw", "tx_m", "ty_m", "tz_m")
SIZE = ("length_m", "width_m", "height_m")


def read_feather(path: Path, numbers: Iterable[str], texts: tuple[str, ...] = ()) -> dict[str, Any]:
    """The columns of numbers of a Feather file, and those of texts: name -> array.

    Raises CloudFileError for a damaged file, and for one that lacks these columns.
    """
    feather = require("pyarrow.feather", "to read Feather files")
    with explained(path, "Feather file"):
        table = feather.read_table(path, memory_map=False)
        table.validate(full=True)
        whole = (name for name in table.column_names if table.column(name).null_count == 0)
        columns = {name: table.column(name).to_numpy() for name in whole}
        for name in (*numbers, *texts):
            if name not in columns or columns[name].dtype.kind not in (
                "O" if name in texts else "iuf"
            ):
                has = short(", ".join(f"{field.name} {field.type}" for field in table.schema))
                kind = "texts" if name in texts else "numbers"
                raise ValueError(f"it has no column {name} of {kind} without nulls (it has {has})")
    return {n: values for n, values in columns.items() if n in texts or values.dtype.kind in "iuf"}


def open_feather(path: Path) -> TableReader:
    """A reader of the points of a Feather file, such as a sweep in the frame of the vehicle."""
    return TableReader(_table(read_feather(path, "xyz"), path))


def _table(columns: dict[str, np.ndarray], path: Path) -> PointTable:
    wide = any(columns[axis].dtype.itemsize > 4 for axis in "xyz")
    xyz = np.stack([columns[axis].astype("f8" if wide else "f4") for axis in "xyz"], axis=1)
    return PointTable(xyz, {n: a for n, a in columns.items() if n not in "xyz"}, path=path)


def _read_posed(path: Path, more: tuple[str, ...], texts: tuple[str, ...] = ()) -> dict[str, Any]:
    """`read_feather` of a file of poses, with these as "poses" [n, 3, 4]."""
    columns = read_feather(path, (*POSE, *more), texts)
    with explained(path, "file of poses"):
        numbers = np.stack([columns[name].astype(np.float64) for name in POSE], axis=1)
        if not np.isfinite(numbers).all():
            raise ValueError("a pose is not finite")
        poses = np.concatenate([rotations(numbers[:, :4]), numbers[:, 4:, None]], axis=2)
    return columns | {"poses": poses}


class ArgoverseLog(Log):
    """A log: sweeps of two lidars, moved to the time of the sweep and in the vehicle's frame."""

    format = ARGOVERSE
    notes = ("x, y, z are float16: steps of 0.06 m beyond 64 m, of 0.13 m beyond 128 m",)

    def _open(self) -> None:
        files = (self.path / "sensors" / "lidar").glob("*.feather")
        self._files = {int(f.stem): f for f in files if f.stem.isascii() and f.stem.isdecimal()}
        self._index("Argoverse 2 sweep", sorted(self._files), LIDARS)
        file = self.path / "calibration" / "egovehicle_SE3_sensor.feather"
        columns = _read_posed(file, (), ("sensor_name",))
        self._sensors = dict(zip(columns["sensor_name"], columns["poses"], strict=True))
        if missing := [name for name in LIDARS if name not in self._sensors]:
            names = short(", ".join(self._sensors) or "none")
            raise CloudFileError(f"{file} has no sensor {missing[0]} (it has {names})")

    def _scan(self, number: int, topic: str) -> Scan:
        file = self._files[stamp := self._stamps[number]]
        columns = read_feather(file, (*"xyz", "laser_number"))
        is_up = columns["laser_number"] < FIRST_DOWN
        table, frame, origins = _table(columns, file), "egovehicle", None
        if topic == WHOLE:
            origins = np.where(is_up[:, None], *(self._sensors[name][:, 3] for name in LIDARS))
        else:
            table, frame = table.rows(np.flatnonzero(is_up == (topic == LIDARS[0]))), topic
            table.xyz = moved(table.xyz, inverse(self._sensors[topic])).astype(table.xyz.dtype)
        size, shape = file.stat().st_size, (1, len(table))
        return Scan(number, stamp, frame, table, size, shape, origins=origins)

    @cached_property
    def _city(self) -> dict[int, np.ndarray]:
        """The poses of the vehicle by their times in ns."""
        columns = _read_posed(self.path / CITY, ("timestamp_ns",))
        return dict(zip(columns["timestamp_ns"].tolist(), columns["poses"], strict=True))

    def _pose(self, number: int, topic: str) -> np.ndarray:
        if (stamp := self._stamps[number]) not in self._city:
            raise CloudFileError(f"{self.path / CITY} has no pose at {stamp} ns, of scan {number}")
        pose = self._city[stamp]
        return pose if topic == WHOLE else joined(pose, self._sensors[topic])

    @cached_property
    def _annotations(self) -> dict[str, Any]:
        file = self.path / "annotations.feather"
        return _read_posed(file, ("timestamp_ns", *SIZE), ("track_uuid", "category"))

    def _boxes(self, number: int) -> TrackedBoxes | None:
        if not (self.path / "annotations.feather").exists():
            return None
        own = self._annotations
        rows = np.flatnonzero(own["timestamp_ns"] == self._stamps[number])
        poses = own["poses"][rows]
        yaw = np.arctan2(poses[:, 1, 0], poses[:, 0, 0])
        boxes = np.column_stack([poses[:, :, 3], *(own[name][rows] for name in SIZE), yaw])
        names, tracks = (own[name][rows].tolist() for name in ("category", "track_uuid"))
        return TrackedBoxes(boxes.astype(np.float64), names, tracks)
