# SPDX-License-Identifier: Apache-2.0
"""LAS, LAZ and COPC files, read through laspy in chunks; their coordinates stay integers."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._errors import CloudFileError, explained
from torchvox._extras import require
from torchvox.io.las_records import (
    CITATION,
    EVLR,
    EXTRA,
    VLR,
    WKT,
    LasSource,
    descriptors,
    head_records,
    no_data,
    records,
)
from torchvox.io.laz import check_laz
from torchvox.io.table import COLORS, PointReader, PointTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import laspy

EXTRA_COLUMNS = ("intensity", *COLORS, "classification", "return_number")
LINEAR_UNIT_KEY = 3076  # GeoTIFF ProjLinearUnitsGeoKey
LINEAR_UNITS = {9001: "m", 9002: "ft", 9003: "US ft"}
WAVES = (
    *("wavepacket_index", "wavepacket_offset", "wavepacket_size", "return_point_wave_location"),
    *("x_t", "y_t", "z_t"),
)
LAYERS = {  # of point formats 6 and above: what need not be decompressed, and its columns
    "CLASSIFICATION": ("classification",),
    "FLAGS": (
        *("synthetic", "key_point", "withheld", "overlap"),
        *("scan_direction_flag", "edge_of_flight_line"),
    ),
    "INTENSITY": ("intensity",),
    "SCAN_ANGLE": ("scan_angle",),
    "USER_DATA": ("user_data",),
    "POINT_SOURCE_ID": ("point_source_id",),
    "GPS_TIME": ("gps_time",),
    "RGB": COLORS,
    "NIR": ("nir",),
    "WAVEPACKET": WAVES,
}


class LasReader(PointReader):
    """A LAS, LAZ or COPC file.

    salvage: take the points that are there when a LAS file is cut short, and list the problem.
    """

    def __init__(self, path: Path, salvage: bool = False) -> None:
        laspy = require("laspy", "to read LAS files")
        if path.suffix.lower() == ".laz":
            require("lazrs", "to read LAZ files")
        _check_sizes(path)
        # laspy would parse the extended records, which may be large.
        with (
            explained(path, "LAS file"),
            laspy.open(path, read_evlrs=False) as file,
            path.open("rb") as raw,
        ):
            header = self._header = file.header
            problems = _check_header(header, path.stat().st_size, salvage)
            self._parallel = self._serial = False
            if header.are_points_compressed and header.point_count:
                self._parallel = check_laz(raw, header)
                self._serial = not self._parallel
            head = raw.read(header.offset_to_point_data) if not raw.seek(0) else b""
            late, number = _late_records(path, head, problems)
            source = LasSource(head, late, number, header.point_format)
            self._extra = {d.name for d in header.point_format.extra_dimensions}
            empty = laspy.ScaleAwarePointRecord.empty(
                header.point_format, header.scales, header.offsets
            )
            schema = self._table(empty, tuple(_columns(header)))
            schema.crs, schema.unit, schema.source = _crs(source), _unit(header), source
            super().__init__(path, header.point_count, schema)
            self.problems = problems
            self.plain = tuple(name for name in EXTRA_COLUMNS if name in schema.attributes)
            self.no_data = _no_data(source)

    @property
    def header_box(self) -> np.ndarray | None:
        box = np.array([self._header.mins, self._header.maxs], np.float64)
        if self.count and box.any() and np.isfinite(box).all() and (box[0] <= box[1]).all():
            return box
        return None

    def _table(self, points: Any, names: tuple[str, ...]) -> PointTable:
        stored = points.array
        attributes = {
            name: np.array(stored[name] if name in self._extra else points[name]) for name in names
        }
        xyz = np.stack([stored[axis] for axis in "XYZ"], axis=1)
        schema = getattr(self, "schema", None)
        return PointTable(
            np.ascontiguousarray(xyz, np.int32),
            attributes,
            np.array(self._header.scales, np.float64),
            np.array(self._header.offsets, np.float64),
            *((schema.crs, schema.unit, schema.source, self.path) if schema is not None else ()),
        )

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        if first == self.count:
            return
        laspy = require("laspy", "to read LAS files")
        backends, layers = laspy.LazBackend, laspy.DecompressionSelection
        wanted = layers.base() | layers.Z
        for layer, held in LAYERS.items():
            if set(held) & set(names):
                wanted |= layers[layer]
        if self._extra & set(names):
            wanted |= layers.ALL_EXTRA_BYTES
        with contextlib.ExitStack() as stack:
            with explained(self.path, "LAS file"):
                file = stack.enter_context(
                    laspy.open(
                        self.path,
                        read_evlrs=False,
                        decompression_selection=wanted,
                        laz_backend=(backends.LazrsParallel if self._parallel else backends.Lazrs,),
                    )
                )
                if self._serial:  # its one chunk is decoded from the start anyway
                    for at in range(0, first, size):
                        file.read_points(min(size, first - at))
                elif first:
                    file.seek(first)
            for at in range(first, self.count, size):
                with explained(self.path, "LAS file"):
                    points = file.read_points(min(size, self.count - at))
                    if len(points) != min(size, self.count - at):
                        raise ValueError(
                            f"its header promises {self.count} points, it holds {at + len(points)}"
                        )
                    table = self._table(points, names)
                yield table


def _late_records(path: Path, head: bytes, problems: list[str]) -> tuple[np.ndarray, int]:
    start, number = 0, 0
    if head[25] >= 4:
        start, number = struct.unpack_from("<QI", head, 235)
    elif head[25] == 3 and head[6] & 2:  # version 1.3 has one at most: the waveforms
        start = struct.unpack_from("<Q", head, 227)[0]
        number = int(start > 0)
    late = np.zeros(0, np.uint8)
    if not number:
        return late, 0
    size, end = path.stat().st_size, start
    with path.open("rb") as file:
        for _ in range(number):
            if end + EVLR > size:
                break
            file.seek(end + 20)
            end += EVLR + int.from_bytes(file.read(8), "little")
            if end > size:
                break
        else:
            return np.memmap(path, np.uint8, "r", start, (end - start,)), number
    problems.append(f"its {number} extended records do not fit its size and are left out")
    return late, 0


def _check_sizes(path: Path) -> None:
    """Refuse a header whose own numbers do not fit the file: laspy would loop over them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(375).ljust(375, b"\0")
    if header[:4] != b"LASF":
        raise CloudFileError(f"{path} is not a LAS file: it does not begin with LASF")
    header_size, data_start, records = struct.unpack_from("<HII", header, 94)
    late_records = struct.unpack_from("<I", header, 243)[0] if header[25] >= 4 else 0
    if data_start > size or header_size + 54 * records > data_start or 60 * late_records > size:
        raise CloudFileError(f"{path} is cut short or damaged: its header does not fit its size")


