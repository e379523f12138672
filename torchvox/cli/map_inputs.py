# SPDX-License-Identifier: Apache-2.0
"""What `torchvox map` reads: rays of scans, of graphs and along trajectories; other maps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import typer

from torchvox._errors import WrongUseError
from torchvox.cli.work import attempt_each
from torchvox.io import PointReader, Trajectory, read_extrinsic, read_graph, read_poses
from torchvox.mapping import OccupancyMap

OUTSIDE = "outside of the trajectory"
Source = Callable[[], Iterator["Batch"]]


class Batch(NamedTuple):
    """Rays of one call. points: [N, 3] float32 or float64. pose: [3, 4] float64 for points in the
    frame of the sensor; or origins: [N, 3] float64. seconds: what it took to measure them, None for
    a turn of the sensor. dropped: reasons -> points that have no ray."""

    points: np.ndarray
    pose: np.ndarray | None = None
    origins: np.ndarray | None = None
    seconds: float | None = None
    dropped: dict[str, int] | None = None


@dataclass
class Tally:
    """What became of the rays. path: places of the sensor, [n, 3] each."""

    batches: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(16, np.int64))
    dropped: Counter = field(default_factory=Counter)
    path: list[np.ndarray] = field(default_factory=list)
    measured: float = 0.0
    seconds: float = 0.0  # of integrate


def checked(options_: dict[str, Any], rays: dict[str, Any]) -> OccupancyMap:
    """An empty map, after a call without rays that refuses what is wrong for every scan."""
    try:
        made = OccupancyMap(**options_)
        nothing = torch.zeros((0, 3), device=made.status.device)
        made.integrate(nothing, nothing.new_zeros((1, 3)), **rays)
    except ValueError as error:
        words = str(error)
        if "store" in options_:  # whose capacity --memory says
            words = words.replace("OccupancyMap: capacity", "--memory")
        raise WrongUseError(words) from error
    return made


def merged(files: list[Path], options_: dict[str, Any]) -> tuple[OccupancyMap, int]:
    """The first map that can be read, and into it the others; how many failed."""
    made: list[OccupancyMap] = []

    def merge(i: int) -> None:
        if not made:
            made.append(OccupancyMap.load(files[i], **options_))
            return
        other = OccupancyMap.load(files[i], device="cpu")
        if made[0].layers != other.layers:
            layers = " and ".join(other.layers), " and ".join(made[0].layers)
            raise WrongUseError(f"{files[i]}: its layers are {layers[0]}, not {layers[1]}")
        made[0].merge(other)

    failed = attempt_each(files, merge)
    if not made:
        raise typer.Exit(1)
    return made[0], failed


def posed_batches(
    files: list[Path],
    read: Callable[[Path], PointReader],
    poses: Path | None,
    trajectory: Path | None,
    extrinsic: Path | None,
    relative: bool,
    max_gap: float,
    batch_seconds: float | None,
) -> list[Source]:
    """What reads each file, of whose poses or trajectory one is given."""
    mounted = None if extrinsic is None else read_extrinsic(extrinsic)
    if trajectory is not None:
        found = read_poses(trajectory)
        if found.times is None:
            raise WrongUseError(f"{trajectory}: --trajectory needs times: lines of 8 numbers (TUM)")
        moving = Trajectory(*found[::-1], extrinsic=mounted, max_gap=max_gap)
        return [partial(_moving_batches, read, path, moving, batch_seconds) for path in files]
    assert poses is not None
    known = read_poses(poses, mounted, count=len(files), relative=relative).matrices
    return [partial(_scan_batch, read, *pair) for pair in zip(files, known, strict=True)]


def _scan_batch(
    read: Callable[[Path], PointReader], path: Path, pose: np.ndarray
) -> Iterator[Batch]:
    """A scan is a batch, whatever its size: its misses count before its hits."""
    yield Batch(read(path).coordinates(), pose)


def graph_batches(path: Path) -> Iterator[Batch]:
    for scan in read_graph(path):
        yield Batch(*scan)


def _moving_batches(
    read: Callable[[Path], PointReader], path: Path, moving: Trajectory, seconds: float | None
) -> Iterator[Batch]:
    """Raises WrongUseError where no time of any batch has a pose."""
    lost: WrongUseError | None = None
    matched = False
    for points, times in _timed(read(path), seconds):
        try:
            found = moving.at(times)
        except WrongUseError as error:
            lost = lost or error
            yield Batch(points[:0], np.eye(3, 4), dropped={OUTSIDE: len(times)})
            continue
        matched = True
        times, origins = times[found.kept], found.poses[found.kept][:, :, 3]
        dropped = {OUTSIDE: found.outside, "in its gaps": found.in_gap}
        yield Batch(points[found.kept], None, origins, seconds or float(np.ptp(times)), dropped)
    if lost is not None and not matched:
        raise lost


def _timed(reader: PointReader, seconds: float | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Points [n, 3] and times [n] of each batch: a chunk of the file, or the points of so many
    seconds, counted from 0, wherever in the file they are."""
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


def integrate(
    made: OccupancyMap, batches: Iterator[Batch], rays: dict[str, Any], tally: Tally
) -> None:
    where = made.status.device
    for batch in batches:
        points = torch.from_numpy(np.ascontiguousarray(batch.points)).to(where)
        at = batch.pose if batch.origins is None else batch.origins
        assert at is not None
        start = time.perf_counter()
        known = torch.from_numpy(at).to(where)
        names = {"pose": known} if batch.origins is None else {"origins": known}
        counts = made.integrate(points, **names, **rays)
        tally.counts += counts[0].cpu().numpy()
        tally.seconds += time.perf_counter() - start
        tally.batches += 1
        tally.dropped.update(batch.dropped or {})
        tally.measured += batch.seconds or 0.0
        places = at[None, :, 3] if batch.origins is None else at
        if len(points) == 0:
            continue
        tally.path.append(places[:: 1 + len(places) // 1000])
