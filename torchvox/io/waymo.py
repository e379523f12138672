# SPDX-License-Identifier: Apache-2.0
"""Segments of Waymo Open 2: folders of Parquet files by component, with a range image a lidar."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, explained, short
from torchvox._util.extras import require
from torchvox.io.paths import WAYMO
from torchvox.io.poses import inverse, joined, moved, rigid
from torchvox.io.recording import WHOLE, Log, Scan, TrackedBoxes
from torchvox.io.table import PointTable, join

LASERS = {1: "TOP", 2: "FRONT", 3: "SIDE_LEFT", 4: "SIDE_RIGHT", 5: "REAR"}
TOP = 1  # whose pixels have poses
STAMP, LASER = "key.frame_timestamp_micros", "key.laser_name"
IMAGE = "[LiDARComponent].range_image_return1"
PIXELS = "[LiDARPoseComponent].range_image_return1"
BEAMS = ("beam_inclination.min", "beam_inclination.max", "beam_inclination.values")
CALIBRATION = [f"[LiDARCalibrationComponent].{name}" for name in ("extrinsic.transform", *BEAMS)]
VEHICLE = "[VehiclePoseComponent].world_from_vehicle.transform"
TRACK, TYPE = "key.laser_object_id", "[LiDARBoxComponent].type"
BOX = [f"[LiDARBoxComponent].box.{name}" for name in ("center.x", "center.y", "center.z", "size.x",
                                                      "size.y", "size.z", "heading")]  # fmt: skip
TYPES = {0: "unknown", 1: "vehicle", 2: "pedestrian", 3: "sign", 4: "cyclist"}
MOST_ROWS, MOST_COLUMNS = 256, 8192  # of a range image


class Rows:
    """The rows of a Parquet file by their keys, read one by one, in order without seeking."""

    def __init__(self, path: Path, keys: list[str]) -> None:
        self.path = path
        parquet = require("pyarrow.parquet", "to read Waymo Open")
        with explained(path, "Parquet file"):
            self._file = parquet.ParquetFile(path)
            columns = [self._file.read(columns=[key]).column(key).to_numpy() for key in keys]
            if any(column.dtype.kind not in "iu" for column in columns):
                raise ValueError(f"{' and '.join(keys)} are not whole numbers in every row")
            each = zip(*(column.tolist() for column in columns), strict=True)
            self.index = {key: i for i, key in enumerate(each)}
            if len(self.index) != len(columns[0]):
                raise ValueError(f"two rows have the same {' and '.join(keys)}")
            groups = range(self._file.num_row_groups)
            sizes = [self._file.metadata.row_group(group).num_rows for group in groups]
        self._starts, self._next, self._group = np.cumsum([0, *sizes]), 0, -1
        self._batches: Iterator[Any] = iter(())
        self._columns: list[str] = []

    def row(self, key: tuple[int, ...], columns: list[str]) -> list[Any]:
        """The values of a row, lists as arrays. Raises CloudFileError, also for a missing row."""
        if key not in self.index:
            raise CloudFileError(f"{self.path} has no row of {', '.join(map(str, key))}")
        index = self.index[key]
        group = int(np.searchsorted(self._starts, index, "right")) - 1
        with explained(self.path, "Parquet file"):
            if (group, columns) != (self._group, self._columns) or index < self._next:
                self._batches = self._file.iter_batches(1, [group], columns)
                self._next, self._group = int(self._starts[group]), group
                self._columns = columns
            while self._next <= index:
                batch = next(self._batches)
                self._next += 1
            return [_value(name, batch.column(name)[0]) for name in columns]

    def image(self, key: tuple[int, ...], name: str, depth: int) -> np.ndarray:
        """A range image [H, W, depth] of a row."""
        values, shape = self.row(key, [f"{name}.values", f"{name}.shape"])
        with explained(self.path, "Parquet file"):
            if values is None or shape is None:
                raise ValueError(f"{name} is null")
            size = tuple(shape.tolist())
            fits = len(size) == 3 and size[2] == depth and 0 < size[0] <= MOST_ROWS
            if not fits or not 0 < size[1] <= MOST_COLUMNS or np.prod(size) != len(values):
                rule = f"{name} must be [H, W, {depth}], at most {MOST_ROWS} x {MOST_COLUMNS}"
                raise ValueError(f"{rule}, got {list(size)} of {len(values)} values")
            return values.reshape(size)

    def all(self, columns: list[str]) -> dict[tuple[int, ...], list[Any]]:
        """All rows of a small file, by their keys."""
        return {key: self.row(key, columns) for key in self.index}


def _value(name: str, scalar: Any) -> Any:
    values = getattr(scalar, "values", None)
    if values is None:
        return scalar.as_py()
    if values.null_count:
        raise ValueError(f"{name} has values that are null")
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} holds {array.dtype}, not numbers")
    return array


def _matrix(path: Path, values: Any) -> np.ndarray:
    with explained(path, "Parquet file"):
        return rigid(np.array(values, np.float64).reshape(1, 4, 4))[0]


class WaymoSegment(Log):
    """A segment: frames of five lidars, in the frame of the vehicle."""

    format = WAYMO

    def _open(self) -> None:
        path, is_folder = self.path, self.path.is_dir()
        files = sorted((path / "lidar").glob("*.parquet")) if is_folder else [path.absolute()]
        if len(files) != 1:
            names = short(", ".join(f"lidar/{file.name}" for file in files) or "none")
            raise WrongUseError(f"{path} has {len(files)} segments, name one of them: {names}")
        self._root, self._name = files[0].parents[1], files[0].name
        self._images = self._rows("lidar", STAMP, LASER)
        vehicles, lasers = self._rows("vehicle_pose", STAMP), self._rows("lidar_calibration", LASER)
        each = vehicles.all([VEHICLE]).items()
        self._vehicles = {key[0]: _matrix(vehicles.path, values[0]) for key, values in each}
        own = sorted(lasers.all(CALIBRATION).items())
        self._lasers = {key[0]: (_matrix(lasers.path, m), *beams) for key, (m, *beams) in own}
        self._frames = sorted({stamp for stamp, _ in self._images.index})
        lidars = [LASERS[laser] for laser in self._lasers if laser in LASERS]
        self._index("Waymo frame", [stamp * 1000 for stamp in self._frames], lidars)

    def _rows(self, component: str, *keys: str) -> Rows:
        return Rows(self._root / component / self._name, list(keys))

    def _scan(self, number: int, topic: str) -> Scan:
        stamp = self._frames[number]
        keys = [(stamp, laser) for laser, name in LASERS.items() if topic in (WHOLE, name)]
        if topic == WHOLE:
            keys = [key for key in keys if key in self._images.index]
        in_file = sorted(keys, key=lambda key: self._images.index.get(key, 0))
        parts = {key: self._points(*key) for key in in_file}
        table = join([parts[key][0] for key in keys])
        origins, frame = np.concatenate([parts[key][1] for key in keys]), "vehicle"
        if topic != WHOLE:
            back, frame = inverse(self._lasers[keys[0][1]][0]), topic
            table.xyz, origins = moved(table.xyz, back).astype(np.float32), moved(origins, back)
        size, shape = 2 * table.xyz.nbytes, (1, len(table))
        return Scan(number, stamp * 1000, frame, table, size, shape, origins=origins)

    def _points(self, stamp: int, laser: int) -> tuple[PointTable, np.ndarray]:
        """The points of a lidar in the frame of the vehicle, and the origins of their rays."""
        image = self._images.image((stamp, laser), IMAGE, 4)
        if laser not in self._lasers:
            raise CloudFileError(f"{self._root}/lidar_calibration has no lidar {laser}")
        extrinsic = self._lasers[laser][0]
        height, width = image.shape[:2]
        rows, columns = np.nonzero(image[..., 0] > 0)
        far, intensity, elongation, _ = image[rows, columns].T
        up = self._inclinations(laser, height)[rows]
        turn = np.arctan2(extrinsic[1, 0], extrinsic[0, 0])
        turn = ((width - columns - 0.5) / width * 2 - 1) * np.pi - turn
        flat = far * np.cos(up)
        xyz = np.stack([flat * np.cos(turn), flat * np.sin(turn), far * np.sin(up)], axis=1)
        both = [moved(xyz, extrinsic), np.broadcast_to(extrinsic[:, 3], xyz.shape)]
        if laser == TOP:
            pixels = self._pixels.image((stamp, laser), PIXELS, 6)
            if pixels.shape[:2] != (height, width):
                raise CloudFileError(f"{self._pixels.path}: {PIXELS} is not {height} x {width}")
            poses = _pixel_poses(pixels[rows, columns].astype(np.float64))
            back = inverse(self._vehicle(stamp))
            both = [moved(moved(points, poses), back) for points in both]
        attributes = {
            **{"intensity": intensity, "elongation": elongation},
            **{"ring": rows.astype(np.uint8), "laser": np.full(len(rows), laser, np.uint8)},
        }
        return PointTable(both[0].astype(np.float32), attributes), both[1]

    def _inclinations(self, laser: int, height: int) -> np.ndarray:
        """[H] float64, the highest first, as the rows of images."""
        _, low, high, beams = self._lasers[laser]
        if beams is None or not len(beams):
            if low is None or high is None:
                raise CloudFileError(f"{self._root}: {LASERS.get(laser, laser)} has no inclination")
            beams = low + (np.arange(height) + 0.5) / height * (high - low)
        if len(beams) != height:
            rule = f"{len(beams)} inclinations for {height} rows"
            raise CloudFileError(f"{self._root}: {LASERS.get(laser, laser)} has {rule}")
        return np.asarray(beams, np.float64)[::-1]

    @cached_property
    def _pixels(self) -> Rows:
        return self._rows("lidar_pose", STAMP, LASER)

    def _vehicle(self, stamp: int) -> np.ndarray:
        if stamp not in self._vehicles:
            raise CloudFileError(f"{self._root}/vehicle_pose has no pose at {stamp} us")
        return self._vehicles[stamp]

    def _pose(self, number: int, topic: str) -> np.ndarray:
        pose = self._vehicle(self._frames[number])
        own = (matrix for n, (matrix, *_) in self._lasers.items() if LASERS.get(n) == topic)
        return pose if topic == WHOLE else joined(pose, next(own))

    def _boxes(self, number: int) -> TrackedBoxes | None:
        path = self._root / "lidar_box" / self._name
        if not path.exists():
            return None
        parquet = require("pyarrow.parquet", "to read Waymo Open")
        with explained(path, "list of boxes"):
            table = parquet.read_table(path, columns=[STAMP, TRACK, TYPE, *BOX])
            own = table.filter(table.column(STAMP).to_numpy() == self._frames[number])
            boxes = [own.column(name).to_numpy().astype(np.float64) for name in BOX]
            names = [TYPES.get(number, "unknown") for number in own.column(TYPE).to_pylist()]
            return TrackedBoxes(np.column_stack(boxes), names, own.column(TRACK).to_pylist())


def _pixel_poses(numbers: np.ndarray) -> np.ndarray:
    """[N, 3, 4] of roll, pitch, yaw, x, y, z [N, 6]: Rz(yaw) Ry(pitch) Rx(roll)."""
    (cr, cp, cy), (sr, sp, sy) = np.cos(numbers[:, :3]).T, np.sin(numbers[:, :3]).T
    x, y, z = numbers[:, 3:].T
    rows = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr, x],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr, y],
        [-sp, cp * sr, cp * cr, z],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
