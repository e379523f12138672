# SPDX-License-Identifier: Apache-2.0
"""E57 files of laser scanners: a cloud of all setups in one frame, or a recording of setups."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchvox._util.errors import explained, short
from torchvox._util.extras import require
from torchvox.io.bags import Topic
from torchvox.io.paths import E57
from torchvox.io.poses import moved, rotations
from torchvox.io.recording import Log, Scan
from torchvox.io.roles import COLORS
from torchvox.io.table import PointReader, PointTable, join

if TYPE_CHECKING:
    from collections.abc import Iterator

CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")
COLOR_FIELDS = ("colorRed", "colorGreen", "colorBlue")
FIELDS = {"intensity": "intensity", "row": "rowIndex", "column": "columnIndex"}
FIELDS |= dict(zip(COLORS, COLOR_FIELDS, strict=True))
ROWS = 1 << 20  # the most that are read at a time


class Setup(NamedTuple):
    """A scan of the file. records: how many there are, some of which may be invalid. places: fields
    of the coordinates; invalid: that of the state of a record, or ""; fields: all of them. colors:
    lowest and highest value. is_whole: whether intensities are uint16. pose: [3, 4]."""

    records: int
    places: tuple[str, ...]
    invalid: str
    fields: list[str]
    colors: tuple[float, float]
    is_whole: bool
    pose: np.ndarray


class E57Log(Log):
    """The setups of a file, each in the frame of the scanner, with its pose."""

    format = E57

    def _open(self) -> None:
        self._module = require("pye57", "to read E57 files")
        with explained(self.path, "E57 file"):
            self._file = self._module.E57(str(self.path))
            self.setups = [self._setup(i) for i in range(self._file.scan_count)]
        self.topics = [Topic("setups", "E57 scan", len(self.setups), 0.0)]
        filled = [setup for setup in self.setups if setup.records]
        depth = max([setup.colors[1] for setup in filled], default=0)
        types = dict.fromkeys(COLORS, "u1" if depth <= 255 else "u2")
        intensity = "u2" if all(setup.is_whole for setup in filled) else "f4"
        types |= {"intensity": intensity, "row": "i4", "column": "i4"}
        shared = {field for field in FIELDS.values() if all(field in s.fields for s in filled)}
        own = {name: types[name] for name in FIELDS if filled and FIELDS[name] in shared}
        columns = {name: np.zeros(0, type_) for name, type_ in own.items()}
        self.empty = PointTable(np.zeros((0, 3)), columns, path=self.path)

    def _setup(self, index: int) -> Setup:
        header = self._file.get_header(index)
        fields, node, count = header.point_fields, header.node, header.point_count
        if count > 8 * self.path.stat().st_size:
            raise ValueError(f"its scan {index} claims {count} points, more than it has bits")
        systems = (places for places in (CARTESIAN, SPHERICAL) if {*places} <= {*fields})
        if (places := next(systems, None)) is None:
            raise ValueError(f"its scan {index} has no coordinates but {short(', '.join(fields))}")
        lib, ends = self._module.libe57, [0.0, 255.0]
        kinds = lib.StructureNode(header.points.prototype())
        if node.isDefined("colorLimits/colorRedMaximum"):
            ends = [node["colorLimits"][f"colorRed{end}imum"].value() for end in ("Min", "Max")]
        elif {*COLOR_FIELDS} <= {*fields}:
            color = self._module.utils.get_node(kinds, "colorRed")
            ends = [color.minimum(), color.maximum()]
        if not 0 <= ends[0] < ends[1] < np.inf:
            raise ValueError(f"its colors lie between {ends[0]} and {ends[1]}")
        own = self._module.utils.get_node(kinds, "intensity") if "intensity" in fields else None
        is_whole = isinstance(own, lib.IntegerNode) and 0 <= own.minimum() <= own.maximum() < 65536
        pose = np.eye(3, 4)
        if node.isDefined("pose/rotation"):
            turn = [node["pose"]["rotation"][name].value() for name in "xyzw"]
            pose[:, :3] = rotations(np.array([turn]))[0]
        if node.isDefined("pose/translation"):
            pose[:, 3] = [node["pose"]["translation"][name].value() for name in "xyz"]
        if not np.isfinite(pose).all():
            raise ValueError(f"the pose of its scan {index} is not finite")
        invalid = next((field for field in fields if field == f"{places[0][:9]}InvalidState"), "")
        return Setup(count, places, invalid, fields, (ends[0], ends[1]), is_whole, pose)

    def chunks(self, index: int, names: tuple[str, ...], size: int = ROWS) -> Iterator[PointTable]:
        """The valid points of a setup in its own frame, of `size` records each."""
        setup, lib = self.setups[index], self._module.libe57
        fields = dict.fromkeys((*setup.places, *(FIELDS[name] for name in names)), "f8")
        fields |= {setup.invalid: "i1"} if setup.invalid else {}
        size, done = min(setup.records, size, ROWS), 0
        arrays = {field: np.empty(size, type_) for field, type_ in fields.items()}
        with explained(self.path, "E57 file"):
            buffers, image = lib.VectorSourceDestBuffer(), self._file.image_file
            for field, array in arrays.items() if size else ():
                buffers.append(lib.SourceDestBuffer(image, field, array, size, True, True))
            reader = self._file.get_header(index).points.reader(buffers) if size else None
            try:
                while reader is not None and (rows := reader.read()):
                    done += rows
                    taken = {field: array[:rows] for field, array in arrays.items()}
                    good = taken[setup.invalid] == 0 if setup.invalid else np.ones(rows, bool)
                    taken = {field: values[good] for field, values in taken.items()}
                    yield self._converted(setup, taken, names)
            finally:
                if reader is not None:
                    reader.close()
            if done != setup.records:
                raise ValueError(f"its scan {index} has {done} points of {setup.records}")

    def _converted(
        self, setup: Setup, rows: dict[str, np.ndarray], names: tuple[str, ...]
    ) -> PointTable:
        xyz = np.stack([rows[field] for field in setup.places], axis=1)
        if setup.places == SPHERICAL:
            far, turn, up = xyz.T
            flat = far * np.cos(up)
            xyz = np.stack([flat * np.cos(turn), flat * np.sin(turn), far * np.sin(up)], axis=1)
        columns, (low, high) = {}, setup.colors
        for name in names:
            values, type_ = rows[FIELDS[name]], self.empty.columns[name]
            if name in COLORS:
                top = 256**type_.itemsize - 1
                values = np.rint((values - low) * (top / (high - low))).clip(0, top)
            columns[name] = values.astype(type_)
        return PointTable(xyz, columns, path=self.path)

    def valid(self, index: int) -> int:
        """The number of valid points of a setup, which reads it if some may be invalid."""
        setup = self.setups[index]
        return sum(map(len, self.chunks(index, ()))) if setup.invalid else setup.records

    def problems(self, setups: list[Setup], valid: int) -> list[str]:
        """What is left out of these setups, of which so many points are valid."""
        taken = {*CARTESIAN, *SPHERICAL, *(FIELDS[name] for name in self.empty.columns)}
        rest = sorted({f for s in setups for f in s.fields if f not in taken and f != s.invalid})
        lost = sum(setup.records for setup in setups) - valid
        words = [f"these fields are not read: {short(', '.join(rest))}"] if rest else []
        return words + ([f"{lost:,} points in an invalid state are left out"] if lost else [])

    def _scan(self, number: int, topic: str) -> Scan:
        table = join([self.empty, *self.chunks(number, tuple(self.empty.columns))])
        size = table.xyz.nbytes + sum(values.nbytes for values in table.attributes.values())
        problems = self.problems([self.setups[number]], len(table))
        return Scan(number, 0, f"setup {number}", table, size, (1, len(table)), problems)

    def _pose(self, number: int, topic: str) -> np.ndarray:
        return self.setups[number].pose

    def close(self) -> None:
        self._file.close()


class E57Reader(PointReader):
    """All setups of a file in the frame of the file."""

    def __init__(self, path: Path) -> None:
        with contextlib.closing(E57Log(path, None, None)) as log:
            self._counts = [log.valid(i) for i in range(len(log.setups))]
            several = {"scan": np.zeros(0, np.int32)} if len(self._counts) > 1 else {}
            schema = replace(log.empty, attributes=log.empty.attributes | several)
            super().__init__(path, sum(self._counts), schema)
            self.problems = log.problems(log.setups, self.count)

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        own = tuple(name for name in names if name != "scan")
        with contextlib.closing(E57Log(self.path, None, None)) as log:  # one reader a file
            for index, count in enumerate(self._counts):
                skip, first = min(first, count), max(0, first - count)
                for table in log.chunks(index, own, size) if skip < count else ():
                    columns = table.attributes | {"scan": np.full(len(table), index, np.int32)}
                    columns = {name: columns[name] for name in names}
                    xyz = moved(table.xyz, log.setups[index].pose)
                    if skip < len(table):
                        yield PointTable(xyz, columns, path=self.path).rows(slice(skip, None))
                    skip = max(0, skip - len(table))
