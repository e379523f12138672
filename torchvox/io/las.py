# SPDX-License-Identifier: Apache-2.0
"""LAS, LAZ and COPC files, read through laspy in chunks; their coordinates stay integers."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from torchvox._util.errors import explained
from torchvox._util.extras import require
from torchvox.io import las_records
from torchvox.io.crs import crs_of
from torchvox.io.las_points import read_header
from torchvox.io.las_records import EVLR, VLR, LasSource, head_records, no_data, records
from torchvox.io.laz import QUIET, check_laz
from torchvox.io.table import CHUNK, COLORS, PointReader, PointTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


EXTRA_COLUMNS = ("intensity", *COLORS, "classification", "return_number")
CLASS_NAMES = (  # of ASPRS; 8 and 12 are those of point formats below 6
    *("never classified", "unclassified", "ground", "low vegetation", "medium vegetation"),
    *("high vegetation", "building", "low point (noise)", "model key-point", "water", "rail"),
    *("road surface", "overlap", "wire guard", "wire conductor", "transmission tower"),
    *("wire connector", "bridge deck", "high noise", "overhead structure", "ignored ground"),
    *("snow", "temporal exclusion"),
)
PACKET = ("wavepacket_index", "wavepacket_offset", "wavepacket_size")
WAVES = (*PACKET, "return_point_wave_location", "x_t", "y_t", "z_t")
LINE_FLAGS = ("scan_direction_flag", "edge_of_flight_line")
FLAGS = ("synthetic", "key_point", "withheld", "overlap", *LINE_FLAGS)
PLAIN = ("classification", "intensity", "scan_angle", "user_data", "point_source_id", "gps_time")
# Of point formats 6 and above: parts that are decompressed on request, and their columns.
LAYERS = {"FLAGS": FLAGS, "RGB": COLORS, "WAVEPACKET": WAVES}
LAYERS |= {name.upper(): (name,) for name in (*PLAIN, "nir")}


class LasReader(PointReader):
    """A reader of a LAS, LAZ or COPC file.

    salvage: read the points that a truncated LAS file still has, and list the problem.
    """

    def __init__(self, path: Path, salvage: bool = False) -> None:
        self._laspy = require("laspy", "to read LAS files")
        if path.suffix.lower() == ".laz":
            require("lazrs", "to read LAZ files")
        with explained(path, "LAS file"):
            source = self._source = read_header(path, salvage)
            self._parallel = False
            if source.laszip:
                with path.open("rb") as file, QUIET:
                    self._parallel = check_laz(file, source)
            source.late, source.late_number = _late_records(path, source.head, source.problems)
            lattice = np.frombuffer(source.head, "<f8", 6, 131).reshape(2, 3).copy()
            if source.count and not (np.isfinite(lattice).all() and lattice[0].all()):
                raise ValueError(
                    "its scales {} and offsets {} give no coordinates".format(*lattice)
                )
            box = _header_box(source)
            xyz, crs = np.zeros((0, 3), np.int32), _crs(source)
            schema = PointTable(xyz, {}, lattice[0], lattice[1], crs, "units", source, path)
            schema.unit = crs_of(schema).unit or "units"
            super().__init__(path, source.count, schema)
            self.header_box = box
            names = source.point_format.dimension_names
            self.schema = self._table(b"", tuple(n for n in names if n not in ("X", "Y", "Z")))
            self.problems = source.problems
            self.plain = tuple(name for name in EXTRA_COLUMNS if name in self.columns)
            nones = {name: no_data(raw) for name, raw in source.extra.items()}
            self.no_data = {name: none for name, none in nones.items() if none is not None}

    def _table(self, data: bytes | bytearray, names: tuple[str, ...]) -> PointTable:
        """The points whose bytes are `data`."""
        format_ = self._source.point_format
        record = self._laspy.PackedPointRecord.from_buffer(data, format_)
        stored, extra = record.array, set(format_.extra_dimension_names)
        return replace(
            self.schema,
            xyz=np.stack([stored[axis] for axis in "XYZ"], axis=1).astype(np.int32, copy=False),
            attributes={n: np.array((stored if n in extra else record)[n]) for n in names},
            steps={name: pair for name, pair in self._source.steps.items() if name in names},
        )

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        if first == self.count:
            return
        width = self._source.width
        with self.path.open("rb") as file:
            with explained(self.path, "LAS file"):
                read = self._opened(file, first, names)
            for at in range(first, self.count, size):
                with explained(self.path, "LAS file"):
                    data = read(min(size, self.count - at))
                    if len(data) != width * min(size, self.count - at):
                        own = at + len(data) // width
                        raise ValueError(f"its header promises {self.count} points, it holds {own}")
                    table = self._table(data, names)
                yield table

    def _opened(
        self, file: BinaryIO, first: int, names: tuple[str, ...]
    ) -> Callable[[int], bytes | bytearray]:
        """A function that returns the bytes of the next points of an open file, from `first` on."""
        source = self._source
        if not source.laszip:
            file.seek(source.start + first * source.width)
            return lambda count: file.read(count * source.width)
        lazrs = require("lazrs", "to read LAZ files")
        layers = self._laspy.DecompressionSelection
        selection = layers.base() | layers.Z
        for layer, columns in LAYERS.items():
            if set(columns) & set(names):
                selection |= layers[layer]
        if set(source.point_format.extra_dimension_names) & set(names):
            selection |= layers.ALL_EXTRA_BYTES
        file.seek(source.start)
        kind = lazrs.ParLasZipDecompressor if self._parallel else lazrs.LasZipDecompressor
        with QUIET:
            decompressor = kind(file, source.laszip, selection.to_lazrs())

        def read(count: int) -> bytearray:
            data = bytearray(count * source.width)
            with QUIET:
                decompressor.decompress_many(data)
            return data

        if self._parallel and first:
            with QUIET:
                decompressor.seek(first)
        elif first:  # one chunk can be decoded only from its start
            for at in range(0, first, CHUNK):
                read(min(CHUNK, first - at))
        return read


def _late_records(path: Path, head: bytes, problems: list[str]) -> tuple[np.ndarray, int]:
    start, number = struct.unpack_from("<QI", head, 235) if head[25] >= 4 else (0, 0)
    if head[25] == 3 and head[6] & 2:  # version 1.3 has at most one: the waveforms
        start = struct.unpack_from("<Q", head, 227)[0]
        number = int(start > 0)
    if not number:
        return np.zeros(0, np.uint8), 0
    late = np.memmap(path, np.uint8, "r")[start:]
    try:
        end = sum(len(whole) for _, whole in records(late, number, EVLR))
    except ValueError:
        problems.append(f"its {number} extended records do not fit its size and are ignored")
        return late[:0], 0
    return late[:end], number


def _header_box(source: LasSource) -> np.ndarray | None:
    box = np.frombuffer(source.head, "<f8", 6, 179).reshape(3, 2).T[::-1]
    if not source.count:
        return None
    if box.any() and np.isfinite(box).all() and (box[0] <= box[1]).all():
        return box
    source.problems.append("the box of its header is not that of its points")
    return None


def _crs(source: LasSource) -> str | None:
    """The text of the WKT record, else of the GeoTIFF keys; None without both."""
    early = dict(head_records(source.head)[1])
    late = dict(records(source.late, source.late_number, EVLR))
    for key in (las_records.WKT, las_records.CITATION):
        for by_key, head in ((early, VLR), (late, EVLR)):
            if key in by_key:
                data = bytes(by_key[key][head:])
                return data.split(b"\0")[0].decode("utf-8", "replace").strip("| ") or None
    return None


def class_title(source: object, code: float) -> str:
    """A code of a class, for LAS files with its ASPRS name. source: that of a table."""
    known = isinstance(source, LasSource) and code in range(len(CLASS_NAMES))
    return f"{code:g} {CLASS_NAMES[int(code)]}" if known else f"{code:.15g}"
