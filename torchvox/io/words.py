# SPDX-License-Identifier: Apache-2.0
"""Numbers in text: all spellings of numbers that programs write are known here."""

from __future__ import annotations

import contextlib
import csv
import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIRST_BLOCK, BLOCK, LINE_BYTES = 1 << 16, 1 << 22, 1 << 22
EXACT = 2**53  # float64 holds every whole number up to here
COMMENTS = ("#", "//", "%")
CELL_ERRORS = ("#N/A", "#DIV/0!", "#NUM!", "#VALUE!", "#REF!", "#NAME?", "#NULL!")  # spreadsheets
MISSING = {"", "na", "n/a", "null", "none", *(word.lower() for word in CELL_ERRORS)}


def decoded(line: bytes) -> str:
    """The text of a line in UTF-8, else in Latin-1."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def is_comment(line: str) -> bool:
    """Whether a line is a comment, which a spreadsheet's error such as #N/A does not begin."""
    line = line.lstrip()
    return line.startswith(COMMENTS) and not line.upper().startswith(CELL_ERRORS)


def split_words(line: str, between: str | None, most: int = -1) -> list[str]:
    """The words of a line without quotes, perhaps with blanks around them.

    between: the separator, None for blanks. most: splits at most.
    """
    line = line.strip(" \r")
    if '"' in line and len(line) < LINE_BYTES:
        text = line if between else " ".join(line.split())
        with contextlib.suppress(csv.Error):  # broken quotes stay
            return next(csv.reader([text], delimiter=between or " ", skipinitialspace=True))
    return line.split(between, most)


def number(word: str) -> float:
    """The value of a word, NaN of an empty one. Raises ValueError if it is not a number."""
    try:
        if "_" not in word:  # Python reads 1_000
            return float(word)
    except ValueError:
        pass
    name = word.strip().lower()
    if name in MISSING:
        return np.nan
    if name.lstrip("+-").startswith("1.#inf"):  # as C on Windows writes it
        return -np.inf if name[0] == "-" else np.inf
    if name.lstrip("+-").startswith(("1.#", "nan(")):
        return np.nan
    raise ValueError(f"{short(word)} is not a number")


def are_numbers(words: Sequence[str]) -> bool:
    """Whether there are words and all are numbers, NaN and infinity included."""
    with contextlib.suppress(ValueError):
        return bool([number(word) for word in words])
    return False


def read_words(
    text: bytes,
    names: Sequence[str],
    types: Sequence[np.dtype | None],
    *,
    between: str | None = None,
    line: int = 1,
    problems: list[str] | None = None,
) -> list[np.ndarray]:
    """Columns [N] of a text with one point per line.

    names: of the columns, for messages.
    types: of the columns; None: int64 or uint64 if all words are whole numbers, else float64. The
        same replaces an integer type that does not hold the words (NaN, 7.5, 300 for uint8), and
        `problems` says so.
    between: the separator of words, None for blanks. line: number of the text's first line.
    Raises ValueError with the line, or with the column and the number that no type holds.
    """
    wholes = [type_ is None or type_.kind in "iu" for type_ in types]
    parts: list[list[np.ndarray]] = []
    for block in _blocks(text):
        columns = _load(block, parts[-1], between) if parts else None
        may_round = (  # floats of a column that may be whole
            whole and values.dtype.kind == "f" and (np.abs(values) >= EXACT).any()
            for values, whole in zip(columns or (), wholes, strict=False)
        )
        if columns is None or any(may_round):
            columns = _load_words(block, names, wholes, between, line)
        if len(columns[0]):
            parts.append(columns)
        line += block.count(b"\n")
    columns = [_joined(name, [part[i] for part in parts]) for i, name in enumerate(names)]
    widened: list[str] = []
    for i, (name, type_) in enumerate(zip(names, types, strict=True)):
        if type_ is None:
            continue
        with np.errstate(all="ignore"):
            cast = columns[i].astype(type_, copy=False)
        if type_.kind == "f" or _same_values(cast, columns[i]):
            columns[i] = cast
        else:
            widened.append(f"{name} ({columns[i].dtype} in place of {type_})")
    if widened and problems is not None:
        listing = short(", ".join(dict.fromkeys(widened)))
        problems.append(f"the declared types do not hold some of its integers: {listing}")
    return columns


