# SPDX-License-Identifier: Apache-2.0
"""What the readers of stored data sets share: text tables, indexes that appear whole, blocks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchvox._errors import CloudFileError
from torchvox._locks import LOCK, lock
from torchvox.io.writers import full_disk_of

INDEX, DRAFT = "index.json", ".draft."
FILES = (INDEX, "points.bin", "xyz.bin", "rgb.bin", "label.bin")  # of any index
Sizes = Callable[[dict[str, Any]], dict[str, int]]


def read_table(path: Path, columns: int, delimiter: str | None = None) -> np.ndarray:
    """Numbers [N, columns] float32 of a text file.

    Control characters count as blanks: one room of S3DIS has such a byte between two numbers.
    Raises CloudFileError that names the line.
    """
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise CloudFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
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
        shown = line[:60].decode(errors="replace")
        return f"line {number} does not hold {columns} numbers: {shown!r}"
    return f"the lines do not hold {columns} numbers each"


class Mapped:
    """A flat file of rows as a memory-mapped array, opened when it is first read.

    Pickles as its path: a mapped array itself would be copied to every worker.
    """

    def __init__(self, path: Path, dtype: type, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        self._array: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def __getitem__(self, index: Any) -> np.ndarray:
        if self._array is None:
            self._array = np.memmap(self.path, self.dtype, "r").reshape(self.shape)
        return self._array[index]


def read_index(folder: Path, source: dict[str, Any], sizes: Sizes) -> dict[str, Any] | None:
    """The index in a folder when it was made from `source` and is whole, else None.

    sizes: of an index, the bytes of each file beside it; it may fail for one that is damaged.
    """
    try:
        found = json.loads((folder / INDEX).read_text())
        whole = all((folder / name).stat().st_size == n for name, n in sizes(found).items())
        return found if whole and found["source"] == source else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, ArithmeticError):
        return None


def _is_index(folder: Path) -> bool:
    """Whether a folder holds nothing but what an index does, so that it may be replaced: drafts
    too, and what the root of a file system has."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {"no folder"}
    return all(name in (*FILES, LOCK, "lost+found") or name.startswith(DRAFT) for name in names)


@contextlib.contextmanager
def new_index(target: Path, sizes: Sizes) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder for files and an index to fill, which appear in `target` whole or not at all: not
    where another process has written the index of the same source meanwhile. sizes: as of
    `read_index`."""
    target = Path(os.path.realpath(target))
    is_new = not target.exists()
    if not is_new and not _is_index(target):
        raise CloudFileError(
            f"{target} holds other files than an index: set data.cache to a folder of its own"
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=DRAFT, dir=target))
    except OSError as error:
        raise CloudFileError(
            f"{target}: the index cannot be written here ({error.strerror}): "
            "set data.cache to a folder for it"
        ) from None
    try:
        index: dict[str, Any] = {}
        with full_disk_of(target):
            yield folder, index
            (folder / INDEX).write_text(json.dumps(index, indent=1))
        with lock(target, wait=True):
            if read_index(target, index["source"], sizes) is None:
                for name in FILES:
                    (target / name).unlink(missing_ok=True)
                for path in sorted(folder.iterdir(), key=lambda path: path.name == INDEX):
                    path.replace(target / path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty
            if is_new:
                target.rmdir()
