# SPDX-License-Identifier: Apache-2.0
"""PCD files (ascii, binary, binary_compressed), read and written whole."""

from __future__ import annotations

import codecs
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from torchvox._util.errors import explained, short
from torchvox._util.extras import require
from torchvox.io.roles import COLORS, distinct_names
from torchvox.io.table import PointTable, TableReader, WholeWriter, named, table_of
from torchvox.io.words import are_numbers, decoded, number, read_words

if TYPE_CHECKING:
    from pathlib import Path

HEADER_BYTES, LINE_BYTES = 1 << 20, 1 << 18
MOST_VALUES = 1 << 16  # of a point
LZF_EXPANSION = 88  # three bytes stand for 264 at most
PACKED = {"rgb": COLORS, "rgba": (*COLORS, "alpha")}  # 0xAARRGGBB in the bits of 4 bytes
SHIFTS = (16, 8, 0, 24)
PADDING = "_"
TYPES = ["f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]
SIZES = ("WIDTH", "HEIGHT", "POINTS")
VIEWPOINT = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


@dataclass
class Header:
    """The header of a PCD file.

    fields: name, type and number of values of each. places: WIDTH times HEIGHT.
    viewpoint: x, y, z and quaternion w, x, y, z. line: number of the first line of points.
    """

    fields: list[tuple[str, np.dtype, int]]
    points: int
    places: int
    data: str
    viewpoint: tuple[float, ...]
    line: int


def open_pcd(path: Path) -> TableReader:
    """A reader of a PCD file; a packed `rgb` becomes the columns red, green, blue (0-255).

    A field of COUNT k is one column [N, k]; padding is skipped.
    """
    require("pypcd4", "to read PCD files")
    problems: list[str] = []
    with explained(path, "PCD file"), path.open("rb") as file:
        header = _read_header(file, problems)
        _check_claim(header, file, path.stat().st_size)
        columns = _columns(header, file.read(), problems)
        table, converted = table_of(columns, path, header)
    reader = TableReader(table, problems + converted)
    reader.plain = tuple(n for n in table.attributes if n.isidentifier() and n != "alpha")
    return reader


def _read_header(file: BinaryIO, problems: list[str]) -> Header:
    """The header, in the spellings of versions .5 to .7 and their writers."""
    entries: dict[str, list[str]] = {}
    line = 0
    while "DATA" not in entries:
        raw = file.readline(LINE_BYTES)
        if not raw or len(raw) == LINE_BYTES or file.tell() > HEADER_BYTES:
            raise ValueError("its header does not end")
        line += 1
        words = decoded(raw.removeprefix(codecs.BOM_UTF8)).split()
        if words and not words[0].startswith("#"):
            key = words[0].upper()
            entries["FIELDS" if key == "COLUMNS" else key] = words[1:]
    names = entries.get("FIELDS", [])
    if not names:
        missing = [key for key in ("FIELDS", "SIZE", "TYPE", *SIZES) if key not in entries]
        raise ValueError(f"its header has no {', '.join(missing)}")
    for key in ("SIZE", "COUNT", *SIZES):
        if odd := [w for w in entries.get(key, ()) if not re.fullmatch("[0-9]{1,18}", w)]:
            raise ValueError(f"its {key} must be whole numbers, got {odd[0]!r}")
    usual = {"TYPE": ["F"], "SIZE": ["4"], "COUNT": ["1"]}
    types, sizes, counts = (entries.get(k, words * len(names)) for k, words in usual.items())
    if not len(names) == len(types) == len(sizes) == len(counts):
        raise ValueError("its FIELDS, SIZE, TYPE and COUNT have different lengths")
    fields, empty = [], []
    for name, kind, size, count in zip(names, types, sizes, map(int, counts), strict=True):
        if f"{kind}{size}".lower() not in TYPES:
            raise ValueError(f"PCD has no type {kind} of SIZE {size}")
        if count:
            fields.append((name, np.dtype(f"<{kind.lower()}{size}"), count))
        else:
            empty.append(name)
    if empty:
        problems.append(f"its fields {short(', '.join(empty))} have COUNT 0 and no values")
    width, height, points = (int((entries.get(key) or ["-1"])[0]) for key in SIZES)
    if max(width, points) < 0:
        raise ValueError("its header has neither POINTS nor WIDTH")
    places = width * abs(height) if width >= 0 else points
    data = " ".join(entries["DATA"]).lower()
    if data not in ("ascii", "binary", "binary_compressed"):
        raise ValueError(f"its DATA must be ascii, binary or binary_compressed, got {data!r}")
    words = entries.get("VIEWPOINT", [])
    good = len(words) == len(VIEWPOINT) and are_numbers(words)
    viewpoint = tuple(map(number, words)) if good else VIEWPOINT
    return Header(fields, places if points < 0 else points, places, data, viewpoint, line + 1)


def _check_claim(header: Header, file: BinaryIO, size: int) -> None:
    """Raises ValueError if a header claims more than the bytes after it can hold."""
    left, values = size - file.tell(), sum(count for *_, count in header.fields)
    need = header.points * sum(type_.itemsize * count for _, type_, count in header.fields)
    if header.data == "ascii":
        need, left = 2 * values * header.points, left + 1  # a digit and a blank each
    elif header.data == "binary_compressed" and header.points:
        packed, whole = struct.unpack("<II", file.read(8))
        file.seek(-8, 1)
        if packed > left - 8 or whole > LZF_EXPANSION * packed:
            raise ValueError(f"{left} bytes cannot hold the compressed {whole} it promises")
        left = whole
    if not 0 < values <= MOST_VALUES or need > left:
        claim = f"the {header.points} points of {values} values that its header promises"
        raise ValueError(f"{left} bytes cannot hold {claim}: it is cut short or damaged")
    if header.places != header.points:
        raise ValueError(f"WIDTH x HEIGHT is {header.places}, but POINTS is {header.points}")


def _columns(header: Header, body: bytes, problems: list[str]) -> dict[str, np.ndarray]:
    """The fields by name, [N] or [N, k], without padding and with colors unpacked."""
    both = zip(header.fields, _values(header, body, problems), strict=True)
    fields = [(name, values) for (name, *_), values in both if name != PADDING]
    names, repeated = distinct_names([name for name, _ in fields])
    problems += repeated
    columns: dict[str, np.ndarray] = {}
    for name, (_, field) in zip(names, fields, strict=True):
        packed = name in PACKED and field.ndim == 1 and field.dtype.itemsize == 4
        if not packed or set(PACKED[name]) & {*names, *columns}:
            columns[name] = field
            continue
        if header.data == "ascii" and field.dtype.kind == "f" and np.isnan(field).any():
            problems.append(f"its {name} is NaN at some points, which have no real colors")
        columns |= channels(name, field)
    return columns


def channels(name: str, field: np.ndarray) -> dict[str, np.ndarray]:
    """The colors, [N] uint8 each, of a field [N] of PACKED in native byte order."""
    bits = np.ascontiguousarray(field).view(np.uint32)
    both = zip(PACKED[name], SHIFTS, strict=False)
    return {channel: (bits >> shift).astype(np.uint8) for channel, shift in both}


def _values(header: Header, body: bytes, problems: list[str]) -> list[np.ndarray]:
    """The values of each field, [N] or [N, k]."""
    names, types, counts = (list(each) for each in zip(*header.fields, strict=True))
    points = header.points
    if header.data == "ascii":
        each = [np.repeat(np.array(a, object), counts).tolist() for a in (names, types)]
        values = read_words(body, *each, line=header.line, problems=problems)
        if len(values[0]) != points:
            raise ValueError(f"its header promises {points} points, it holds {len(values[0])}")
        ends = np.cumsum(counts)
        groups = [values[end - count : end] for end, count in zip(ends, counts, strict=True)]
        return [g[0] if len(g) == 1 else np.stack(g, axis=1) for g in groups]
    rows = [np.dtype((t, (k,) if k > 1 else ())) for t, k in zip(types, counts, strict=True)]
    if header.data == "binary":
        table = np.frombuffer(body, [(f"f{i}", row) for i, row in enumerate(rows)], points)
        return [table[name] for name in table.dtype.names or ()]
    if not points:
        return [np.zeros(0, row) for row in rows]
    packed, whole = struct.unpack("<II", body[:8])
    lzf = require("pypcd4.pypcd4", "to read PCD files").lzf
    data = lzf.decompress(body[8 : 8 + packed], whole)
    if len(data or b"") != whole:
        raise ValueError("its compressed points are damaged")
    starts = np.cumsum([0, *(points * row.itemsize for row in rows)])  # field by field
    return [np.frombuffer(data, row, points, at) for row, at in zip(rows, starts, strict=False)]


class PcdWriter(WholeWriter):
    """A writer of binary PCD files of height 1; colors of 8 bits are packed as `rgb`, as in PCL.

    Coordinates are float32, which PCL needs, if that does not change them: neither their step of
    the lattice nor, without a lattice, their value. Else they are float64.
    """

    def save(self, table: PointTable) -> None:
        own = named(table)
        own |= zip("xyz", self._coordinates(table).T, strict=True)
        color = "rgba" if "alpha" in own else "rgb"
        parts = [own[name] for name in PACKED[color] if name in own]
        packable = [a.dtype.str for a in parts] == ["|u1"] * len(PACKED[color])
        if packable and color not in own:
            bits = (a.astype(np.uint32) << shift for a, shift in zip(parts, SHIFTS, strict=False))
            own = {color if name == "red" else name: a for name, a in own.items()}
            own[color] = np.bitwise_or.reduce([*bits])
            own = {name: a for name, a in own.items() if name not in PACKED[color]}
        for name, values in own.items():
            if values.dtype.str[1:] not in TYPES or not name.isidentifier() or name == PADDING:
                raise self.error(f"PCD has no field {short(name)}, {values.dtype}")
        source = self.schema.source
        viewpoint = source.viewpoint if isinstance(source, Header) else VIEWPOINT
        type_ = np.dtype([(name, "<" + a.dtype.str[1:], a.shape[1:]) for name, a in own.items()])
        columns = [np.dtype((a.dtype, a.shape[1:])) for a in own.values()]
        head = {
            "FIELDS": own,
            "SIZE": [column.base.itemsize for column in columns],
            "TYPE": [column.base.kind.upper() for column in columns],
            "COUNT": [int(np.prod(column.shape)) for column in columns],
            "WIDTH": [len(table)],
            "HEIGHT": [1],
            "VIEWPOINT": viewpoint,
            "POINTS": [len(table)],
        }
        lines = [" ".join(map(str, (key, *words))) for key, words in head.items()]
        lines = ["# .PCD v0.7", "VERSION 0.7", *lines, "DATA binary"]
        self.file.write("".join(f"{line}\n" for line in lines).encode())
        rows = np.zeros(len(table), type_)
        for name, values in own.items():
            rows[name] = values
        self.file.write(rows.tobytes())

    def _coordinates(self, table: PointTable) -> np.ndarray:
        world = table.xyz if table.scale is None else table.world()
        if world.dtype == np.float32 or not len(world):
            return world
        with np.errstate(over="ignore", invalid="ignore"):
            small = world.astype(np.float32)
            if table.scale is None or table.offset is None:
                same = np.array_equal(small, world, equal_nan=True)
            else:
                same = np.array_equal(np.rint((small - table.offset) / table.scale), table.xyz)
        if same:
            return small
        rule = "its coordinates need float64 (SIZE 8), which PCL does not read into its point types"
        self.problems.append(f"{rule}: move them near zero, or write .ply")
        return world