def _check_header(header: laspy.LasHeader, size: int, salvage: bool) -> list[str]:
    """Problems of a header. Raises ValueError for those that leave no points."""
    points, width = header.point_count, header.point_format.size
    if not points:
        return []
    problems = []
    fitting = (size - header.offset_to_point_data) // width
    if not header.are_points_compressed and points > fitting:
        sentence = (
            f"{size} bytes cannot hold the {points} points that its header promises: it is cut "
            "short or damaged"
        )
        if not salvage:
            raise ValueError(sentence)
        header.point_count = fitting
        problems.append(sentence)
    scales, offsets = np.asarray(header.scales), np.asarray(header.offsets)
    if not (np.isfinite(scales).all() and scales.all() and np.isfinite(offsets).all()):
        raise ValueError(f"its scales {scales} and offsets {offsets} give no coordinates")
    low, high = np.asarray(header.mins), np.asarray(header.maxs)
    if not (low.any() or high.any()) or not (low <= high).all():
        problems.append("the box of its header is not that of its points")
    if len(header.vlrs.get("ExtraBytesVlr")) > 1:
        problems.append("it describes its extra bytes more than once: the first counts")
    return problems


def _columns(header: laspy.LasHeader) -> Iterator[str]:
    return (name for name in header.point_format.dimension_names if name not in ("X", "Y", "Z"))


def _no_data(source: LasSource) -> dict[str, np.ndarray]:
    """Of the first description of extra bytes; laspy drops these values from its point format."""
    held = set(source.point_format.extra_dimension_names)
    for key, whole in head_records(source.head)[1]:
        if key == EXTRA:
            structs = descriptors(whole)
            found = {name: no_data(raw) for name, raw in structs.items() if name in held}
            return {name: none for name, none in found.items() if none is not None}
    return {}


def _crs(source: LasSource) -> str | None:
    """The text of the WKT record, else that of the GeoTIFF keys; None without both."""
    found = dict(head_records(source.head)[1])
    late = dict(records(source.late, source.late_number, EVLR))
    for key in (WKT, CITATION):
        for held, head in ((found, VLR), (late, EVLR)):
            if key in held:
                data = bytes(held[key][head:])
                return data.split(b"\0")[0].decode("utf-8", "replace").strip("| ") or None
    return None


def _unit(header: laspy.LasHeader) -> str:
    """Unit of the coordinates from the GeoTIFF keys; "units" when the file does not say."""
    for record in header.vlrs:
        for key in getattr(record, "geo_keys", ()):
            if key.id == LINEAR_UNIT_KEY:
                return LINEAR_UNITS.get(key.value_offset, "units")
    return "units"
