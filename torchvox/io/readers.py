# SPDX-License-Identifier: Apache-2.0
"""Readers: one entry, read_cloud, and one small function per format."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchvox._errors import CloudFileError, WrongUseError, short
from torchvox.io.cloud import PointCloud, make_cloud
from torchvox.io.las import read_las
from torchvox.io.layouts import SKIP, layout_choices, parse_layout
from torchvox.io.pcd import read_pcd

if TYPE_CHECKING:
    from collections.abc import Iterable

NPZ_MEMBERS = ("points", "columns", "origin", "unit")
SMALL_MEMBER = 1 << 24  # bytes that each of them but the points may have
DEFLATE_EXPANSION = 1032  # two bits stand for 258 bytes at most
MOST_COLUMNS = 1 << 16
ITEM_BYTES = 4  # every column of a .bin file is a little-endian float32


def read_cloud(path: str | Path, layout: str | None = None) -> PointCloud:
    """Read one point cloud; the suffix says the format.

    path: .bin (KITTI, nuScenes and the like), .npy, .npz, .pcd, .las or .laz.
    layout: columns of a file that does not name them: see layouts.parse_layout. Required for
        .bin, optional for .npy and .npz, an error for the formats that name their columns.
    Raises CloudFileError for a missing, empty, truncated or damaged file, WrongUseError for a
    wrong layout, MissingExtraError when the format needs a package that is not installed.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise WrongUseError(f"{path}: unknown format, torchvox reads {', '.join(SUFFIXES)}")
    columns = parse_layout(layout) if layout is not None else None
    try:
        if path.is_dir():
            raise CloudFileError(f"{path} is a folder, not a point-cloud file")
        if path.stat().st_size == 0:
            raise CloudFileError(f"{path} is empty (0 bytes)")
        if suffix in _READERS:
            return _READERS[suffix](path, columns)
        if columns is not None:
            raise WrongUseError(f"{path}: this format names its columns, leave --layout out")
        return _NAMED[suffix](path)
    except OSError as error:
        raise CloudFileError(f"{path}: {error.strerror or error}") from error


def cloud_stem(path: str | Path) -> str:
    """File name without its format suffix; `.pcd.bin`, the nuScenes spelling, is one suffix."""
    path = Path(path)
    stem = path.stem
    return stem[:-4] if path.name.lower().endswith(".pcd.bin") else stem


def find_clouds(paths: Iterable[str | Path]) -> list[Path]:
    """Files in the order given; a folder stands for the point-cloud files in it, sorted by name.

    Raises WrongUseError for a path that does not exist or a folder without point clouds.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise WrongUseError(f"{path} does not exist")
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES)
        if not inside:
            raise WrongUseError(f"{path} holds no point clouds ({', '.join(SUFFIXES)})")
        found += inside
    return found


def _read_bin(path: Path, columns: tuple[str, ...] | None) -> PointCloud:
    if columns is None:
        raise WrongUseError(
            f"{path}: a .bin file does not say its columns: give --layout, {layout_choices()}"
        )
    size, row = path.stat().st_size, ITEM_BYTES * len(columns)
    if size % row:
        raise CloudFileError(
            f"{path}: {size} bytes are not a whole number of points of {row} bytes "
            f"({','.join(columns)} as float32), so the file is cut short or has other columns: "
            "check --layout"
        )
    return _named(np.fromfile(path, "<f4").reshape(-1, len(columns)), columns, path)


def load_npy(path: Path) -> np.ndarray:
    """The array of a .npy file. Raises CloudFileError when it is none."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise CloudFileError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged header is parsed as Python and can fail in many ways
        raise CloudFileError(f"{path} is not a readable .npy file: {_first_line(error)}") from error
    if isinstance(array, np.lib.npyio.NpzFile):
        array.close()
        raise CloudFileError(f"{path} is a .npz archive under the name .npy: rename it")
    return array


def _read_npy(path: Path, columns: tuple[str, ...] | None) -> PointCloud:
    return _from_array(load_npy(path), columns, path)


def _read_npz(path: Path, columns: tuple[str, ...] | None) -> PointCloud:
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = list(archive.files)
            arrays = {name: _member(archive, name) for name in NPZ_MEMBERS if name in held}
    except OSError:
        raise
    except Exception as error:  # zip, zlib, or a damaged header inside
        raise CloudFileError(f"{path} is not a readable .npz file: {_first_line(error)}") from error
    if "points" not in arrays:
        shown = short(", ".join(held) or "nothing")
        raise CloudFileError(f"{path} has no array named 'points' (it holds {shown})")
    if columns is None and "columns" in arrays:
        # An array of empty strings may have any length.
        columns = tuple(str(name) for name in arrays["columns"].ravel()[: MOST_COLUMNS + 1])
    cloud = _from_array(arrays["points"], columns, path)
    origin = arrays.get("origin", np.zeros(3))
    if origin.shape != (3,) or origin.dtype.kind not in "fiu" or not np.isfinite(origin).all():
        raise CloudFileError(f"{path}: origin must be 3 numbers, got shape {list(origin.shape)}")
    cloud.origin = cloud.origin + origin.astype(np.float64)
    cloud.unit = short(arrays.get("unit", cloud.unit))
    return cloud


def _member(archive: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """One array, unless it claims more than its bytes can hold, or should be small and is not."""
    assert archive.zip is not None
    info = archive.zip.getinfo(name if name in archive.zip.namelist() else f"{name}.npy")
    most = info.compress_size
    if info.compress_type == zipfile.ZIP_DEFLATED:
        most *= DEFLATE_EXPANSION
    elif info.compress_type != zipfile.ZIP_STORED:  # others have no bound, and NumPy writes none
        raise ValueError(f"{name} is compressed otherwise than NumPy does")
    if info.file_size > (most if name == "points" else min(most, SMALL_MEMBER)):
        raise ValueError(f"{name} claims {info.file_size} bytes, more than it can hold")
    return archive[name]


def _from_array(array: np.ndarray, columns: tuple[str, ...] | None, path: Path) -> PointCloud:
    shape, kind = list(array.shape), array.dtype.kind
    if len(shape) != 2 or not 3 <= shape[1] <= MOST_COLUMNS or kind not in "fiu":
        raise CloudFileError(
            f"{path}: points must be a numeric array [N, C] with C from 3 to {MOST_COLUMNS}, "
            f"got {short(array.dtype)} {shape}"
        )
    width = array.shape[1]
    if columns is None:
        columns = ("x", "y", "z", *(f"column{i}" for i in range(3, width)))
    if len(columns) != width:
        raise CloudFileError(
            f"{path} has {width} columns, but the layout names {len(columns)} "
            f"({short(','.join(columns))})"
        )
    return _named(array, columns, path)


def _named(array: np.ndarray, columns: tuple[str, ...], path: Path) -> PointCloud:
    if columns[:3] == ("x", "y", "z") and SKIP not in columns and array.dtype == np.float32:
        points = np.ascontiguousarray(array, np.float32)
        return PointCloud(points, columns, path=path)
    named = {name: array[:, i] for i, name in enumerate(columns) if name != SKIP}
    if not {"x", "y", "z"} <= named.keys():
        shown = short(",".join(columns))
        raise CloudFileError(f"{path}: the columns {shown} do not name x, y and z")
    return make_cloud(named, path)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


_READERS = {".bin": _read_bin, ".npy": _read_npy, ".npz": _read_npz}
_NAMED = {".pcd": read_pcd, ".las": read_las, ".laz": read_las}  # formats that name their columns
SUFFIXES = (*_READERS, *_NAMED)
