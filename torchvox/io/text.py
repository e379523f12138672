# SPDX-License-Identifier: Apache-2.0
"""Points as lines of numbers: .xyz, .txt, .csv, .pts."""

from __future__ import annotations

import codecs
import re
from collections import Counter, deque
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, short
from torchvox.io.layouts import SKIP, layout_choices
from torchvox.io.roles import COLORS, distinct_names
from torchvox.io.table import PointTable, PointWriter, TableReader, flat, named, table_of
from torchvox.io.words import LINE_BYTES, are_numbers, decoded, is_comment, read_words, split_words

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIXES = (".xyz", ".txt", ".csv", ".pts")
XYZ = ("x", "y", "z")
PTS = {3: XYZ, 4: (*XYZ, "intensity"), 6: (*XYZ, *COLORS), 7: (*XYZ, "intensity", *COLORS)}
SEPARATORS = r"[\s,;]+"
# Names whose case does not matter; others keep their case.
NAMES = {*XYZ, *COLORS, "alpha", "nir", "nx", "ny", "nz", "curvature", "intensity", "ring", "label"}
NAMES |= {"classification", "instance", "segment", "t", "time", "timestamp", "gps_time"}
NAMES |= {"return_number", "number_of_returns", "scan_angle", "user_data", "point_source_id"}


class TextSource:
    """Marks a table whose integers have 64 bits only because text has no types."""


def open_text(path: Path, columns: tuple[str, ...] | None) -> TableReader:
    """A reader of a file with one point per line, with the names of a header unless a layout is
    given.

    Read are blanks, commas, semicolons or tabs between values; quotes, comments, decimal commas,
    separators at the end of lines; the number of points on a line of its own. Coordinates are
    float64, colors uint16 if they are whole numbers, others int64 or uint64 if they all are, else
    float64.
    """
    text = _text(path)
    heads, count, at = _heads(path, text)
    body = text[at:]
    first = decoded(body.split(b"\n", 1)[0])
    between, words = _form(first) or (None, [])
    names = header = _header(heads, between, words, first)
    if not words and count != 0 and not set(XYZ) <= set(header or ()):
        raise CloudFileError(f"{path} is not a text file of points")
    open_end = words[-1:] == [""]  # a separator after the last value
    if columns is not None:
        names = ["" if name == SKIP else name for name in columns]
    elif names is None:
        width = len(words) - open_end
        three = XYZ if width == 3 or count == 0 else None
        names = list((path.suffix.lower() == ".pts" and PTS.get(width)) or three or ())
    if not names:
        rule = f"does not name its {len(words)} columns: add --layout, {layout_choices()}"
        raise WrongUseError(f"{path}: the file {rule}")
    if open_end and len(names) + 1 == len(words):
        names.append("")
    if words and len(words) != len(names):
        raise CloudFileError(f"{path} has {len(words)} columns, but {len(names)} are named")
    if not set(XYZ) <= set(names):
        raise CloudFileError(f"{path}: the columns {short(','.join(names))} do not name x, y, z")
    if between != ",":
        body = body.replace(b",", b".")
    types = [np.dtype(np.float64) if name in ("", *XYZ) else None for name in names]
    line = text.count(b"\n", 0, at) + 1
    try:
        values = read_words(body, names, types, between=between, line=line)
    except ValueError as error:
        raise CloudFileError(f"{path}: {error}") from None
    if count not in (None, len(values[0])):
        raise CloudFileError(f"{path} promises {count} points but holds {len(values[0])}")
    distinct, problems = distinct_names([name for name in names if name])
    if columns is None:
        for i, (name, a) in enumerate(zip(names, values, strict=True), 1):
            if not (name or np.isnan(a).all()):
                problems.append(f"its column {i} has no name and is ignored")
    numbers = [word for word in words if word]
    if header is None and numbers and numbers == [str(i) for i in range(len(numbers))]:
        problems.append(f"its first line, {first}, is read as a point, not as column numbers")
    named_values = [a for name, a in zip(names, values, strict=True) if name]
    table, converted = table_of(dict(zip(distinct, named_values, strict=True)), path, TextSource())
    colors = {name: a for name, a in table.attributes.items() if name in COLORS}
    with np.errstate(invalid="ignore"):
        small = {name: values.astype(np.uint16) for name, values in colors.items()}
    if all(np.array_equal(small[name], values) for name, values in colors.items()):
        table.attributes |= small
    return TableReader(table, problems + converted)