def _load(text: bytes, like: list[np.ndarray], between: str | None) -> list[np.ndarray] | None:
    """The columns in the types of `like`, as NumPy reads them; None if it fails."""
    fields = np.dtype([(f"f{i}", values.dtype) for i, values in enumerate(like)])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # NumPy 1 reads 7.5 as the integer 7
        try:
            rows = np.loadtxt(io.BytesIO(text), fields, comments=None, delimiter=between, ndmin=1)
        except ValueError:
            return None
    return [rows[f"f{i}"] for i in range(len(like))]


def _load_words(
    text: bytes, names: Sequence[str], wholes: Sequence[bool], between: str | None, line: int
) -> list[np.ndarray]:
    """The columns, read word by word: slower than _load, but knows all spellings."""
    width, words, lines = len(names), [], []
    for at, raw in enumerate(text.decode("latin-1").removesuffix("\n").split("\n"), line):
        if raw.strip() and not is_comment(raw):
            row = split_words(raw, between, width)
            if len(row) != width or "_" in raw:
                raise _wrong_line(at, row, between, width)
            words += row
            lines.append(at)
    try:
        return [_values(name, words[i::width], wholes[i]) for i, name in enumerate(names)]
    except ValueError:
        for i, at in enumerate(lines):
            row = words[i * width : (i + 1) * width]
            if not are_numbers(row):
                raise _wrong_line(at, row, between, width) from None
        raise


def _blocks(text: bytes) -> Iterator[bytes]:
    """Blocks of whole lines of the text, the first one small."""
    at = 0
    while at < len(text):
        end = text.find(b"\n", at + (BLOCK if at else FIRST_BLOCK)) + 1 or len(text)
        yield text[at:end]
        at = end


def _wrong_line(line: int, words: list[str], between: str | None, count: int) -> ValueError:
    raw = decoded((between or " ").join(words).encode("latin-1"))
    return ValueError(f"line {line} is not {count} numbers: {short(raw)}")


def _values(name: str, words: Sequence[str], whole: bool) -> np.ndarray:
    """A column of words as int64 or uint64 if it may be whole and all words are, else float64."""
    integers: list[int] = []
    with contextlib.suppress(ValueError):
        integers = [int(word) for word in words] if whole else []
    if integers:
        low, high = min(integers), max(integers)
        if low < -(2**63) or high >= (2**63 if low < 0 else 2**64):
            raise _too_large(name, low if low < -(2**63) else high)
        return np.array(integers, np.int64 if high < 2**63 else np.uint64)
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = [number(word) for word in words]
    for word, value in zip(words, values, strict=True) if whole else ():
        rounds = abs(value) >= EXACT and word.strip().lstrip("+-").isdigit()
        if rounds and (np.isinf(value) or int(word) != value):
            raise _too_large(name, word)
    return np.array(values, np.float64)


def _joined(name: str, parts: list[np.ndarray]) -> np.ndarray:
    """The parts of a column, joined in the first type that holds them all."""
    types = {part.dtype.str[1:] for part in parts}
    type_ = next((each for each in ("f8", "u8", "i8") if each in types), "f8")
    casts = [part.astype(type_) for part in parts]
    for cast, part in zip(casts, parts, strict=True):
        if part.dtype.kind != "f" and not _same_values(cast, part):
            raise _too_large(name, part.min() if part.min() < 0 and type_ == "u8" else part.max())
    return np.concatenate([np.zeros(0, type_), *casts])


def _same_values(cast: np.ndarray, values: np.ndarray) -> bool:
    """Whether a cast changed no value; NumPy compares int64 as float64, which rounds."""
    with np.errstate(all="ignore"):
        return np.array_equal(cast, values) and np.array_equal(cast.astype(values.dtype), values)


def _too_large(name: str, word: object) -> ValueError:
    rule = f"neither int64, uint64 nor float64 holds {str(word)[:40]} and its other numbers"
    return ValueError(f"column {short(name)}: {rule}")
