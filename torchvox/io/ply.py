# SPDX-License-Identifier: Apache-2.0
"""PLY files, ascii and of both byte orders: the points of the element `vertex`."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchvox._errors import CloudFileError, WrongUseError, short
from torchvox.io.table import PointTable, PointWriter, TableReader, flat, named, stacked
from torchvox.io.text import text_form, text_rows

HEADER_BYTES = 1 << 20
MOST_PROPERTIES = 1 << 12
NAMES = ["char", "uchar", "short", "ushort", "int", "uint", "float", "double"]
CODES = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
SIZED = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"]
TYPES = dict(zip(NAMES + SIZED, CODES + CODES, strict=True))
SPELLED = dict(zip(CODES, NAMES, strict=True))
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


@dataclass
class Element:
    """properties: name -> type, or (type of the count, type of the values) of a list."""

    name: str
    count: int
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def lists(self) -> list[str]:
        return [name for name, type_ in self.properties.items() if isinstance(type_, tuple)]

    def dtype(self, order: str) -> np.dtype:
        """Of the properties that are no lists."""
        plain = [(n, t) for n, t in self.properties.items() if not isinstance(t, tuple)]
        return np.dtype([(name, order + type_) for name, type_ in plain])


@dataclass
class PlySource:
    """format: a key of ORDERS. remarks: the lines `comment` and `obj_info`."""

    format: str
    remarks: list[str]


def open_ply(path: Path) -> TableReader:
    """Open a PLY file, binary ones mapped into memory; lists and other elements are left out."""
    try:
        with path.open("rb") as file:
            source, elements = _read_header(file)
            start = file.tell()
        at = next((i for i, e in enumerate(elements) if e.name == "vertex"), None)
        if at is None:
            raise ValueError("it has no element vertex")
        rows = _rows(path, start, source.format, elements[: at + 1])
        if not {"x", "y", "z"} <= set(rows.dtype.names or ()):
            raise ValueError("its vertices have no x, y, z")
        columns = {name: rows[name] for name in rows.dtype.names or ()}
        attributes = {name: a for name, a in columns.items() if name not in ("x", "y", "z")}
        table = PointTable(_xyz(rows), attributes, source=source, path=path)
    except OSError:
        raise
    except Exception as error:  # numbers of any size, text that is none
        reason = short((str(error) or type(error).__name__).splitlines()[0])
        raise CloudFileError(f"{path} is not a readable PLY file: {reason}") from error
    reader = TableReader(table)
    vertex = elements.pop(at)
    reader.problems += [f"its list {short(name)} is left out" for name in vertex.lists]
    reader.problems += [f"its {e.count} {short(e.name)} are left out" for e in elements if e.count]
    return reader


def _xyz(rows: np.ndarray) -> np.ndarray:
    """x, y, z in place if they lie side by side in one type."""
    held: Any = rows.dtype.fields
    fields = [held[axis] for axis in "xyz"]
    type_, at = fields[0][:2]
    beside = all(f[:2] == (type_, at + i * type_.itemsize) for i, f in enumerate(fields))
    if not beside or type_.kind != "f" or not len(rows):
        return stacked({axis: rows[axis] for axis in "xyz"})
    step = rows.dtype.itemsize
    return np.ndarray((len(rows), 3), type_, rows, at, (step, type_.itemsize))


def _read_header(file: BinaryIO) -> tuple[PlySource, list[Element]]:
    lines: list[str] = []
    while not lines or lines[-1] != "end_header":
        raw = file.readline(HEADER_BYTES - file.tell() + 1)
        if not raw.endswith(b"\n") or file.tell() > HEADER_BYTES:
            raise ValueError("its header does not end")
        lines.append(raw.decode("utf-8", "surrogateescape").strip())
        if lines[0] != "ply":
            raise ValueError("it does not begin with ply")
    remarks = [line for line in lines if line.split(" ")[0] in ("comment", "obj_info")]
    words = [line.split() for line in lines[1:-1] if line and line not in remarks]
    if not words or words[0][:1] != ["format"] or words[0][1] not in ORDERS:
        raise ValueError("its header names no known format")
    elements: list[Element] = []
    for line in words[1:]:
        if line[0] == "element" and len(line) == 3 and re.fullmatch(r"\d{1,18}", line[2]):
            elements.append(Element(line[1], int(line[2])))
        elif line[0] == "property" and elements:
            *types, name = line[1:]
            held = elements[-1].properties
            if name in held or len(held) >= MOST_PROPERTIES:
                raise ValueError(f"it has too many properties named {name}")
            if types[:1] == ["list"]:
                count, value = (TYPES[word] for word in types[1:])
                if count[0] == "f":
                    raise ValueError("the count of a list must be whole")
                held[name] = (count, value)
            else:
                (held[name],) = (TYPES[word] for word in types)
        else:
            raise ValueError(f"its header has the line {' '.join(line)!r}")
    return PlySource(words[0][1], remarks), elements


def _rows(path: Path, start: int, format_: str, elements: list[Element]) -> np.ndarray:
    """The last of the elements as a structured array [N]."""
    vertex, order = elements[-1], ORDERS[format_]
    type_ = vertex.dtype(order or "=")
    if not order:
        return _text_rows(path, start, elements, type_)
    data: Any = np.memmap(path, np.uint8, "r", start) if path.stat().st_size > start else b""
    at = 0
    for element in elements[:-1]:
        at = _walk(data, at, element, order)
    parts: list[bytes] = []
    if vertex.lists:
        _walk(data, at, vertex, order, parts)
        return np.frombuffer(b"".join(parts), type_)
    _within(at + vertex.count * type_.itemsize, data)
    return np.ndarray((vertex.count,), type_, data, at) if vertex.count else np.zeros(0, type_)


def _within(end: int, data: Any) -> None:
    if end > len(data):
        raise ValueError(f"its {len(data)} bytes do not hold what its header promises")


def _walk(data: Any, at: int, element: Element, order: str, parts: Any = None) -> int:
    """Where an element ends; what is no list goes to `parts`."""
    if not element.lists:
        at += element.count * element.dtype(order).itemsize
        _within(at, data)
        return at
    types = list(element.properties.values())
    for _ in range(element.count):
        for type_ in types:
            if isinstance(type_, tuple):
                wide, many = int(type_[0][1]), int(type_[1][1])
                _within(at + wide, data)
                count = np.frombuffer(data, order + type_[0], 1, at)[0]
                at += wide + many * max(int(count), 0)
            else:
                if parts is not None:
                    parts.append(bytes(data[at : at + int(type_[1])]))
                at += int(type_[1])
        _within(at, data)
    return at


def _text_rows(path: Path, start: int, elements: list[Element], type_: np.dtype) -> np.ndarray:
    vertex = elements[-1]
    before = sum(e.count for e in elements[:-1] if e.properties)
    need = 2 * vertex.count * len(type_.names or ())  # a digit and a blank each
    if need > path.stat().st_size - start + 1:
        raise ValueError(f"its bytes do not hold the {vertex.count} points that it promises")
    with path.open("rb") as file:
        file.seek(start)
        lines = (line for line in file if line.strip())
        if any(next(lines, None) is None for _ in range(before)):
            raise ValueError("it is cut short")
        wanted = [line for _, line in zip(range(vertex.count), lines, strict=False)]
    if len(wanted) != vertex.count:
        raise ValueError(f"it holds {len(wanted)} of the {vertex.count} points that it promises")
    if not wanted:
        return np.zeros(0, type_)
    if vertex.lists:
        wanted = [_without_lists(line.split(), vertex) for line in wanted]
    return np.loadtxt(io.BytesIO(b"\n".join(wanted)), type_, comments=None, ndmin=1)


def _without_lists(words: list[bytes], element: Element) -> bytes:
    kept, at = [], 0
    for type_ in element.properties.values():
        if isinstance(type_, tuple):
            at += 1 + max(int(words[at]), 0)
        else:
            kept.append(words[at])
            at += 1
    return b" ".join(kept)


class PlyWriter(PointWriter):
    """A PLY file in the form of the source if that is one, else binary, lowest byte first.

    Points go to a file without a name until their number is known.
    """

    def __init__(self, file: BinaryIO, like: Any, path: Path) -> None:
        super().__init__(file, like, path)
        source = self.schema.source
        self._source = (
            source if isinstance(source, PlySource) else PlySource("binary_little_endian", [])
        )
        columns = flat(named(self.schema))
        for name, values in columns.items():
            if values.dtype.str[1:] not in SPELLED or name.split() != [name]:
                raise WrongUseError(f"{path}: PLY has no property {short(name)}, {values.dtype}")
        order = ORDERS[self._source.format] or "<"
        self._type = np.dtype([(n, order + a.dtype.str[1:]) for n, a in columns.items()])
        self._body = tempfile.TemporaryFile(dir=Path(file.name).parent)  # noqa: SIM115

    def write(self, table: PointTable) -> None:
        columns = flat(named(table))
        if not ORDERS[self._source.format]:
            forms = [text_form(values.dtype) for values in columns.values()]
            self._body.write(text_rows(columns.values(), forms))
            return
        rows = np.zeros(len(table), self._type)
        for name, values in columns.items():
            rows[name] = values
        self._body.write(rows.tobytes())

    def close(self) -> None:
        fields = (self._type.fields or {}).items()
        lines = [
            *("ply", f"format {self._source.format} 1.0", *self._source.remarks),
            f"element vertex {self.count}",
            *(f"property {SPELLED[type_.str[1:]]} {name}" for name, (type_, *_) in fields),
            "end_header",
        ]
        self.file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        self._body.seek(0)
        shutil.copyfileobj(self._body, self.file)
