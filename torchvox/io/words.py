# SPDX-License-Identifier: Apache-2.0
"""Words of text as numbers: the one place that knows how programs spell them."""

from __future__ import annotations

import io
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._errors import short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ANY = np.dtype("S1")  # type of a column that is not read: its words may be anything
SAMPLES, SAMPLE_WORDS = 64, 1 << 12  # lines, and words of them, by which types are guessed
BLOCK = 1 << 22  # bytes
EXACT = 2**53  # float64 holds every whole number up to here
_NUMBER = re.compile(rb"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)", re.I)
_WHOLE = re.compile(rb"[-+]?\d+")
_LONG_WHOLE = re.compile(rb"(?<!\S)[-+]?\d{16,}(?!\S)")
# What stands for a number: by C of Windows (cut to few digits, too), AIX, R and pandas; and quotes
# and comments. Characters of which a text that has it has one; pattern; what replaces it.
_SPELLINGS = [
    (b"#", re.compile(rb"1\.#[iI][nN][fF]\w*"), b"inf"),
    (b"#$", re.compile(rb"1\.[#$]\w*"), b"nan"),
    (b"(qQsS", re.compile(rb"[nN][aA][nN](?:\(\w*\)|[qQsS]\b)"), b"nan"),
    (b"A/lLoO", re.compile(rb"[nN](?:/?[aA]|ull|ULL|one|ONE)(?![\w/])"), b"nan"),
    (b'"', re.compile(rb'"[ \t]*([-+]?\d*),(\d+)[ \t]*"'), rb"\1.\2"),
    (b"\"'", re.compile(rb"(?<![^\s,;])[\"']|[\"'](?![^\s,;])"), b""),
    (b"#/%", re.compile(rb"(?<![^\s,;])(?:[#%]|//).*"), b""),
]


def plain_words(text: bytes, between: str | None = None) -> bytes:
    """The text, line for line, without quotes and comments and with NaN and infinity as `nan`,
    `inf`; an empty place between separators is NaN."""
    for marks, pattern, word in _SPELLINGS:
        if any(bytes([mark]) in text for mark in marks):
            text = pattern.sub(word, text)
    if between:
        mark = between.encode()
        tight = b"\n" + text.translate(None, b" \t\r") + b"\n"
        if any(pair in tight for pair in (mark + mark, mark + b"\n", b"\n" + mark)):
            empty = rb"(?:(?<=%b)|^)[ \t\r]*(?=%b)|(?<=%b)[ \t\r]*$" % (mark, mark, mark)
            text = re.sub(empty, b"nan", text, flags=re.MULTILINE)
    return text


def number_words(line: bytes, between: str | None = None) -> list[bytes] | None:
    """The words of a line if all of them are numbers, NaN and infinity included, else None."""
    words = _split(plain_words(line, between), between)
    return words if words and all(map(_NUMBER.fullmatch, words)) else None


def read_words(
    text: bytes,
    names: Sequence[str],
    types: Sequence[np.dtype | None],
    *,
    between: str | None = None,
    line: int = 1,
    problems: list[str] | None = None,
) -> list[np.ndarray]:
    """Columns [N] of a text with one point a line.

    names: of the columns, for messages. types: of the columns. None: int64 or uint64 where all
        words are whole numbers, else float64. An integer type whose words are others (NaN, 7.5,
        300 of uint8) gives way to that, and `problems` says so. ANY: the column is not read.
    between: what separates words, None for blanks. line: number of the text's first line.
    Raises ValueError that names the line, or the column and the number that no type holds.
    """
    if not text.strip():
        return [np.zeros(0, type_ or np.float64) for type_ in types]
    guesses = _guesses(text, types, between)
    try:
        columns = _load(text, guesses, between)
    except ValueError:
        columns = None
    if columns is None or _rounds(columns, types):
        plain = plain_words(text, between)
        exact = _types_by_words(plain, names, types, between)
        try:
            columns = _load(plain, exact, between)
        except ValueError:
            raise ValueError(_first_fault(text, plain, exact, between, line)) from None
    other: list[str] = []
    for i, (name, type_) in enumerate(zip(names, types, strict=True)):
        if type_ is not None and type_ != columns[i].dtype:
            with np.errstate(invalid="ignore"):
                cast = columns[i].astype(type_)
            if np.array_equal(cast, columns[i]):
                columns[i] = cast
            else:
                other.append(f"{name} ({columns[i].dtype} in place of {type_})")
    if other and problems is not None:
        shown = short(", ".join(dict.fromkeys(other)))
        problems.append(
            f"its integers are of wider types where the declared ones do not hold them: {shown}"
        )
    return columns


