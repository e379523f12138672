# SPDX-License-Identifier: Apache-2.0
"""Points as lines of numbers: .xyz, .txt, .csv, .pts."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._errors import CloudFileError, WrongUseError, short
from torchvox.io.layouts import SKIP, layout_choices
from torchvox.io.roles import COLORS, distinct_names
from torchvox.io.table import PointTable, PointWriter, TableReader, flat, named, table_of
from torchvox.io.words import ANY, number_words, read_words

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIXES = (".xyz", ".txt", ".csv", ".pts")
LINE_BYTES = 1 << 22
XYZ = ("x", "y", "z")
PTS = {3: XYZ, 4: (*XYZ, "intensity"), 6: (*XYZ, *COLORS), 7: (*XYZ, "intensity", *COLORS)}
COMMENTS = ("#", "//", "%")
# Names that are the same in any case; others stay as they are written.
NAMES = {*XYZ, *COLORS, "alpha", "nir", "nx", "ny", "nz", "curvature", "intensity", "ring", "label"}
NAMES |= {"classification", "instance", "segment", "t", "time", "timestamp", "gps_time"}
NAMES |= {"return_number", "number_of_returns", "scan_angle", "user_data", "point_source_id"}


@dataclass(frozen=True)
class TextSource:
    """Marks a table whose whole numbers have 64 bits only since text does not tell their type."""


def open_text(path: Path, columns: tuple[str, ...] | None) -> TableReader:
    """Open a file with one point a line; a line of names counts unless a layout is given.

    Blanks, commas, semicolons or tabs between values; quotes, comments, decimal commas, separators
    at the end of lines; the number of points in a line of its own. Coordinates are float64, colors
    uint16 where they are whole numbers, others int64 or uint64 where all words are whole numbers.
    """
    text = _text(path)
    heads, promised, at = _heads(path, text)
    body = text[at:]
    first = body.split(b"\n", 1)[0]
    between, words = _form(first) or (None, [])
    if not words and heads:
        between = next((mark for mark in (",", ";") if mark in heads[-1]), None)
    open_end = first.rstrip()[-1:] in (b",", b";")  # a separator, or a last value that is missing
    named = None if columns else _header(heads, between, len(words), open_end)
    columns = columns or named
    width = len(words) - (open_end and len(columns or ()) < len(words))
    columns = columns or (PTS.get(width) if path.suffix.lower() == ".pts" else None)
    columns = columns or (XYZ if width == 3 or promised == 0 else None)
    if columns is None and not words:
        raise CloudFileError(f"{path} is not a text file of points")
    if columns is None:
        raise WrongUseError(
            f"{path}: the file does not say its {width} columns: give --layout, {layout_choices()}"
        )
    if words and width != len(columns):
        raise CloudFileError(f"{path} has {width} columns, but {len(columns)} are named")
    if not set(XYZ) <= set(columns):
        raise CloudFileError(f"{path}: the columns {short(','.join(columns))} do not name x, y, z")
    if width < len(words):
        body = re.sub(rb"(?m)[,;][ \t]*$", b"", body)
    if between == ";" or (between is None and b"," in first):
        body = body.replace(b",", b".")
    kinds = {"" if named else SKIP: ANY, **dict.fromkeys(XYZ, np.dtype(np.float64))}
    types = [kinds.get(name) for name in columns]
    line = text.count(b"\n", 0, at) + 1
    try:
        values = read_words(body, columns, types, between=between, line=line)
    except ValueError as error:
        raise CloudFileError(f"{path}: {error}") from None
    if promised not in (None, len(values[0])):
        raise CloudFileError(f"{path} promises {promised} points and holds {len(values[0])}")
    read = [(name, a) for name, a, kind in zip(columns, values, types, strict=True) if kind != ANY]
    names, problems = distinct_names([name for name, _ in read])
    if "" in columns:
        problems.append(f"its column {columns.index('') + 1} has no name and is left out")
    held = dict(zip(names, (a for _, a in read), strict=True))
    table, converted = table_of(held, path, TextSource())
    for name in set(COLORS) & table.attributes.keys():
        with np.errstate(invalid="ignore"):
            whole = table.attributes[name].astype(np.uint16)
        if np.array_equal(whole, table.attributes[name]):
            table.attributes[name] = whole
    reader = TableReader(table)
    reader.problems += problems + converted
    return reader


def _text(path: Path) -> bytes:
    """The file in UTF-8 or another code that holds ASCII, with one line break after each line."""
    text = path.read_bytes()
    if text[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        text = text.decode("utf-16", "replace").encode()
    text = text.removeprefix(codecs.BOM_UTF8)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text


def _heads(path: Path, text: bytes) -> tuple[list[str], int | None, int]:
    """The lines before the points, the number of points if one says it, where the points begin."""
    heads: list[str] = []
    promised, at, number = None, 0, 0
    while at < len(text):
        end = text.find(b"\n", at)
        end, number = end if end >= 0 else len(text), number + 1
        if end - at > LINE_BYTES or b"\0" in text[at:end]:
            raise CloudFileError(f"{path} is not a text file of points")
        line = decoded(text[at:end])
        if promised is None and re.fullmatch(r"\s*[0-9]{1,18}\s*", line):
            promised = int(line)
        elif line.lstrip().startswith(COMMENTS):
            heads.append(line)
        elif _form(text[at:end]):
            break
        elif number_words(re.split(r"[\s,;]+", line.strip())[0].encode()):
            raise CloudFileError(f"{path}: line {number} is not numbers alone: {short(line)}")
        elif line.strip():
            heads.append(line)
        at = end + 1
    return heads, promised, min(at, len(text))


def decoded(line: bytes) -> str:
    """A line of UTF-8, else of Latin-1."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _form(line: bytes) -> tuple[str | None, list[bytes]] | None:
    """What separates the words of a line of numbers, None for blanks; and the words."""
    if not line.strip(b",; \t\"'"):
        return None
    for between in (";", ",", None):
        if between is None or between.encode() in line:
            text = line if between == "," else line.replace(b",", b".")
            if words := number_words(text, between):
                return between, words
    return None


