# SPDX-License-Identifier: Apache-2.0
"""Writers whose files appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._errors import WrongUseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchvox.io.cloud import PointCloud


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it vanishes.

    Missing parent folders are made. The temporary file has the name of `path`, in a folder of its
    own: torch writes the name of a file into it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".torchvox_", dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        os.replace(temporary, path)


def write_whole(path: str | Path, write: Callable[[io.BytesIO], object]) -> None:
    """Write what `write` puts into a buffer, atomically; on the disk before it replaces `path`.

    A buffer, since torch ends the process when a disk fills up under a file of its own.
    """
    buffer = io.BytesIO()
    write(buffer)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        try:
            os.fsync(file.fileno())
        except OSError as error:  # some file systems have no such call
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
                raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    write_whole(path, lambda buffer: buffer.write(text.encode()))


def write_npz(path: str | Path, **arrays: Any) -> None:
    """Write named arrays as a compressed .npz, atomically."""
    # NumPy adds its suffix to a name that ends otherwise, .NPZ too; a file it takes as it is.
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def write_npy(path: str | Path, array: np.ndarray) -> None:
    """Write one array as .npy, atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def write_cloud(path: str | Path, cloud: PointCloud) -> None:
    """Write a cloud as .npz (points, columns, origin, unit) or .npy (the bare array), atomically.

    A .npy file has no place for an origin, so a shifted cloud is written there in float64 world
    coordinates. Raises WrongUseError for another suffix.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        write_npz(
            path,
            points=cloud.points,
            columns=np.array(cloud.columns),
            origin=cloud.origin,
            unit=np.array(cloud.unit),
        )
    elif suffix == ".npy":
        points = cloud.points
        if cloud.origin.any():
            points = points.astype(np.float64)
            points[:, :3] += cloud.origin
        write_npy(path, points)
    else:
        raise WrongUseError(
            f"{path}: clouds are written as .npz or .npy, not {suffix or 'nothing'}"
        )
