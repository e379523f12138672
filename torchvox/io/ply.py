# SPDX-License-Identifier: Apache-2.0
"""PLY files, ascii and in both byte orders: the points of the element `vertex`."""

from __future__ import annotations

import codecs
import io
import itertools
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from torchvox._util.errors import explained, short
from torchvox.io.roles import distinct_names
from torchvox.io.table import PointTable, PointWriter, TableReader, flat, named, table_of
from torchvox.io.text import TextSource, text_form, text_rows
from torchvox.io.words import EXACT, decoded, read_words

HEADER_BYTES = 1 << 20
MOST_PROPERTIES = 1 << 12
NAMES = ["char", "uchar", "short", "ushort", "int", "uint", "float", "double"]
CODES = ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8"]
SIZED = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float32", "float64"]
TYPES = dict(zip(NAMES + SIZED, CODES + CODES, strict=True))
SPELLED = dict(zip(CODES, NAMES, strict=True))
VERTICES = ("vertex", "vertices", "point", "points")
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}

BEHIND = "bytes follow the points that its header promises, and are ignored"


@dataclass
class Element:
    """An element of a header.

    properties: name -> type, or (type of the count, type of the values) of a list.
    """

    name: str
    count: int
    properties: dict[str, str | tuple[str, str]] = field(default_factory=dict)

    @property
    def lists(self) -> list[str]:
        return [name for name, type_ in self.properties.items() if isinstance(type_, tuple)]

    def dtype(self, order: str) -> np.dtype:
        """The type of one row of the properties that are not lists."""
        plain = [(n, t) for n, t in self.properties.items() if not isinstance(t, tuple)]
        return np.dtype([(name, order + type_) for name, type_ in plain])


@dataclass
class PlySource:
    """The form of a file. format: a key of ORDERS. remarks: lines `comment` and `obj_info`."""

    format: str
    remarks: list[str]


def open_ply(path: Path) -> TableReader:
    """A reader of a PLY file, mapped into memory if it is binary; lists and other elements are
    ignored.

    Three properties r, g, b are red, green, blue. An ascii column has a wider type if the declared
    one does not hold its numbers.
    """
    problems: list[str] = []
    with explained(path, "PLY file"):
        with path.open("rb") as file:
            source, elements = _read_header(file, problems)
            start = file.tell()
        at = next((i for i, e in enumerate(elements) if e.name.lower() in VERTICES), None)
        if at is None:
            raise ValueError("it has no element vertex")
        if source.format == "ascii":
            columns = _text_columns(path, start, elements, at, problems)
        else:
            columns = _columns(path, start, ORDERS[source.format], elements, at, problems)
        table, converted = table_of(columns, path, source)
    ignored = [f"its list {short(name)} is ignored" for name in elements.pop(at).lists]
    ignored += [f"its {e.count} {short(e.name)} are ignored" for e in elements if e.count]
    return TableReader(table, ignored + problems + converted)


def _read_header(file: BinaryIO, problems: list[str]) -> tuple[PlySource, list[Element]]:
    lines: list[bytes] = []
    while not lines or lines[-1] != b"end_header":
        raw = file.readline(HEADER_BYTES - file.tell() + 1)
        if not raw.endswith(b"\n") or file.tell() > HEADER_BYTES:
            raise ValueError("its header does not end")
        lines.append(raw.strip() if lines else raw.removeprefix(codecs.BOM_UTF8).strip())
        if lines[0] != b"ply":
            raise ValueError("it does not begin with ply")
    remarks = [line for line in lines if line.split()[:1] in ([b"comment"], [b"obj_info"])]
    words = [decoded(line).split() for line in lines[1:-1] if line and line not in remarks]
    if not words or words[0][:1] != ["format"] or words[0][1:2] not in ([key] for key in ORDERS):
        raise ValueError("its header has no known format")
    elements: list[Element] = []
    for line in words[1:]:
        if line[0] == "element" and len(line) == 3 and re.fullmatch(r"\d{1,18}", line[2]):
            elements.append(Element(line[1], int(line[2])))
        elif line[0] == "property" and elements and len(line) in (3, 5):
            _add_property(elements[-1], line[1:], problems)
        else:
            raise ValueError(f"its header has the line {' '.join(line)!r}")
    texts = [line.decode("utf-8", "surrogateescape") for line in remarks]
    return PlySource(words[0][1], texts), elements


def _add_property(element: Element, words: list[str], problems: list[str]) -> None:
    *types, name = words
    if types[0] == "list":
        types = types[1:]
    if unknown := [word for word in types if word.lower() not in TYPES]:
        raise ValueError(f"its property {name} has the unknown type {unknown[0]}")
    if len(element.properties) >= MOST_PROPERTIES:
        raise ValueError(f"its {element.name} has more than {MOST_PROPERTIES} properties")
    if len(types) == 2 and TYPES[types[0].lower()][0] == "f":
        raise ValueError("the count of a list must be whole")
    if name in element.properties:
        (*_, name), repeated = distinct_names([*element.properties, name])
        problems += repeated
    codes = [TYPES[word.lower()] for word in types]
    element.properties[name] = codes[0] if len(codes) == 1 else (codes[0], codes[1])