def _load(text: bytes, types: Sequence[np.dtype], between: str | None) -> list[np.ndarray]:
    fields: Any = [(f"f{i}", type_) for i, type_ in enumerate(types)]
    with np.errstate(all="ignore"):
        rows = np.loadtxt(
            io.BytesIO(text), np.dtype(fields), comments=None, delimiter=between, ndmin=1
        )
    return [rows[name] for name, _ in fields]


def _guesses(text: bytes, types: Sequence[np.dtype | None], between: str | None) -> list[np.dtype]:
    """The types, those that are open by lines all over the text."""
    guesses = [type_ or np.dtype(np.int64) for type_ in types]
    lines = max(1, min(SAMPLES, SAMPLE_WORDS // len(types))) if None in types else 0
    for i in range(lines):
        at = text.find(b"\n", len(text) * i // lines) + 1 if i else 0
        end = text.find(b"\n", at)
        words = _split(text[at : end if end >= 0 else len(text)], between)
        for column, word in enumerate(words[: len(types)]):
            if types[column] is None and not _WHOLE.fullmatch(word):
                guesses[column] = np.dtype(np.float64)
    return guesses


def _split(line: bytes, between: str | None) -> list[bytes]:
    if not between:
        return line.split()
    return [word.strip() for word in line.split(between.encode())]


def _rounds(columns: list[np.ndarray], types: Sequence[np.dtype | None]) -> bool:
    """Whether a float column of open type has values that may be rounded whole numbers."""
    return any(
        type_ is None
        and values.dtype.kind == "f"
        and (np.abs(values[np.isfinite(values)]) > EXACT).any()
        for type_, values in zip(types, columns, strict=True)
    )


def _types_by_words(
    text: bytes, names: Sequence[str], types: Sequence[np.dtype | None], between: str | None
) -> list[np.dtype]:
    """The types by every word, of columns that are open or integers."""
    exact = [type_ or np.dtype(np.int64) for type_ in types]
    open_ = [i for i, type_ in enumerate(exact) if type_.kind in "iu"]
    whole = dict.fromkeys(open_, True)
    negative = dict.fromkeys(open_, False)
    long_words: dict[int, list[bytes]] = {i: [] for i in open_}  # highest, lowest, one that rounds
    for block in _blocks(text):
        words = block.replace(between.encode(), b" ").split() if between else block.split()
        for i in open_:
            column = b" ".join(words[i :: len(types)])
            whole[i] = whole[i] and not column.translate(None, b"0123456789+- ")
            negative[i] = negative[i] or b"-" in column
            for word in _LONG_WHOLE.findall(column):
                if len(word.lstrip(b"+-0")) > 20:
                    raise ValueError(_too_large(names[i], word))
                held = [*long_words[i], word]
                rounds = [w for w in held if int(float(w)) != int(w)]
                long_words[i] = [max(held, key=int), min(held, key=int), *rounds[:1]]
    for i in open_:
        high, low, *rounds = long_words[i] or [b"0", b"0"]
        if not whole[i]:
            exact[i] = np.dtype(np.float64)
            if rounds:
                raise ValueError(_too_large(names[i], rounds[0]))
        elif int(low) < -(2**63) or int(high) >= (2**63 if negative[i] else 2**64):
            raise ValueError(_too_large(names[i], low if int(low) < -(2**63) else high))
        else:
            exact[i] = np.dtype(np.int64 if int(high) < 2**63 else np.uint64)
    return exact


def _blocks(text: bytes) -> Iterator[bytes]:
    """The text in blocks of whole lines."""
    at = 0
    while at < len(text):
        end = text.find(b"\n", at + BLOCK)
        end = end + 1 if end >= 0 else len(text)
        yield text[at:end]
        at = end


def _too_large(name: str, word: bytes) -> str:
    return (
        f"column {short(name)}: neither int64, uint64 nor, with its other words, float64 holds "
        f"{short(word.decode())[:40]}"
    )


def _first_fault(
    text: bytes, plain: bytes, types: Sequence[np.dtype], between: str | None, line: int
) -> str:
    """Which line is not as many numbers as there are columns."""
    read, wanted = [type_ != ANY for type_ in types], f"is not {len(types)} numbers"
    lines = zip(io.BytesIO(text), io.BytesIO(plain), strict=True)
    for number, (raw, each) in enumerate(lines, line):
        words = _split(each, between)
        try:
            list(map(float, itertools.compress(words, read)))
            good = len(words) == len(types)
        except ValueError:
            good = False
        if any(words) and not good:
            return f"line {number} {wanted}: {short(raw.decode('utf-8', 'replace'))}"
    return f"a line {wanted}"
