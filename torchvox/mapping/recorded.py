# SPDX-License-Identifier: Apache-2.0
"""Scans of a recording as rays, each point from where the sensor was when it was measured."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from torchvox._util.errors import WrongUseError
from torchvox.io.paths import ScanPath, scan_of
from torchvox.io.pointcloud2 import NO_TIME, point_times
from torchvox.io.poses import Trajectory, read_extrinsic, read_poses
from torchvox.io.recording import Recording, open_recording
from torchvox.nn import SensorInput
from torchvox.ops import transform_points

if TYPE_CHECKING:
    from torchvox.io.recording import Scan
    from torchvox.mapping.options import RayOptions

NO_RETURN = 1e-6  # m; sensors write (0, 0, 0) for rays that met nothing
NEAR = 10.0  # s: poses with times that near to a recording are matched by time


def recorded(files: Sequence[Path]) -> list[ScanPath] | None:
    """The parts of the paths of scans; None if one is not of a recording."""
    places = [place for path in files if (place := scan_of(path)) is not None]
    return places if len(places) == len(files) > 0 else None


def of_taken(matrices: np.ndarray, files: Sequence[Path]) -> np.ndarray:
    """The poses [S, 3, 4] of the scans that are taken, where there is one for each scan of their
    recording; else the same."""
    places = recorded(files) if len(matrices) != len(files) else None
    if places is None or len({place[:2] for place in places}) > 1:
        return matrices
    recording = open_recording(places[0].recording, places[0].topic or None)
    count = recording.count
    recording.close()
    return matrices[[place.number for place in places]] if count == len(matrices) else matrices


def has_times(options: RayOptions, places: list[ScanPath]) -> bool:
    """Whether the poses of a file are matched with the scans by time: their times are those of the
    recording, and no other times are given."""
    if options.poses is None or options.times is not None or options.relative:
        return False
    times = read_poses(options.poses).times
    recording = open_recording(places[0].recording, places[0].topic or None)
    start = recording.start / 1e9
    recording.close()
    if times is None or not start:
        return False
    return bool(((times >= start - NEAR) & (times <= start + recording.seconds + NEAR)).any())


class Batch(NamedTuple):
    """Rays of one call. points: [N, 3] float32 or float64, in the frame of the sensor with the pose
    [3, 4] float64; or with origins [N, 3] float64 instead. seconds: what it took to measure them, 0
    for a turn of the sensor. dropped: reasons -> points that have no ray. rows: [N] int64, of the
    points in the scan; None for all of them."""

    points: np.ndarray
    pose: np.ndarray = np.eye(3, 4)
    origins: np.ndarray | None = None
    seconds: float = 0.0
    dropped: dict[str, int] = {}  # noqa: RUF012, never written
    rows: np.ndarray | None = None


class RecordedScans:
    """Scans of one recording, and their poses: its own, or those of a file with times.

    Raises WrongUseError for scans of several recordings or topics, and as `Recording.trajectory`.
    """

    def __init__(self, places: list[ScanPath], options: RayOptions) -> None:
        first = places[0]
        if any(place[:2] != first[:2] for place in places):
            raise WrongUseError("poses are of one recording and topic: take them one by one")
        self._options, self._stamp = options, 0
        opened = open_recording(first.recording, first.topic or None)
        with contextlib.closing(opened) as recording:
            self._start, lists = recording.start, recording.has_poses and options.poses is None
            self._own = recording if lists and not (options.odom or options.extrinsic) else None
            if self._own is None:
                self._moving = self._trajectory(recording)

    def _trajectory(self, recording: Recording) -> Trajectory:
        options = self._options
        extrinsic = None if options.extrinsic is None else sensor_pose(options.extrinsic)
        if options.poses is None:
            return recording.trajectory(options.odom, extrinsic, options.max_gap)
        poses = read_poses(options.poses)
        assert poses.times is not None
        times, gap = poses.times - recording.start / 1e9, options.max_gap
        return Trajectory(times, poses.matrices, extrinsic=extrinsic, max_gap=gap)

    def batch(self, scan: Scan) -> Batch:
        """The rays of a scan. Raises WrongUseError if no point has a pose."""
        before, self._stamp = self._stamp or scan.stamp, scan.stamp
        seconds = max(0, scan.stamp - before) / 1e9
        times = None
        if not (self._own or self._options.no_deskew or scan.origins is not None):
            times, _ = point_times(scan.table, scan.stamp, self._options.time_field)
        if times is None:
            return rays_at(self.pose(scan), scan)._replace(seconds=seconds)
        rows, dropped = returns_of(scan)
        moments, index = np.unique(times[rows], return_inverse=True)
        moments = np.where(moments == NO_TIME, np.nan, (moments.clip(0) - self._start) / 1e9)
        poses = self._moving.at(moments)
        kept = poses.kept[index]
        in_gap = int((~kept & (moments[index] >= self._moving.times[0])
                      & (moments[index] <= self._moving.times[-1])).sum())  # fmt: skip
        dropped["outside of the trajectory"] = int((~kept).sum()) - in_gap
        dropped["in its gaps"] = in_gap
        rows, index = rows[kept], index[kept]
        points = torch.from_numpy(scan.table.xyz[rows])
        where = torch.from_numpy(poses.poses)
        points = transform_points(points, where, pose_index=torch.from_numpy(index))
        origins = poses.poses[:, :, 3][index]
        return Batch(points.numpy(), origins=origins, seconds=seconds, dropped=dropped, rows=rows)

    def pose(self, scan: Scan) -> np.ndarray:
        """The pose [3, 4] of the frame of a scan at its stamp. Raises WrongUseError."""
        if self._own is not None:
            return self._own.pose(scan.number)
        return self._moving.at([(scan.stamp - self._start) / 1e9]).poses[0]


class JoinedScans:
    """The points of scans of a recording, each with those of the `sweeps` - 1 before it, as a
    detector of `columns` takes them: in the frame of the newest, which comes first; after the
    intensity the age in seconds."""

    def __init__(self, scans: RecordedScans, sweeps: int, columns: int) -> None:
        self._scans, self._start = scans, 0
        self._ring = SensorInput(min(columns, 4), sweeps=sweeps, points=0, age=columns > 4)

    def join(self, scan: Scan, points: torch.Tensor) -> torch.Tensor:
        """[M, columns], on the device of the points [N, columns] of the next scan. Raises
        WrongUseError where it has no pose."""
        ring, pose = self._ring.to(points.device), torch.from_numpy(self._scans.pose(scan))
        if (more := len(points) - ring.points.size(1)) > 0:
            ring.points = torch.nn.functional.pad(ring.points, (0, 0, 0, more))
        self._start = self._start or scan.stamp
        seconds = (scan.stamp - self._start) / 1e9
        ring.push(points[:, : ring.points.size(2)], pose, seconds)
        joined, count = ring()
        return joined[0, : int(count)]


def rays_at(pose: np.ndarray, scan: Scan) -> Batch:
    """The rays of a scan with one pose, of points that are not finite too."""
    rows, dropped = returns_of(scan)
    points = scan.table.xyz[rows]
    if scan.origins is None:
        return Batch(points, pose, dropped=dropped, rows=rows)
    both, where = (points, scan.origins[rows]), torch.from_numpy(pose)[None]
    points, origins = (transform_points(torch.from_numpy(own), where).numpy() for own in both)
    return Batch(points, origins=origins, dropped=dropped, rows=rows)


def sensor_pose(extrinsic: Path) -> np.ndarray:
    """What --extrinsic gives, [3, 4]. Raises CloudFileError."""
    return np.eye(3, 4) if str(extrinsic) == "identity" else read_extrinsic(extrinsic)


def returns_of(scan: Scan) -> tuple[np.ndarray, dict[str, int]]:
    """The rows of the points away from where their rays start, those that are not finite included,
    and how many others there are."""
    xyz = scan.table.xyz if scan.origins is None else scan.table.xyz - scan.origins
    rows = np.flatnonzero(~(np.abs(xyz) < NO_RETURN).all(axis=1))
    return rows, {"without a return": len(xyz) - len(rows)}