def _text(path: Path) -> bytes:
    """The file in UTF-8 or another superset of ASCII, with \\n as line break."""
    text = path.read_bytes()
    if text[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        text = text.decode("utf-16", "replace").encode()
    text = text.removeprefix(codecs.BOM_UTF8)
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _heads(path: Path, text: bytes) -> tuple[list[str], int | None, int]:
    """The lines before the points, the number of points if a line says it, and where the points
    begin."""
    heads: deque[str] = deque(maxlen=100)
    count, at, number, plain = None, 0, 0, False
    while at < len(text):
        end = text.find(b"\n", at)
        end, number = end if end >= 0 else len(text), number + 1
        if end > LINE_BYTES or b"\0" in text[at:end]:
            raise CloudFileError(f"{path} is not a text file of points")
        line = decoded(text[at:end])
        if count is None and re.fullmatch(r"\s*[0-9]{1,18}\s*", line):
            count = int(line)
        elif is_comment(line):
            heads.append(line)
        elif _form(line):
            break
        elif line.strip() and not line.startswith("sep="):  # for Excel
            names = _names(re.split(SEPARATORS, line.strip()))
            point = not set(XYZ) <= set(names) and any(are_numbers([name]) for name in names)
            if plain or point:
                raise CloudFileError(f"{path}: line {number} is not only numbers: {short(line)}")
            heads.append(line)
            plain = True
        at = end + 1
    return list(heads), count, min(at, len(text))


def _form(line: str) -> tuple[str | None, list[str]] | None:
    """The separator of a line of numbers, None for blanks, and the words; None for other lines."""
    for between in (";", ",", "\t", None):
        if between is None or between in line:
            words = split_words(line if between == "," else line.replace(",", "."), between)
            if any(words) and are_numbers(words):
                return between, words
    return None


def _header(
    heads: list[str], between: str | None, words: list[str], first: str
) -> list[str] | None:
    """The names of the columns, "" for a column without one; None if no line names them.

    words, first: of the first point, and its line.
    """
    if not words and heads:
        between = next((mark for mark in (";", ",", "\t") if mark in heads[-1]), None)
    widths = {len(words), len(words) - (words[-1:] == [""])}
    plain = None
    for line in reversed(heads):
        text = line.strip(" ")
        text = text.lstrip("/#%").strip() if is_comment(line) else text
        for names in (split_words(text, between), re.split(SEPARATORS, text)):
            names = _names(names)
            indexed = between is None and (line[0].isspace() or first[:1] == '"')
            if indexed and len(names) + 1 == len(words):  # as pandas and R write it
                names = ["", *names]
            while words and len(names) > len(words) and not names[-1]:
                names.pop()
            if set(XYZ) <= set(names) and (not words or len(names) in widths):
                return names
            if plain is None and not is_comment(line):
                plain = names
    return plain


def _names(words: list[str]) -> list[str]:
    """The names of columns from the words of a line."""
    words = [word.strip(' "\t') for word in words]
    low = [word.lower() for word in words]
    plain = {name for name, number in Counter(low).items() if number == 1 and name in NAMES}
    return [a if a in plain else b for a, b in zip(low, words, strict=True)]


class TextWriter(PointWriter):
    """A writer of lines of numbers after a line of names (.pts: no names, "0" for no points).

    Coordinates have the digits of their scale; other floats 9 or 17.
    """

    def begin(self) -> None:
        suffix = self.path.suffix.lower()
        self._between = "," if suffix == ".csv" else " "
        columns = flat(named(self.schema))
        for name, values in columns.items():
            if not (suffix == ".pts" or name in XYZ or _holds_name(name, self._between)):
                raise self.error(f"a line of names does not hold {short(name)}")
            if values.dtype.kind not in "iubf" or values.dtype.itemsize > 8:
                raise self.error(f"text does not hold {short(name)}, {values.dtype}")
        self._forms = [text_form(values.dtype) for values in columns.values()]
        if self.schema.scale is not None and self.schema.offset is not None:
            lattice = np.stack([self.schema.scale, self.schema.offset], axis=1)
            self._forms[:3] = [f"%.{max(map(_digits, pair))}f" for pair in lattice.tolist()]
        if suffix != ".pts":
            head = "" if suffix == ".csv" else "//"
            self.file.write(f"{head}{self._between.join(columns)}\n".encode())

    def write_points(self, table: PointTable) -> None:
        self.file.write(text_rows(flat(named(table)).values(), self._forms, self._between))

    def close(self) -> None:
        if self.path.suffix.lower() == ".pts" and not self.count:
            self.file.write(b"0\n")  # an empty file would count as damaged


def _holds_name(name: str, between: str) -> bool:
    """Whether a name can be read back from a line of names."""
    marks = {*',;"', between} & {*name}
    return bool(name) and name.isprintable() and name == name.strip() and not marks


def _digits(value: float) -> int:
    """The number of decimals in the shortest text of a number."""
    return max(0, -int(Decimal(repr(value)).normalize().as_tuple().exponent))


def text_form(type_: np.dtype) -> str:
    """The format that keeps every bit of a value."""
    return "%d" if type_.kind in "iub" else "%.9g" if type_.itemsize <= 4 else "%.17g"


def text_rows(columns: Iterable[np.ndarray], forms: list[str], between: str = " ") -> bytes:
    """N lines of the columns [N]."""
    form = between.join(forms) + "\n"
    return "".join(form % row for row in zip(*(a.tolist() for a in columns), strict=True)).encode()
