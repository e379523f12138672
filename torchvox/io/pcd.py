# SPDX-License-Identifier: Apache-2.0
"""PCD files (ascii, binary, binary_compressed), whole in memory."""

from __future__ import annotations

import codecs
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._errors import CloudFileError, WrongUseError, short
from torchvox._extras import require
from torchvox.io.roles import COLORS, distinct_names
from torchvox.io.table import PointTable, TableReader, WholeWriter, named, table_of
from torchvox.io.text import decoded
from torchvox.io.words import read_words

if TYPE_CHECKING:
    from pathlib import Path

HEADER_BYTES, LINE_BYTES = 1 << 20, 1 << 18
MOST_VALUES = 1 << 16  # of a point
LZF_EXPANSION = 88  # three bytes stand for 264 at most
PACKED = {"rgb": COLORS, "rgba": (*COLORS, "alpha")}  # 0xAARRGGBB in the bits of 4 bytes
PADDING = "_"
TYPES = ["f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]
VIEWPOINT = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


@dataclass
class PcdSource:
    """viewpoint: position x, y, z and quaternion w, x, y, z."""

    viewpoint: tuple[float, ...]


@dataclass
class Header:
    """fields: (name, type, number of values) each. line: number of the first line of points."""

    fields: list[tuple[str, np.dtype, int]]
    points: int
    places: tuple[int, int]
    data: str
    viewpoint: tuple[float, ...]
    line: int


def open_pcd(path: Path) -> TableReader:
    """Open a PCD file; a packed `rgb` becomes the columns red, green, blue (0-255).

    A field of COUNT k is one column [N, k]; padding is left out.
    """
    lzf = require("pypcd4.pypcd4", "to read PCD files").lzf
    problems: list[str] = []
    try:
        with path.open("rb") as file:
            header = _read_header(file)
            _check_claim(header, file, path.stat().st_size)
            body = file.read()
        fields = _fields(header, body, lzf, problems)
        columns = _columns([field[0] for field in header.fields], fields, problems)
        table, converted = table_of(columns, path, PcdSource(header.viewpoint))
    except (OSError, CloudFileError):
        raise
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        reason = short((str(error) or type(error).__name__).splitlines()[0])
        raise CloudFileError(f"{path} is not a readable PCD file: {reason}") from error
    reader = TableReader(table)
    reader.plain = tuple(n for n in table.attributes if n.isidentifier() and n != "alpha")
    reader.problems += problems + converted
    return reader


def _read_header(file: BinaryIO) -> Header:
    """The header, in any spelling of the versions .5 to .7. The file is behind it then."""
    entries: dict[str, list[str]] = {}
    line = 0
    while "DATA" not in entries:
        raw = file.readline(LINE_BYTES)
        if not raw or len(raw) == LINE_BYTES or file.tell() > HEADER_BYTES:
            raise ValueError("its header does not end")
        line += 1
        words = decoded(raw.removeprefix(codecs.BOM_UTF8) if line == 1 else raw).split()
        if words and not words[0].startswith("#"):
            key = words[0].upper()
            entries["FIELDS" if key == "COLUMNS" else key] = words[1:]
    names = entries.get("FIELDS", [])
    if not names:
        raise ValueError("its header names no FIELDS")
    sizes = _numbers(entries, "SIZE") or [4] * len(names)
    counts = _numbers(entries, "COUNT") or [1] * len(names)
    kinds = entries.get("TYPE", ["F"] * len(names))
    if len({len(names), len(sizes), len(kinds), len(counts)}) != 1:
        raise ValueError("its FIELDS, SIZE, TYPE and COUNT are not as many")
    codes = [f"{kind.lower()}{size}" for kind, size in zip(kinds, sizes, strict=True)]
    if wrong := [code for code in codes if code not in TYPES]:
        raise ValueError(f"PCD has no type {wrong[0][0].upper()} of SIZE {wrong[0][1:]}")
    if not 0 < sum(counts) <= MOST_VALUES:
        raise ValueError(f"it cannot hold points of {sum(counts)} values, {MOST_VALUES} at most")
    width, height = _numbers(entries, "WIDTH"), _numbers(entries, "HEIGHT") or [1]
    points = _numbers(entries, "POINTS") or (width and [width[0] * height[0]])
    if not points:
        raise ValueError("its header has neither POINTS nor WIDTH")
    data = " ".join(entries["DATA"]).lower()
    if data not in ("ascii", "binary", "binary_compressed"):
        raise ValueError(f"its DATA must be ascii, binary or binary_compressed, got {data!r}")
    try:
        viewpoint = tuple(map(float, entries.get("VIEWPOINT", ())))
    except ValueError:
        viewpoint = ()
    viewpoint = viewpoint if len(viewpoint) == len(VIEWPOINT) else VIEWPOINT
    fields = zip(names, [np.dtype(f"<{code}") for code in codes], counts, strict=True)
    places = (width[0], height[0]) if width else (points[0], 1)
    return Header([*fields], points[0], places, data, viewpoint, line + 1)


def _numbers(entries: dict[str, list[str]], key: str) -> list[int]:
    words = entries.get(key, [])
    if wrong := [word for word in words if not re.fullmatch(r"[0-9]{1,18}", word)]:
        raise ValueError(f"its {key} must be whole numbers, got {wrong[0]!r}")
    return [int(word) for word in words]


def _check_claim(header: Header, file: BinaryIO, size: int) -> None:
    """Raises ValueError where a header claims more than its bytes can hold."""
    left, values = size - file.tell(), sum(count for *_, count in header.fields)
    need = header.points * sum(type_.itemsize * count for _, type_, count in header.fields)
    if header.data == "ascii":
        need, left = 2 * values * header.points, left + 1  # a digit and a blank each
    elif header.data == "binary_compressed" and header.points:
        packed, whole = struct.unpack("<II", file.read(8))
        if packed > left - 8 or whole > LZF_EXPANSION * packed:
            raise ValueError(f"{left} bytes cannot hold the compressed {whole} it promises")
        file.seek(-8, 1)
        left = whole
    if need > left:
        raise ValueError(
            f"{left} bytes cannot hold the {header.points} points of {values} values that its "
            "header promises: it is cut short or damaged"
        )
    if header.places[0] * header.places[1] != header.points:
        shown = " x ".join(map(str, header.places))
        raise ValueError(f"its {shown} places are not its {header.points} points")


def _fields(header: Header, body: bytes, lzf: Any, problems: list[str]) -> list[np.ndarray]:
    """The values of each field, [N] or [N, k]."""
    fields, points = header.fields, header.points
    if header.data == "ascii":
        names = [name for name, _, count in fields for _ in range(count)]
        types = [type_ for _, type_, count in fields for _ in range(count)]
        told: list[str] = []
        values = read_words(body, names, types, line=header.line, problems=told)
        problems += dict.fromkeys(told)
        if len(values[0]) != points:
            raise ValueError(f"its header promises {points} points, it holds {len(values[0])}")
        parts = iter(values)
        groups = [[next(parts) for _ in range(count)] for *_, count in fields]
        return [
            g[0] if len(g) == 1 else np.stack(g, axis=1) if g else np.zeros((points, 0))
            for g in groups
        ]
    shapes = [(points,) if count == 1 else (points, count) for *_, count in fields]
    if header.data == "binary":
        row = np.dtype(
            [
                (f"f{i}", t, s[1:])
                for i, ((_, t, _), s) in enumerate(zip(fields, shapes, strict=True))
            ]
        )
        rows = np.frombuffer(body, row, points)
        return [rows[name] for name in row.names or ()]
    packed, whole = struct.unpack("<II", body[:8]) if points else (0, 0)
    data = lzf.decompress(body[8 : 8 + packed], whole) if points else b""
    if data is None or len(data) != whole:
        raise ValueError("its compressed points are damaged")
    at, columns = 0, []
    for (_, type_, _), shape in zip(fields, shapes, strict=True):
        columns.append(np.frombuffer(data, type_, int(np.prod(shape)), at).reshape(shape))
        at += columns[-1].nbytes
    return columns


def _columns(
    names: list[str], fields: list[np.ndarray], problems: list[str]
) -> dict[str, np.ndarray]:
    """Columns by name: no padding, colors unpacked."""
    read = [
        (n, a) for n, a in zip(names, fields, strict=True) if n != PADDING and a.shape[1:] != (0,)
    ]
    problems += [
        f"its {n} has COUNT 0 and is left out"
        for n, a in zip(names, fields, strict=True)
        if a.shape[1:] == (0,)
    ]
    distinct, told = distinct_names([name for name, _ in read])
    problems += told
    columns: dict[str, np.ndarray] = {}
    for name, (_, values) in zip(distinct, read, strict=True):
        packed = values.ndim == 1 and values.dtype.itemsize == 4
        if packed and name in PACKED and not set(PACKED[name]) & {*distinct, *columns}:
            bits = np.ascontiguousarray(values).view(np.uint32)
            for channel, shift in zip(PACKED[name], (16, 8, 0, 24), strict=False):
                columns[channel] = (bits >> shift).astype(np.uint8)
        else:
            columns[name] = values
    return columns


class PcdWriter(WholeWriter):
    """A binary PCD file of height 1; colors of 8 bits are packed as `rgb`, as PCL has them.

    Coordinates are float32, the only ones that PCL takes, where that does not change them: they
    keep their step of the lattice, or without one their value. Else they are float64.
    """

    def save(self, table: PointTable) -> None:
        columns: dict[str, np.ndarray] = {}
        own = named(table)
        own |= zip("xyz", self._coordinates(table).T, strict=True)
        color = "rgba" if "alpha" in own else "rgb"
        packed = PACKED[color]
        pack = color not in own and all(
            name in own and own[name].dtype == np.uint8 for name in packed
        )
        for name, values in own.items():
            if not pack or name not in packed:
                columns[name] = values
            elif name == packed[0]:
                shifts = zip(packed, (16, 8, 0, 24), strict=False)
                bits = sum(own[part].astype(np.uint32) << shift for part, shift in shifts)
                columns[color] = np.asarray(bits, np.uint32)
        for name, values in columns.items():
            if values.dtype.str[1:] not in TYPES or not name.isidentifier() or name == PADDING:
                raise WrongUseError(f"{self.path}: PCD has no field {short(name)}, {values.dtype}")
        source = self.schema.source
        viewpoint = source.viewpoint if isinstance(source, PcdSource) else VIEWPOINT
        counts = [int(np.prod(values.shape[1:])) for values in columns.values()]
        head = {
            "VERSION": ["0.7"],
            "FIELDS": columns,
            "SIZE": [values.dtype.itemsize for values in columns.values()],
            "TYPE": [values.dtype.kind.upper() for values in columns.values()],
            "COUNT": counts,
            "WIDTH": [len(table)],
            "HEIGHT": [1],
            "VIEWPOINT": viewpoint,
            "POINTS": [len(table)],
            "DATA": ["binary"],
        }
        lines = [" ".join(map(str, (key, *words))) for key, words in head.items()]
        self.file.write("".join(f"{line}\n" for line in ("# .PCD v0.7", *lines)).encode())
        fields: Any = [(name, "<" + a.dtype.str[1:], a.shape[1:]) for name, a in columns.items()]
        rows = np.zeros(len(table), np.dtype(fields))
        for name, values in columns.items():
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
        self.problems.append(
            "its coordinates need float64 (SIZE 8), which PCL does not read into its point types:"
            " move them near zero, or write .ply"
        )
        return world
