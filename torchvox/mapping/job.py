# SPDX-License-Identifier: Apache-2.0
"""Files that become one map: scans with poses, points along a trajectory, OctoMap graphs, or maps.

Scans and graphs are read as batches of rays, which the map integrates one after another; maps are
merged into the first one.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from torchvox._util.errors import CloudFileError, TorchvoxError, WrongUseError
from torchvox.io import PointReader, Trajectory, open_points, read_extrinsic, read_poses, read_times
from torchvox.io.poses import ROUNDING, from_first
from torchvox.io.recording import ScanReader
from torchvox.mapping.counts import IntegrateCounts
from torchvox.mapping.files import is_map
from torchvox.mapping.map import OccupancyMap
from torchvox.mapping.octomap import read_graph
from torchvox.mapping.options import MapOptions, RayOptions
from torchvox.mapping.recorded import (
    Batch,
    RecordedScans,
    has_times,
    of_taken,
    rays_at,
    recorded,
    sensor_pose,
)

OUTSIDE = "outside of the trajectory"


@dataclass
class Tally:
    """What became of the rays. path: places of the sensor, [n, 3] each. measured: seconds of the
    points, seconds: of integrate."""

    batches: int = 0
    totals: np.ndarray = field(default_factory=lambda: np.zeros(16, np.int64))
    dropped: Counter = field(default_factory=Counter)
    path: list[np.ndarray] = field(default_factory=list)
    measured: float = 0.0
    seconds: float = 0.0

    @property
    def counts(self) -> IntegrateCounts:
        return IntegrateCounts._make(self.totals[: len(IntegrateCounts._fields)].tolist())


class ScanRays:
    """Scans that become rays: files with a pose each, or scans of a recording with a trajectory.

    Raises WrongUseError and CloudFileError for poses that do not fit the files.
    """

    def __init__(self, files: list[Path], options: RayOptions) -> None:
        places = recorded(files)
        self._recorded: RecordedScans | None = None
        if places is not None and (options.poses is None or has_times(options, places)):
            self._recorded = RecordedScans(places, options)
            return
        extrinsic = None if options.extrinsic is None else sensor_pose(options.extrinsic)
        self._poses = poses_of_scans(files, options, extrinsic)

    def batch(self, i: int, reader: PointReader) -> Batch:
        """The rays of scan i, which has a reader. Raises WrongUseError if no point has a pose."""
        if not isinstance(reader, ScanReader):
            return Batch(reader.coordinates(), self._poses[i])
        if self._recorded is None:
            return rays_at(self._poses[i], reader.scan)
        return self._recorded.batch(reader.scan)

    def pose(self, i: int, reader: PointReader) -> np.ndarray:
        """The pose [3, 4] of the frame of scan i, of a recording at its stamp."""
        if self._recorded is None:
            return self._poses[i]
        assert isinstance(reader, ScanReader)
        return self._recorded.pose(reader.scan)


class MapJob:
    """Files that become one map, each by a call of `add`.

    kind: "maps", "graphs" or "scans". map: so far; None before the first map is read. tally: of
    rays. read: opens a file of points; by default `open_points` with the layout of the options.
    Raises WrongUseError for options that are wrong for every file.
    """

    def __init__(
        self,
        files: list[Path],
        options: MapOptions,
        device: torch.device,
        read: Callable[[Path], PointReader] | None = None,
    ) -> None:
        self.files, self.options = files, options
        self.read = read or partial(open_points, layout=options.layout)
        self.kind, self.tally = kind_of(files), Tally()
        self.map: OccupancyMap | None = None
        self._arguments = {"threshold": options.threshold, "device": device, **options.room}
        if self.kind == "scans":
            self._read_poses()
        if self.kind != "maps":
            self.map = self._empty_map()

    def add(self, i: int) -> None:
        """Adds file i to the map. Raises TorchvoxError if it cannot be added."""
        path = self.files[i]
        if self.kind == "maps" and self.map is None:
            self.map = OccupancyMap.load(path, **self._arguments)
            return
        assert self.map is not None
        if self.kind == "maps":
            self.map.merge(OccupancyMap.load(path, device="cpu"))
            return
        batches: Iterator[Batch]
        if self.kind == "graphs":
            batches = (Batch(*scan) for scan in read_graph(path))
        elif self._moving is not None:
            reader = self._opened.pop(path, None) or self.read(path)
            batches = _moving_batches(reader, self._moving, self.options.batch_seconds)
        else:  # a scan is a batch, whatever its size: its misses count before its hits
            assert self._scans is not None
            batches = iter([self._scans.batch(i, self.read(path))])
        for batch in batches:
            self._integrate(self.map, batch)

    def _read_poses(self) -> None:
        """Poses of scans, or a trajectory."""
        options = self.options
        self._scans: ScanRays | None = None
        self._moving: Trajectory | None = None
        self._opened: dict[Path, PointReader] = {}
        if options.trajectory is None:
            self._scans = ScanRays(self.files, options)
            return
        extrinsic = None if options.extrinsic is None else read_extrinsic(options.extrinsic)
        self._moving = _trajectory(options.trajectory, "--trajectory", extrinsic, options.max_gap)
        listing = ""
        for path in self.files:
            with contextlib.suppress(TorchvoxError):  # of this file alone: add reports it
                reader = self.read(path)
                if "gps_time" in reader.columns:
                    self._opened = {path: reader}  # whose problems are printed by now
                    return
                listing = (
                    listing or f"{path} has {', '.join(reader.columns) or 'coordinates alone'}"
                )
        if listing:
            rule = "no file has the column gps_time that --trajectory needs"
            raise WrongUseError(f"{rule}: {listing}; scans without it take --poses and --times")

    def _empty_map(self) -> OccupancyMap:
        """A map after a call without rays, which refuses what is wrong for every scan."""
        options = self.options.chosen("voxel_size", "origin", "preset", "layers", "ndt")
        with wrong_options(self.options):
            empty = OccupancyMap(**options, **self._arguments)
            nothing = torch.zeros((0, 3), device=empty.status.device)
            empty.integrate(nothing, nothing.new_zeros((1, 3)), **self.options.rays)
        return empty

    def _integrate(self, into: OccupancyMap, batch: Batch) -> None:
        tally, device = self.tally, into.status.device
        points = torch.from_numpy(np.ascontiguousarray(batch.points)).to(device)
        start = time.perf_counter()
        name, place = ("pose", batch.pose) if batch.origins is None else ("origins", batch.origins)
        where = {name: torch.from_numpy(place).to(device)}
        counts = into.integrate(points, **where, **self.options.rays)
        tally.totals += counts[0].cpu().numpy()
        tally.seconds += time.perf_counter() - start
        tally.batches += 1
        tally.dropped.update(batch.dropped)
        tally.measured += batch.seconds
        path = place[None, :, 3] if name == "pose" else place
        if len(points) > 0:
            tally.path.append(path[:: 1 + len(path) // 1000])


@contextlib.contextmanager
def wrong_options(options: RayOptions) -> Iterator[None]:
    """A context whose ValueErrors, about options of a map, become WrongUseErrors."""
    try:
        yield
    except ValueError as error:
        words = str(error)
        if options.memory is not None:  # which is the capacity of the cache
            words = words.replace("OccupancyMap: capacity", "--memory-limit")
        raise WrongUseError(words) from error


def _trajectory(
    path: Path, option: str, extrinsic: np.ndarray | None, max_gap: float
) -> Trajectory:
    poses = read_poses(path)
    if poses.times is None:
        raise WrongUseError(f"{path}: {option} needs poses with times, of TUM or EuRoC")
    return Trajectory(poses.times, poses.matrices, extrinsic=extrinsic, max_gap=max_gap)


def poses_of_scans(
    files: list[Path], options: RayOptions, extrinsic: np.ndarray | None = None
) -> np.ndarray:
    """Poses [S, 3, 4] float64 of scans: those of the lines of a file, or at the times of the scans.

    Raises CloudFileError for another number of poses, WrongUseError for a scan whose time is not
    between those of two poses.
    """
    assert options.poses is not None
    if options.times is None:
        lines = read_poses(options.poses, extrinsic)
        matrices = of_taken(lines.matrices, files)
        if len(matrices) != len(files):
            hint = "--times FILE or --times names matches them by time"
            hint = hint if lines.times is not None else "poses with times could be matched: --times"
            number = f"{len(lines.matrices)} poses for {len(files)} scans"
            raise CloudFileError(f"{options.poses} has {number}: {hint}")
        return from_first(matrices) if options.relative else matrices
    moving = _trajectory(options.poses, "--times", extrinsic, options.max_gap)
    times = read_times(options.times, files)
    first, last = moving.times[[0, -1]]
    ends = np.clip(times, first, last)
    is_lost = ~(np.abs(times - ends) <= ROUNDING)  # NaN is
    words = f"outside of the times of {options.poses}, {first:.6f} to {last:.6f} s"
    if not is_lost.any():
        result = moving.at(ends)
        is_lost, words = (
            ~result.kept,
            f"in a gap of the poses above --max-gap {options.max_gap:g} s",
        )
    if is_lost.any():
        i, number = int(np.argmax(is_lost)), f"{is_lost.sum():,} of {len(files):,} scans"
        raise WrongUseError(f"{number} have no pose: {files[i]} at {times[i]:.6f} s is {words}")
    return from_first(result.poses) if options.relative else result.poses


def is_graph(path: Path) -> bool:
    return path.suffix.lower() == ".graph"


def kind_of(files: list[Path]) -> str:
    """What all files are: "maps", "graphs" or "scans". Raises WrongUseError for a mixture."""
    kinds = {"graphs" if is_graph(path) else "maps" if is_map(path) else "scans" for path in files}
    if len(kinds) != 1:
        raise WrongUseError("inputs must be all maps, all .graph files, or all scans")
    return kinds.pop()


def _moving_batches(
    reader: PointReader, moving: Trajectory, seconds: float | None
) -> Iterator[Batch]:
    """Raises WrongUseError if no time of any batch has a pose."""
    lost: WrongUseError | None = None
    matched = False
    for points, times in _timed(reader, seconds):
        try:
            poses = moving.at(times)
        except WrongUseError as error:
            lost = lost or error
            yield Batch(points[:0], dropped={OUTSIDE: len(times)})
            continue
        matched = True
        points, times = points[poses.kept], times[poses.kept]
        yield Batch(
            points,
            origins=poses.poses[poses.kept][:, :, 3],
            seconds=seconds or float(np.ptp(times)),
            dropped={OUTSIDE: poses.outside, "in its gaps": poses.in_gap},
        )
    if lost is not None and not matched:
        raise lost


def _timed(reader: PointReader, seconds: float | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points [n, 3] and times [n] of each batch: a chunk of the file, or the points of each
    interval of seconds, counted from 0, wherever in the file they are."""
    tables = reader.chunks(columns=("gps_time",))
    chunks = ((t.world(), t.values("gps_time").astype(np.float64)) for t in tables)
    if seconds is None:
        yield from chunks
        return
    none = np.zeros((0, 3)), np.zeros(0)
    points, times = (np.concatenate(parts) for parts in zip(none, *chunks, strict=True))
    _, turn = np.unique(np.floor(times / seconds), return_inverse=True)
    order = np.argsort(turn, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(turn[order])) + 1):
        yield points[rows], times[rows]
