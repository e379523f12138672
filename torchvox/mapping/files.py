# SPDX-License-Identifier: Apache-2.0
"""Files of maps of every format: read by what they begin with, written by their suffix."""

from __future__ import annotations

import zipfile
from pathlib import Path

from torchvox._util.errors import explained
from torchvox.mapping.contents import MapContents, read_map
from torchvox.mapping.octomap import read_octomap

MAP_SUFFIXES = (".npz", ".bt", ".ot")
VOXEL_SUFFIXES = (".ply", ".las", ".laz")  # points, written only


def read(path: str | Path) -> MapContents:
    """The map of a file: an OctoMap tree if it begins like one, else an .npz."""
    return read_octomap(path) if _is_tree(path) else read_map(path)


def is_map(path: str | Path) -> bool:
    """Whether a file is a map by its content: an OctoMap tree, or an .npz with arrays of a map."""
    try:
        if _is_tree(path):
            return True
        with zipfile.ZipFile(path) as archive:
            return {"about.npy", "keys.npy"} <= set(archive.namelist())
    except Exception:  # not an .npz, or unreadable: its reader says what is wrong
        return False


def _is_tree(path: str | Path) -> bool:
    with explained(Path(path), "map file"), Path(path).open("rb") as file:
        return file.read(9) == b"# Octomap"
