# SPDX-License-Identifier: Apache-2.0
"""What the readers of stored data sets share: text tables, and arrays that are packed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchvox._util.errors import CloudFileError, explained
from torchvox.io.writers import atomic_path


def read_table(path: Path, columns: int, delimiter: str | None = None) -> np.ndarray:
    """Numbers [N, columns] float32 of a text file.

    Control characters count as blanks: one room of S3DIS has such a byte between two numbers.
    Raises CloudFileError that names the line.
    """
    with explained(path, "table"):
        text = path.read_bytes()
    text = text.translate(bytes(32 if c < 32 and c not in b"\n\r" else c for c in range(256)))
    blank = text.replace(delimiter.encode(), b" ") if delimiter else text
    lines = [line for line in blank.splitlines() if line.strip()]
    try:
        table = np.loadtxt(lines, np.float32, ndmin=2) if lines else np.empty((0, columns))
        if table.shape[1] != columns or not np.isfinite(table).all():
            raise ValueError
        return table.astype(np.float32, copy=False)
    except ValueError:
        raise CloudFileError(f"{path}: {_first_bad_line(lines, columns)}") from None


def _first_bad_line(lines: list[bytes], columns: int) -> str:
    for number, line in enumerate(lines, 1):
        try:
            if len([w for w in line.split() if abs(float(w)) < 3.4e38]) == columns:  # float32's
                continue
        except ValueError:
            pass
        start = line[:60].decode(errors="replace")
        return f"line {number} does not hold {columns} numbers: {start!r}"
    return f"the lines do not hold {columns} numbers each"


class Mapped:
    """The array of a .npy file, memory-mapped when it is first read.

    Pickles as its path: a mapped array itself would be copied to every worker.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def array(self) -> np.ndarray:
        return np.load(self.path, mmap_mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.array[index]

    def __len__(self) -> int:
        return len(self.array)


def packed(
    path: Path, fits: Callable[[np.ndarray], bool], write: Callable[[BinaryIO], object]
) -> Mapped:
    """The array of a .npy file, which `write` makes, whole or not at all, where there is none that
    `fits`. Raises CloudFileError."""
    try:
        if fits(np.load(path, mmap_mode="r", allow_pickle=False)):
            return Mapped(path)
    except Exception:  # a damaged file can fail anywhere inside NumPy
        pass
    try:
        with atomic_path(path) as draft, draft.open("wb") as file:
            write(file)
    except OSError as error:
        rule = "set data.cache to a folder for it"
        raise CloudFileError(f"{path}: {error.strerror}: {rule}") from None
    return Mapped(path)
