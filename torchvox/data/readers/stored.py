# SPDX-License-Identifier: Apache-2.0
"""What readers of stored data share: text tables, arrays packed once, the choice of points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchvox._util.errors import CloudFileError, explained
from torchvox.data.counter_random import Draws
from torchvox.io.words import read_words
from torchvox.io.writers import atomic_path

TRIES = 32  # middles of a block that are tried


def read_table(path: Path, columns: int, delimiter: str = " ") -> np.ndarray:
    """Numbers [N, columns] float32 of a text file.

    Control characters count as blanks: one room of S3DIS has such a byte between two numbers.
    Raises CloudFileError that names the line.
    """
    with explained(path, "table"):
        text = path.read_bytes().replace(delimiter.encode(), b" ")
    text = text.translate(bytes(32 if c < 32 and c not in b"\n\r" else c for c in range(256)))
    try:
        parts = read_words(text, ["of numbers"] * columns, [np.dtype(np.float32)] * columns)
    except ValueError as error:
        raise CloudFileError(f"{path}: {error}") from None
    table = np.stack(parts, axis=1)
    if not (good := np.isfinite(table).all(axis=1)).all():
        lines = [i for i, line in enumerate(text.split(b"\n"), 1) if line.strip()]
        line = lines[int(np.argmin(good))]
        raise CloudFileError(f"{path}: line {line} is not {columns} finite numbers")
    return table


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


def draw_points(draws: Draws, members: np.ndarray, count: int) -> np.ndarray:
    """`count` random ones of the members; of fewer all, and random ones again."""
    keys = draws.bits("points", max(len(members), count))[0].numpy()
    if len(members) >= count:
        return members[np.argsort(keys, kind="stable")[:count]]
    return np.concatenate([members, members[(keys[: count - len(members)] >> 1) % len(members)]])


def find_block(
    xyz: np.ndarray, middles: np.ndarray, block: float, fewest: int
) -> tuple[np.ndarray, int]:
    """The points of a column of `block` meters, and its middle: the first of the middles with
    `fewest` points around it, else that with most. xyz: [N, 3 or more]."""
    best, at = np.empty(0, np.int64), int(middles[0])
    for middle in middles:
        inside = np.nonzero((np.abs(xyz[:, :2] - xyz[middle, :2]) <= block / 2).all(1))[0]
        if len(inside) > len(best):
            best, at = inside, int(middle)
        if len(best) >= fewest:
            break
    return best, at
