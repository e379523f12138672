# SPDX-License-Identifier: Apache-2.0
"""Entries to all readers: open_points, read_cloud over it, find_clouds for folders."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from torchvox._util.errors import CloudFileError, WrongUseError, file_errors
from torchvox.io import text
from torchvox.io.argoverse import open_feather
from torchvox.io.binary import map_words, open_bin, open_npy, open_npz
from torchvox.io.e57 import E57Reader
from torchvox.io.las import LasReader
from torchvox.io.layouts import parse_layout
from torchvox.io.paths import scan_of
from torchvox.io.pcd import open_pcd
from torchvox.io.ply import open_ply
from torchvox.io.recording import ScanReader, is_recording, open_recording

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from torchvox.io.cloud import PointCloud
    from torchvox.io.table import PointReader


def open_points(
    path: str | Path, layout: str | None = None, *, salvage: bool = False
) -> PointReader:
    """A reader of a file of points, whose format is known by its suffix; it reads in chunks.

    path: .bin (KITTI, nuScenes and the like), .npy, .npz, .pcd, .las, .laz (COPC too), .ply, .xyz,
        .txt, .csv, .pts, .feather (Argoverse) or .e57, with its scans in one frame; or a scan of
        a recording, as drive.mcap/000123 (`find_clouds`).
    layout: columns of a file that does not name them: see layouts.parse_layout. Required for
        .bin, optional for .npy, .npz and text, an error for the formats that name their columns.
    salvage: read what can be recovered from a truncated LAS file; `problems` says so.
    Raises CloudFileError for a missing, empty, truncated or damaged file, WrongUseError for a
    wrong layout, MissingExtraError when the format needs a package that is not installed.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if (scan := scan_of(path)) is not None:
        if layout is not None:
            raise WrongUseError(f"{path}: a recording names its columns; remove --layout")
        return ScanReader(path, scan)
    if is_recording(path) and suffix != ".e57":
        raise WrongUseError(f"{path} is a recording: name one of its scans, as {path}/000000")
    if path.is_dir():
        raise CloudFileError(f"{path} is a folder, not a point-cloud file")
    if suffix in TREES:
        raise CloudFileError(map_words(path))
    if suffix not in SUFFIXES:
        raise WrongUseError(f"{path}: unknown format, torchvox reads {', '.join(SUFFIXES)}")
    columns = parse_layout(layout) if layout is not None else None
    with file_errors(path):
        if path.stat().st_size == 0:
            raise CloudFileError(f"{path} is empty (0 bytes)")
        if suffix in _BY_LAYOUT:
            return _BY_LAYOUT[suffix](path, columns)
        if columns is not None:
            raise WrongUseError(f"{path}: this format already names its columns; remove --layout")
        return _NAMED[suffix](path) if suffix in _NAMED else LasReader(path, salvage)


def read_cloud(
    path: str | Path, layout: str | None = None, *, origin: np.ndarray | None = None
) -> PointCloud:
    """One point cloud in float32: see open_points for path, layout and errors.

    origin: [3] float64 that is subtracted from the coordinates, so that clouds can share it; by
        default one near the points if float32 does not resolve their coordinates, else zero.
    LAS files give intensity, colors, classification and return number, others every column.

    >>> torchvox.io.write_cloud("scan.npz", torchvox.data.generate_scan(azimuths=90))
    >>> cloud = torchvox.io.read_cloud("scan.npz")
    >>> cloud.columns, cloud.tensor("cpu").dtype
    (('x', 'y', 'z', 'intensity'), torch.float32)
    """
    reader = open_points(path, layout)
    with file_errors(reader.path):
        return reader.cloud(origin)


def find_clouds(
    paths: Iterable[str | Path], *, topic: str | None = None, scans: slice | None = None
) -> list[Path]:
    """The files in order; a folder stands for the point-cloud files in it, sorted by name, without
    hidden ones and without .txt and .csv files, which are often something else. A recording stands
    for its scans: drive.mcap/000123, or drive.mcap/ouster/points/000123 if it has several topics;
    but an .e57 file for itself, unless topic or scans is given.

    topic, scans: of the scans of recordings, which topic and numbers; a topic is needed if there
        are several of clouds. The number of scans comes from the index of a recording.
    Raises WrongUseError for a path that does not exist, a folder without point clouds, and for
    topic or scans without a recording, CloudFileError for a damaged recording.
    """
    files: list[Path] = []
    given = [*map(Path, paths)]
    recordings = {path for path in given if is_recording(path)}
    if not recordings and not (topic is None and scans is None):
        what = "--topic, --every and --scans choose scans of a recording"
        raise WrongUseError(f"{what}, but there is none among {', '.join(map(str, given[:3]))}")
    for path in given:
        whole = topic is None and scans is None and path.suffix.lower() == ".e57"
        if path in recordings and not whole:
            with contextlib.closing(open_recording(path, topic)) as recording:
                files += recording.paths(scans or slice(None))
            continue
        if not path.exists() and scan_of(path) is None:
            raise WrongUseError(f"{path} does not exist")
        if not path.is_dir():
            files.append(path)
            continue
        clouds = (p for p in path.glob("[!.]*") if p.suffix.lower() in FOLDER_SUFFIXES)
        inside = sorted(
            p for p in clouds if p.is_file() or not p.exists()
        )  # a reader reports links
        if not inside:
            below = ", and folders in it are not searched" * any(p.is_dir() for p in path.iterdir())
            below += "; name the recordings in it" * any(map(is_recording, path.iterdir()))
            kinds = ", ".join(FOLDER_SUFFIXES)
            raise WrongUseError(f"{path} holds no point clouds ({kinds}){below}")
        files += inside
    return files


# Formats whose columns a layout may name, and others.
_BY_LAYOUT = {".bin": open_bin, ".npy": open_npy, ".npz": open_npz}
_BY_LAYOUT |= dict.fromkeys(text.SUFFIXES, text.open_text)
TREES = (".bt", ".ot")  # OctoMap's
_NAMED = {".pcd": open_pcd, ".ply": open_ply, ".feather": open_feather, ".e57": E57Reader}
NAMED = (*_NAMED, ".las", ".laz", "")  # formats that name their columns; "": scans
SUFFIXES: tuple[str, ...] = (".bin", ".npy", ".npz", ".pcd", ".las", ".laz", ".ply", *text.SUFFIXES)
SUFFIXES += (".feather", ".e57")
FOLDER_SUFFIXES = tuple(s for s in SUFFIXES if s not in (".txt", ".csv"))  # often something else
