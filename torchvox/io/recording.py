# SPDX-License-Identifier: Apache-2.0
"""Recordings, whose scans have paths: drive.mcap/000123 is scan 123 of drive.mcap."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, short
from torchvox.io.bags import CLOUD, Bag, Topic
from torchvox.io.frames import trajectory_of
from torchvox.io.paths import ARGOVERSE, E57, WAYMO, ScanPath, format_of
from torchvox.io.pointcloud2 import point_times, table_of_message
from torchvox.io.poses import Trajectory, inverse, joined, moved
from torchvox.io.table import PointReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike

    from torchvox.io.table import PointTable


def is_recording(path: str | Path) -> bool:
    """Whether this is a ROS 1 bag, an MCAP file, a .db3 of ROS 2, the folder of a ROS 2 bag, an
    Argoverse 2 log, a segment of Waymo Open 2 or an E57 file, by its content."""
    return format_of(Path(path)) is not None


@dataclass
class Scan:
    """A scan of a recording.

    number: from 0, in the order of the recording. stamp: ns since 1970, as the message tells it.
    sensor: name of the frame. table: the points in that frame, with the columns and types of the
    message, read-only where they are views of it. size: bytes of the message. shape: rows and
    columns of an organised scan. problems: sentences about what was converted. time_field: see
    `times`. origins: [N, 3] float64, where the rays of points start; None for rays from (0, 0, 0).
    """

    number: int
    stamp: int
    sensor: str
    table: PointTable
    size: int
    shape: tuple[int, int]
    problems: list[str] = field(default_factory=list)
    time_field: str | None = None
    origins: np.ndarray | None = None

    @cached_property
    def times(self) -> np.ndarray | None:
        """[N] int64, ns since 1970; None for points without times. The least int64 stands for a
        time that is not finite. Raises CloudFileError for times far from the stamp."""
        return point_times(self.table, self.stamp, self.time_field)[0]


class TrackedBoxes(NamedTuple):
    """Objects of a scan: boxes [n, 7 or more] in its frame (x, y, z, l, w, h, yaw), names of their
    classes, and tracks: names of objects, equal in all scans; "" is of this scan alone."""

    boxes: np.ndarray
    names: Sequence[str]
    tracks: Sequence[str]


class Recording:
    """An open recording; see `open_recording`.

    path, format: the file or folder, and what it is. topics: all of them.
    start, seconds: of the first message in ns since 1970, and from it to the last one.
    notes: sentences about all scans. has_poses: whether each scan has one, see `pose`.
    stamps: [count] int64 of the scans where these are known without reading them, else None.
    """

    notes: tuple[str, ...] = ()
    has_poses = False
    stamps: np.ndarray | None = None
    _last: Scan | None

    def __init__(self, path: Path, topic: str | None, time_field: str | None) -> None:
        self._asked, self._time_field = topic, time_field
        self.path, self._last = path, None
        self._open()

    def _open(self) -> None:
        self._bag = Bag(self.path)
        self.format, self.topics = self._bag.format, self._bag.topics
        self.start, self.seconds = self._bag.start, self._bag.seconds
        self._messages: Iterator[tuple[int, bytes]] | None = None
        self._next, self._unstamped = 0, False
        self._broken: CloudFileError | None = None

    @property
    def sensors(self) -> list[Topic]:
        """The topics of point clouds."""
        return [topic for topic in self.topics if topic.type == CLOUD]

    @cached_property
    def topic(self) -> Topic:
        """The topic whose scans are read. Raises WrongUseError if it is not clear which."""
        own, rule = self.sensors, f"--topic names none of the topics of clouds in {self.path}"
        if self._asked is not None:
            own = [topic for topic in own if topic.name.strip("/") == self._asked.strip("/")]
        elif len(own) > 1:
            rule = f"{self.path} has several topics of clouds: choose one by --topic"
        if len(own) == 1:
            return own[0]
        if not self.sensors:
            others = [f"{topic.name} is {topic.type}" for topic in self.topics]
            rule = f"{self.path} has no topic of {CLOUD}, which torchvox reads"
            raise WrongUseError(f"{rule}: {short('; '.join(others) or 'it has no topics')}")
        names = [f"{t.name} ({t.messages:,} scans, {t.rate:.3g} Hz)" for t in self.sensors]
        raise WrongUseError(f"{rule}: {short(', '.join(names))}")

    @property
    def count(self) -> int:
        """The number of scans, which the index of the recording tells."""
        return self.topic.messages

    @cached_property
    def _below(self) -> Path:
        return self.path / self.topic.name.strip("/") if len(self.sensors) > 1 else self.path

    def paths(self, scans: slice = slice(None)) -> list[Path]:
        """The paths of scans, of all by default. Raises WrongUseError if there is none."""
        if not (numbers := range(self.count)[scans]):
            which = "" if scans == slice(None) else " that --scans takes"
            raise WrongUseError(f"{self.path} has {self.count} scans, none{which}")
        return [self._below / f"{number:06d}" for number in numbers]

    def scan(self, number: int) -> Scan:
        """One scan. The next one is read without seeking, an earlier one from the start on.

        Raises WrongUseError for a number that there is not, CloudFileError for a damaged message.
        """
        if self._last is None or self._last.number != number:
            self._last = None  # of two scans only one is in memory
            self._last = self._read(number)
        return self._last

    def scans(self, first: int = 0) -> Iterator[Scan]:
        """The scans from a number on. Raises CloudFileError for the first damaged one."""
        for number in range(first, self.count):
            yield self.scan(number)

    def _check(self, number: int) -> None:
        if not 0 <= number < self.count:
            raise WrongUseError(f"{self.path} has no scan {number}: it has {self.count}, from 0 on")

    def _read(self, number: int) -> Scan:
        self._check(number)
        if self._broken is not None and number >= self._next:
            raise self._broken
        if self._messages is None or number < self._next:
            self._messages, self._next, self._broken = self._bag.messages(self.topic.name), 0, None
        try:
            while self._next <= number:
                time, data = next(self._messages)
                self._next += 1
        except StopIteration:
            text = f"{self.path} holds {self._next} scans of the {self.count} that its index lists"
            self._broken = CloudFileError(text)
            raise self._broken from None
        except CloudFileError as error:
            words = str(error).removeprefix(str(self.path)).strip()
            self._broken = CloudFileError(f"{self.path} ends at scan {self._next}: it {words}")
            raise self._broken from error
        return self._decoded(number, time, data)

    def _decoded(self, number: int, time: int, data: bytes) -> Scan:
        path = self._below / f"{number:06d}"
        try:
            message = self._bag.decoded(data)
            stamp = message.header.stamp
            nanoseconds, sensor = stamp.sec * 10**9 + stamp.nanosec, message.header.frame_id
            table, problems = table_of_message(message, path)
        except CloudFileError:
            raise
        except Exception as error:  # a damaged message can fail anywhere
            reason = short(str(error).splitlines()[0] if str(error) else type(error).__name__)
            raise CloudFileError(f"{path} is not a readable {CLOUD}: {reason}") from error
        if nanoseconds == 0:
            if not self._unstamped:
                problems.append("its stamp is 0: the times of the recording are taken")
            nanoseconds, self._unstamped = time, True
        shape = message.height, message.width
        size, own = len(data), self._time_field
        return Scan(number, nanoseconds, sensor.strip("/"), table, size, shape, problems, own)

    def trajectory(
        self,
        odom: str | None = None,
        extrinsic: ArrayLike | None = None,
        max_gap: float = 0.5,
    ) -> Trajectory:
        """The poses of the sensor, at times in seconds after `start`.

        odom: topic of the poses; by default the only one of nav_msgs/Odometry, else of PoseStamped
            or PoseWithCovarianceStamped, else of nav_msgs/Path, else tf.
        extrinsic: [3, 4], the sensor in the frame whose poses these are; by default by tf.
        max_gap: in seconds, see `Trajectory`.
        Raises WrongUseError where the topic or the extrinsic is not clear, CloudFileError.
        """
        bag = Bag(self.path)  # of its own: scans may be read meanwhile
        turn = None if extrinsic is None else np.asarray(extrinsic, np.float64)
        try:
            return trajectory_of(bag, self._sensor, odom, turn, max_gap)
        finally:
            bag.close()

    def pose(self, number: int) -> np.ndarray:
        """[3, 4] float64, the frame of a scan in the world, as the recording lists it.

        Raises WrongUseError for bags, whose poses have times of their own (`trajectory`).
        """
        raise WrongUseError(f"{self.path} has no pose for each scan: use its trajectory")

    def boxes(self, number: int) -> TrackedBoxes | None:
        """The annotations of a scan; None of recordings without any, as those of ROS."""
        return None

    @cached_property
    def _sensor(self) -> str:
        """The frame of the first scan that can be read."""
        for number in range(self.count):
            with contextlib.suppress(CloudFileError):
                return self.scan(number).sensor
        raise CloudFileError(f"{self.path} has no scan of {self.topic.name} that can be read")

    def close(self) -> None:
        self._messages = None
        self._bag.close()


class Log(Recording):
    """A recording whose scans are read one by one, each with a pose and, of some formats, boxes.

    Formats fill `_open`, `_scan`, `_pose` and `_boxes`. The first topic is the default.
    """

    has_poses = True
    start, seconds = 0, 0.0

    def _index(self, kind: str, stamps: list[int], lidars: Iterable[str]) -> None:
        """Sets what follows from the stamps in ns. lidars: names of topics beside WHOLE."""
        if stamps and not 0 <= stamps[0] <= stamps[-1] < 1 << 63:
            raise CloudFileError(f"{self.path} has stamps that are not ns since 1970")
        self._stamps, self.stamps = stamps, np.array(stamps, np.int64)
        if stamps:
            self.start, self.seconds = stamps[0], (stamps[-1] - stamps[0]) / 1e9
        rate = (len(stamps) - 1) / self.seconds if self.seconds > 0 else 0.0
        self.topics = [Topic(name, kind, len(stamps), rate) for name in (WHOLE, *lidars)]

    @property
    def sensors(self) -> list[Topic]:
        return self.topics

    @cached_property
    def topic(self) -> Topic:
        return self.topics[0] if self._asked is None else super().topic

    @cached_property
    def _below(self) -> Path:
        return self.path if self.topic == self.topics[0] else self.path / self.topic.name

    def _read(self, number: int) -> Scan:
        self._check(number)
        scan = self._scan(number, self.topic.name)
        scan.table.path, scan.time_field = self._below / f"{number:06d}", self._time_field
        return scan

    def pose(self, number: int) -> np.ndarray:
        self._check(number)
        return self._pose(number, self.topic.name)

    def boxes(self, number: int) -> TrackedBoxes | None:
        self._check(number)
        own = self._boxes(number)
        if own is None or self.topic == self.topics[0]:
            return own
        back = inverse(self._pose(number, self.topic.name))
        back = joined(back, self._pose(number, self.topics[0].name))
        ahead = [np.cos(own.boxes[:, 6]), np.sin(own.boxes[:, 6])]
        x, y = (back[i, 0] * ahead[0] + back[i, 1] * ahead[1] for i in (0, 1))
        place, size = moved(own.boxes[:, :3], back), own.boxes[:, 3:6]
        return own._replace(boxes=np.column_stack([place, size, np.arctan2(y, x)]))

    def trajectory(
        self, odom: str | None = None, extrinsic: ArrayLike | None = None, max_gap: float = 0.5
    ) -> Trajectory:
        if odom is not None or extrinsic is not None:
            raise WrongUseError(
                f"{self.path} lists the poses of its scans: remove odom and extrinsic"
            )
        if self.stamps is None:
            raise WrongUseError(f"{self.path} has no times: its scans have a `pose` each")
        poses = [self.pose(number) for number in range(self.count)]
        return Trajectory((self.stamps - self.start) / 1e9, poses, max_gap=max_gap)

    def close(self) -> None:
        """Nothing is open between two scans."""

    def _scan(self, number: int, topic: str) -> Scan:
        raise NotImplementedError

    def _pose(self, number: int, topic: str) -> np.ndarray:
        raise NotImplementedError

    def _boxes(self, number: int) -> TrackedBoxes | None:
        return None


WHOLE = "lidar"  # topic of the points of all lidars, in the frame of the vehicle
LOGS = {
    ARGOVERSE: ("torchvox.io.argoverse", "ArgoverseLog"),
    WAYMO: ("torchvox.io.waymo", "WaymoSegment"),
    E57: ("torchvox.io.e57", "E57Log"),
}


def open_recording(
    path: str | Path, topic: str | None = None, *, time_field: str | None = None
) -> Recording:
    """A recording of scans: what `is_recording` names.

    topic: of sensor_msgs/PointCloud2, by default the only one; of Argoverse and Waymo the name of a
        lidar, by default all of them in the frame of the vehicle.
    time_field: the column of the times of points, "none" for no times; by default the first of t,
        time, timestamp, time_stamp, offset_time, time_offset, point_time_offset that there is.
    Opening reads the index, and no scan. Raises CloudFileError for a damaged file or one that was
    not closed, MissingExtraError without the package that reads it.
    """
    path = Path(path)
    if not is_recording(path):
        what = "is not a bag of ROS 1 or ROS 2, an MCAP or E57 file, an Argoverse or Waymo log"
        raise CloudFileError(f"{path} {what if path.exists() else 'does not exist'}")
    module, name = LOGS.get(format_of(path) or "", (__name__, "Recording"))
    return getattr(importlib.import_module(module), name)(path, topic, time_field)


# ---- scans as files ------------------------------------------------------------------------------

_lock = threading.Lock()
_opened: dict[tuple[object, ...], Recording] = {}  # the recording that was used last


def _scan_at(place: ScanPath) -> tuple[Recording, Scan]:
    with _lock:
        stat = place.recording.stat()
        key = os.getpid(), place.recording, place.topic, stat.st_mtime_ns, stat.st_size
        if key not in _opened:
            for (process, *_), recording in _opened.items():
                if process == os.getpid():  # a forked process shares files with its parent
                    recording.close()
            _opened.clear()
            _opened[key] = open_recording(place.recording, place.topic or None)
        return _opened[key], _opened[key].scan(place.number)


class ScanReader(PointReader):
    """A reader of a scan of a recording, which is read again when its points are needed after
    those of another one."""

    def __init__(self, path: Path, place: ScanPath) -> None:
        recording, scan = _scan_at(place)
        super().__init__(path, len(scan.table), scan.table.schema)
        self.name, self.problems = f"{recording.path.name}/{path.name}", scan.problems
        words = f"frame {short(scan.sensor) or 'none'}, stamp {scan.stamp} ns"
        self.format = f"{recording.topic.type}, {words}"
        self._place, self._size = place, scan.size

    @property
    def size(self) -> int:
        return self._size

    @property
    def scan(self) -> Scan:
        """The scan, read again if it was not the last one."""
        return _scan_at(self._place)[1]

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        scan = self.scan
        for at in range(first, self.count, size):
            yield scan.table.rows(slice(at, at + size), names)