def _header(
    heads: list[str], between: str | None, width: int, open_end: bool
) -> tuple[str, ...] | None:
    """The names of the columns, None where no line tells them."""
    widths = {width, width - open_end} if width else set()
    plain = None
    for line in reversed(heads):
        for names in (_names(line, between), _names(line, None), _names(line, r"[\s,;]+")):
            if between is None and line[:1].isspace() and len(names) + 1 == width:
                names = ["", *names]  # of an index, as pandas writes it
            if set(XYZ) <= set(names) and (not widths or len(names) in widths):
                return tuple(names)
        if plain is None and not line.lstrip().startswith(COMMENTS):
            plain = tuple(_names(line, between))
    return plain


def _names(line: str, between: str | None) -> list[str]:
    """The names of columns in a line."""
    line = line.strip()
    line = line.lstrip("/#%").strip() if line.startswith(COMMENTS) else line
    words = line.split() if between is None else re.split(between, line)
    words = [word.strip().strip("\"'").strip() for word in words]
    while words and not words[-1]:
        words.pop()
    low = [word.lower() for word in words]
    plain = {name for name, number in Counter(low).items() if number == 1 and name in NAMES}
    return [a if a in plain else b for a, b in zip(low, words, strict=True)]


class TextWriter(PointWriter):
    """Lines of numbers under one of names (.pts: the number of points is not written).

    Coordinates have the digits of their scale; other floats 9 or 17.
    """

    def __init__(self, file: BinaryIO, like: Any, path: Path) -> None:
        super().__init__(file, like, path)
        self._between = "," if path.suffix.lower() == ".csv" else " "
        columns = flat(named(self.schema))
        unnamed = path.suffix.lower() == ".pts"
        for name, values in columns.items():
            if not (unnamed or name in XYZ or _holds_name(name, self._between)):
                raise WrongUseError(f"{path}: a line of names does not hold {short(name)}")
            if values.dtype.kind not in "iubf" or values.dtype.itemsize > 8:
                raise WrongUseError(f"{path}: text does not hold {short(name)}, {values.dtype}")
        self._forms = [text_form(values.dtype) for values in columns.values()]
        if self.schema.scale is not None and self.schema.offset is not None:
            lattice = np.stack([self.schema.scale, self.schema.offset], axis=1)
            self._forms[:3] = [f"%.{max(map(_digits, pair))}f" for pair in lattice.tolist()]
        if path.suffix.lower() != ".pts":
            head = "" if path.suffix.lower() == ".csv" else "//"
            file.write(f"{head}{self._between.join(columns)}\n".encode())

    def write(self, table: PointTable) -> None:
        self.file.write(text_rows(flat(named(table)).values(), self._forms, self._between))


def _holds_name(name: str, mark: str) -> bool:
    """Whether a name reads back from a line of names, with points below it or none."""
    line = mark.join((*XYZ, name))
    guess = next((each for each in (",", ";") if each in line), None)
    between = {guess, "," if mark == "," else None}
    again = [_names(line, each)[3:] for each in between]
    return name.isprintable() and all(names in ([name], [name.lower()]) for names in again)


def _digits(value: float) -> int:
    """Behind the point, of the shortest text of a number."""
    return max(0, -int(Decimal(repr(value)).normalize().as_tuple().exponent))


def text_form(type_: np.dtype) -> str:
    """Format of a value that reads back as it was."""
    return "%d" if type_.kind in "iub" else "%.9g" if type_.itemsize <= 4 else "%.17g"


def text_rows(columns: Iterable[np.ndarray], forms: list[str], between: str = " ") -> bytes:
    """Columns [N] as N lines."""
    form = between.join(forms) + "\n"
    return "".join(form % row for row in zip(*(a.tolist() for a in columns), strict=True)).encode()
