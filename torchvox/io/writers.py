# SPDX-License-Identifier: Apache-2.0
"""Writers of atomic files, and the entry to all writers of points, create_points."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import WrongUseError, file_errors
from torchvox.io import binary, las_writer, pcd, ply, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike

    from torchvox.io.cloud import PointCloud
    from torchvox.io.table import PointReader, PointTable, PointWriter


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it vanishes.

    Missing parent folders are made. The temporary file has the name of `path`, in a folder of its
    own, since torch writes the name of a file into it. It is on the disk before it replaces `path`.
    It may be a folder of files.
    """
    path = Path(path)
    holder = path.parent / f".torchvox_{secrets.token_hex(8)}"  # known before a signal may come
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            holder.mkdir(mode=0o700)
        except OSError as error:  # its file is the folder, or a parent that is not a folder
            kind = NotADirectoryError if isinstance(error, FileExistsError) else type(error)
            number = errno.ENOTDIR if kind is NotADirectoryError else error.errno
            words = f"cannot be written: {os.strerror(number or 0)}"
            raise kind(number, words, str(path)) from None
        with full_disk_of(path):
            temporary = holder / path.name
            yield temporary
            for part in (*temporary.rglob("*"), temporary):
                _sync(part)
            os.replace(temporary, path)
            _sync(path.parent)
    finally:
        try:
            _remove(holder)
        except (KeyboardInterrupt, SystemExit):  # a second signal during the cleanup
            _remove(holder)
            raise


def _remove(folder: Path) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)


@contextlib.contextmanager
def full_disk_of(path: Path) -> Iterator[None]:
    """A context in which the error of a full disk names `path`, not a temporary file or none."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and "requested and" not in str(error):  # what NumPy says
            raise
        number, text = error.errno or errno.EIO, error.strerror or str(error)
        raise OSError(number, text, str(path)) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some file systems do not support it
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(handle)


def write_whole(path: str | Path, write: Callable[[io.BytesIO], object]) -> None:
    """Write what `write` puts into a buffer, atomically.

    torch ends the process if a disk fills up while it writes a file itself.
    """
    buffer = io.BytesIO()
    write(buffer)
    with atomic_path(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, atomically."""
    write_whole(path, lambda buffer: buffer.write(text.encode()))


def write_npz(path: str | Path, **arrays: ArrayLike) -> None:
    """Write named arrays as a compressed .npz, atomically."""
    # NumPy adds its suffix to other names, .NPZ too, but not to an open file.
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def write_npy(path: str | Path, array: np.ndarray) -> None:
    """Write one array as .npy, atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def write_cloud(path: str | Path, cloud: PointCloud) -> None:
    """Write a cloud as .npz (points, columns, origin, unit) or .npy (the bare array), atomically.

    A .npy file holds no origin, so a shifted cloud is written there in float64 world coordinates.
    Raises WrongUseError for another suffix.

    >>> torchvox.io.write_cloud("scan.npz", torchvox.data.generate_scan(azimuths=90))
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npz":
        names, unit = np.array(cloud.columns), np.array(cloud.unit)
        write_npz(path, points=cloud.points, columns=names, origin=cloud.origin, unit=unit)
    elif suffix == ".npy":
        points = cloud.points
        if cloud.origin.any():
            points = points.astype(np.float64)
            points[:, :3] += cloud.origin
        write_npy(path, points)
    else:
        rule = "clouds are written as .npz or .npy"
        raise WrongUseError(f"{path}: {rule}, not {suffix or 'nothing'}")


@contextlib.contextmanager
def create_points(
    path: str | Path,
    like: PointTable | PointReader,
    *,
    scale: float | np.ndarray | None = None,
    offset: float | np.ndarray | None = None,
) -> Iterator[PointWriter]:
    """A writer of tables with the columns of `like`; the file appears when the block succeeds.

    path: .las, .laz, .ply, .pcd, .npz, .npy, .bin, .xyz, .txt, .csv or .pts.
    like: the source of lattice, coordinate reference system and, for the same format, the header.
    scale, offset: [3] or one number, the lattice of LAS coordinates instead of that of `like`;
        coordinates without one get steps of 0.001.
    Raises WrongUseError for values that the format does not hold and for the file that `like` came
    from, CloudFileError when writing fails, MissingExtraError if the package for the format is not
    installed.
    """
    path = Path(path)
    writer = point_writer(path)
    lattice = {"scale": scale, "offset": offset} if path.suffix.lower() in (".las", ".laz") else {}
    if not lattice and not (scale is None and offset is None):
        raise WrongUseError(f"{path}: only LAS files take scale and offset")
    if like.path is not None and like.path.exists() and path.exists() and path.samefile(like.path):
        raise WrongUseError(f"{path} would replace the file that it is made from")
    with file_errors(path), atomic_path(path) as temporary, temporary.open("w+b") as file:
        points = writer(file, like, path, **lattice)
        yield points
        points.close()


def point_writer(path: Path) -> Callable[..., PointWriter]:
    """The class of writers for files of this name. Raises WrongUseError if there is none."""
    if path.name.lower().endswith(".copc.laz"):
        raise WrongUseError(f"{path}: COPC files are read, not written: write .laz")
    if path.suffix.lower() not in _WRITERS:
        raise WrongUseError(f"{path}: points are written as {', '.join(_WRITERS)}")
    return _WRITERS[path.suffix.lower()]


_WRITERS: dict[str, Callable[..., PointWriter]] = {
    **dict.fromkeys((".las", ".laz"), las_writer.LasWriter),
    **{".ply": ply.PlyWriter, ".pcd": pcd.PcdWriter, ".npz": binary.NpzWriter},
    **{".npy": binary.NpyWriter, ".bin": binary.BinWriter},
    **dict.fromkeys(text.SUFFIXES, text.TextWriter),
}
POINT_SUFFIXES = tuple(_WRITERS)
