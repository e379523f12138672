# SPDX-License-Identifier: Apache-2.0
"""Remarks on stderr, and files read with a remark for each of their problems."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torchvox._util.errors import printable
from torchvox.io import PointCloud, PointReader, open_points

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


def note(message: str) -> None:
    """Print a remark in one line on stderr, so that pipes get results only."""
    print(printable(message.replace("\n", " "), "\t"), file=sys.stderr)


@contextmanager
def noted_warnings() -> Iterator[None]:
    """Prints each different warning of the block as a note."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # they come when Python collects garbage
        try:
            yield
        finally:
            for text in dict.fromkeys(str(each.message) for each in caught):
                note(f"torchvox: warning: {text}")


def open_noted(path: Path, layout: str | None = None) -> PointReader:
    """`open_points`, with a note for each problem of the file."""
    reader = open_points(path, layout)
    for problem in reader.problems:
        note(f"{path.name}: {problem}")
    return reader


def read_noted(
    path: Path, layout: str | None = None, origin: np.ndarray | None = None
) -> PointCloud:
    """`read_cloud`, with a note for each problem of the file."""
    return open_noted(path, layout).cloud(origin)