def _columns(
    path: Path, start: int, order: str, elements: list[Element], last: int, problems: list[str]
) -> dict[str, np.ndarray]:
    """The properties of elements[last] that are not lists."""
    vertex = elements[last]
    type_ = vertex.dtype(order)
    data: np.ndarray = np.zeros(0, np.uint8)
    if path.stat().st_size > start:
        data = np.memmap(path, np.uint8, "r", start)
    parts: list[bytes] = []
    at = 0
    for element in elements[:last]:
        at = _walk(data, at, element, order)
    end = _walk(data, at, vertex, order, parts)
    values = np.frombuffer(b"".join(parts), np.uint8) if vertex.lists else data[at:]
    rows = np.ndarray((vertex.count,), type_, values)
    if elements[-1] is vertex and len(data) - end >= type_.itemsize:
        problems.append(BEHIND)
    return {name: rows[name] for name in type_.names or ()}


def _code(values: np.ndarray, source: object) -> str:
    """The type of a property: double for 64-bit integers of text, which has no types."""
    code = values.dtype.str[1:]
    return "f8" if isinstance(source, TextSource) and code in ("i8", "u8") else code


def _walk(
    data: np.ndarray, at: int, element: Element, order: str, parts: list[bytes] | None = None
) -> int:
    """The offset where an element ends; `parts` gets the bytes of values outside lists, if it has
    any. Raises ValueError where the data end before it."""
    short_data = f"its {len(data)} bytes do not hold what its header promises"
    if not element.lists:
        at += element.count * element.dtype(order).itemsize
    for _ in range(element.count if element.lists else 0):
        for type_ in element.properties.values():
            if isinstance(type_, tuple):
                wide, many = int(type_[0][1]), int(type_[1][1])
                if at + wide > len(data):
                    raise ValueError(short_data)
                count = np.frombuffer(data, order + type_[0], 1, at)[0]
                at += wide + many * max(int(count), 0)
            else:
                if parts is not None:
                    parts.append(bytes(data[at : at + int(type_[1])]))
                at += int(type_[1])
    if at > len(data):
        raise ValueError(short_data)
    return at


def _text_columns(
    path: Path, start: int, elements: list[Element], at: int, problems: list[str]
) -> dict[str, np.ndarray]:
    """The properties of elements[at] that are not lists."""
    whole, vertex = path.read_bytes(), elements[at]
    body, type_ = whole[start:], vertex.dtype("=")
    names = type_.names or ()
    if 2 * vertex.count * len(names) > len(body) + 1:  # a digit and a blank each
        raise ValueError(f"its bytes do not hold the {vertex.count} points that it promises")
    types, line = [type_[name] for name in names], 1 + whole.count(b"\n", 0, start)
    fault = None
    if at == 0 and not vertex.lists:  # most likely one vertex per line
        rest = filter(bytes.strip, io.BytesIO(body))
        lines = itertools.islice(rest, vertex.count)
        try:
            values = read_words(b"".join(lines), names, types, line=line, problems=problems)
            if len(values[0]) == vertex.count:
                if len(elements) == 1 and next(rest, None):
                    problems.append(BEHIND)
                return dict(zip(names, values, strict=True))
        except ValueError as error:
            fault = error
    try:
        values = read_words(_vertex_lines(body, elements, at), names, types, problems=problems)
    except ValueError as error:
        raise fault or error from None
    return dict(zip(names, values, strict=True))


def _vertex_lines(body: bytes, elements: list[Element], at: int) -> bytes:
    """The words of elements[at] outside lists, one line per row, wherever the file has line breaks.

    Raises ValueError if the number of words is not that of all elements.
    """
    words, lines = (match[0] for match in re.finditer(rb"\S+", body)), []
    try:
        for number, element in enumerate(elements):
            types = list(element.properties.values())
            for _ in range(element.count if types else 0):
                kept = []
                for type_ in types:
                    word = next(words)
                    if isinstance(type_, tuple):
                        for _ in range(int(word)):
                            next(words)
                    else:
                        kept.append(word)
                if number == at:
                    lines.append(b" ".join(kept))
    except StopIteration:
        raise ValueError("it is cut short") from None
    if next(words, None) is not None:
        raise ValueError("it holds more words than its header promises")
    return b"\n".join(lines)


class PlyWriter(PointWriter):
    """A writer of PLY files in the form of a PLY source, else binary_little_endian.

    Points go to an unnamed file until their number is known.
    """

    def begin(self) -> None:
        source, plain = self.schema.source, PlySource("binary_little_endian", [])
        self._source = source if isinstance(source, PlySource) else plain
        columns = flat(named(self.schema))
        for name, values in columns.items():
            good = name.split() == [name] and name.isprintable()
            if not good or _code(values, source) not in SPELLED:
                raise self.error(f"PLY has no property {short(name)}, {values.dtype}")
        order = ORDERS[self._source.format] or "<"
        self._type = np.dtype([(n, order + _code(a, source)) for n, a in columns.items()])
        self._body = tempfile.TemporaryFile(dir=Path(self.file.name).parent)  # noqa: SIM115

    def write_points(self, table: PointTable) -> None:
        columns = flat(named(table))
        if not ORDERS[self._source.format]:
            forms = [text_form(values.dtype) for values in columns.values()]
            self._body.write(text_rows(columns.values(), forms))
            return
        rows = np.zeros(len(table), self._type)
        for name, values in columns.items():
            most = max(int(values.max()), -int(values.min())) if values.dtype.kind in "iu" else 0
            if self._type[name].kind == "f" and most > EXACT:
                rule = f"PLY has no integers as large as those of {short(name)}"
                raise self.error(f"{rule}: drop it, or write .pcd or .npz")
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
