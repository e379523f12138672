# SPDX-License-Identifier: Apache-2.0
"""Points as lines of numbers: .xyz, .txt, .csv, .pts."""

from __future__ import annotations

import io
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._errors import CloudFileError, WrongUseError, short
from torchvox.io.layouts import SKIP, layout_choices
from torchvox.io.roles import COLORS
from torchvox.io.table import PointTable, PointWriter, TableReader, flat, named

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUFFIXES = (".xyz", ".txt", ".csv", ".pts")
LINE_BYTES = 1 << 16
XYZ = ("x", "y", "z")
PTS = {3: XYZ, 4: (*XYZ, "intensity"), 6: (*XYZ, *COLORS), 7: (*XYZ, "intensity", *COLORS)}


def open_text(path: Path, columns: tuple[str, ...] | None) -> TableReader:
    """Open a file with one point a line; a first line of names counts unless a layout is given.

    Blanks, commas, semicolons or tabs between values; the first line of .pts may be the number of
    points. Coordinates are float64, colors uint16 where they are whole numbers.
    """
    with path.open("rb") as file:
        data = file.read()
    lines = data.splitlines()
    try:
        first = lines[0][:LINE_BYTES].decode("utf-8-sig").strip()
    except (UnicodeDecodeError, IndexError):
        raise CloudFileError(f"{path} is not a text file of points") from None
    between = next((mark for mark in (",", ";") if mark in first), None)
    words = [word.strip() for word in first.lstrip("/#").split(between)]
    skip, promised = 0, None
    if not all(map(_is_number, words)):
        skip = 1
        columns = columns or tuple(word.strip("\"'").lower() for word in words)
    elif path.suffix.lower() == ".pts" and re.fullmatch(r"\d{1,18}", first):
        skip, promised = 1, int(first)
        between, words = None, lines[1].decode("ascii", "replace").split() if lines[1:] else []
    width = len(words)
    if columns is None:
        columns = PTS.get(width) if path.suffix.lower() == ".pts" else None
        columns = columns or (XYZ if width in (0, 3) else None)
    if columns is None:
        raise WrongUseError(
            f"{path}: the file does not say its {width} columns: give --layout, {layout_choices()}"
        )
    if width not in (0, len(columns)):
        raise CloudFileError(f"{path} has {width} columns, but {len(columns)} are named")
    names = [name for name in columns if name != SKIP]
    if not set(XYZ) <= set(names) or len(set(names)) != len(names):
        raise CloudFileError(f"{path}: the columns {short(','.join(columns))} do not name x, y, z")
    rows = _rows(path, lines, skip, between, len(columns))
    if promised not in (None, len(rows)):
        raise CloudFileError(f"{path} promises {promised} points and holds {len(rows)}")
    held = {name: rows[:, i] for i, name in enumerate(columns) if name != SKIP}
    attributes = {name: values for name, values in held.items() if name not in XYZ}
    for name in set(COLORS) & attributes.keys():
        with np.errstate(invalid="ignore"):
            whole = attributes[name].astype(np.uint16)
        if np.array_equal(whole, attributes[name]):
            attributes[name] = whole
    xyz = np.stack([held[axis] for axis in XYZ], axis=1)
    return TableReader(PointTable(xyz, attributes, path=path))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _rows(path: Path, lines: list[bytes], skip: int, between: str | None, width: int) -> Any:
    kept = lines[skip:]
    if not any(line.strip() for line in kept):
        return np.zeros((0, width))
    try:
        with np.errstate(all="ignore"):
            rows = np.loadtxt(
                io.BytesIO(b"\n".join(kept)), delimiter=between, comments=None, ndmin=2
            )
        if rows.shape[1] == width:
            return rows
    except ValueError:
        pass
    for number, line in enumerate(kept, start=skip + 1):
        words = line.decode("utf-8", "replace").split(between)
        if line.strip() and (len(words) != width or not all(map(_is_number, words))):
            shown = short(line.decode("utf-8", "replace"))
            raise CloudFileError(f"{path}: line {number} is not {width} numbers: {shown}")
    raise CloudFileError(f"{path} is not a text file of {width} columns of numbers")


class TextWriter(PointWriter):
    """Lines of numbers under one of names (.pts: the number of points is not written).

    Coordinates have the digits of their scale; other floats 9 or 17.
    """

    def __init__(self, file: BinaryIO, like: Any, path: Path) -> None:
        super().__init__(file, like, path)
        self._between = "," if path.suffix.lower() == ".csv" else " "
        columns = flat(named(self.schema))
        self._forms = [text_form(values.dtype) for values in columns.values()]
        if self.schema.scale is not None and self.schema.offset is not None:
            lattice = np.stack([self.schema.scale, self.schema.offset], axis=1)
            self._forms[:3] = [f"%.{max(map(_digits, pair))}f" for pair in lattice.tolist()]
        if path.suffix.lower() != ".pts":
            head = "" if path.suffix.lower() == ".csv" else "//"
            file.write(f"{head}{self._between.join(columns)}\n".encode())

    def write(self, table: PointTable) -> None:
        self.file.write(text_rows(flat(named(table)).values(), self._forms, self._between))


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
