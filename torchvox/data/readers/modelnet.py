# SPDX-License-Identifier: Apache-2.0
"""ModelNet40 in its two customary forms: `modelnet40_normal_resampled` (one text file of x, y, z
and normal per object) and `modelnet40_ply_hdf5_2048` (HDF5 files of 2048 points per object)."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import CloudFileError, explained
from torchvox._util.extras import require
from torchvox.data.generated import Device, Generated
from torchvox.data.readers.stored import Mapped, packed, read_table
from torchvox.io.binary import DEFLATE_EXPANSION

FILES = {"train": "train", "val": "test"}  # split here -> name there
NORMAL_COLUMNS = 6
MOST_CLASSES = 1 << 16
SMALL_CHUNK = 1 << 26  # bytes that a chunk may claim however small the file is


class ModelNet40(Generated):
    """Objects of ModelNet40 as samples {points [N, 3 or 6], label, id}.

    root: the unpacked folder, either form; the first `points` rows of text files are packed once
        into a file (in `<root>/torchvox_index`, or `cache`), which later runs map into memory.
    split: train or val, the official test objects. points: the first of each object, already in
        random order there. normals: columns 3-5 are the normals.
    Coordinates are centered and scaled to the unit sphere. classes: the names, in label order.
    """

    clouds: Mapped | np.ndarray

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        *,
        points: int = 1024,
        normals: bool = False,
        cache: str | Path | None = None,
    ) -> None:
        if split not in FILES:
            raise ValueError(f"ModelNet40: split must be train or val, got {split!r}")
        root = Path(root)
        if (root / "modelnet40_shape_names.txt").is_file():
            folder = Path(cache) if cache else root / "torchvox_index"
            self.clouds, self.labels, self.classes = _resampled(root, folder, split, points)
        elif list(root.glob(f"ply_data_{FILES[split]}*.h5")):
            self.clouds, self.labels, self.classes = _hdf5(root, split, normals)
        else:
            forms = f"modelnet40_shape_names.txt nor ply_data_{FILES[split]}*.h5"
            raise CloudFileError(f"{root} is not a ModelNet40 folder: it has neither {forms}")
        first = self.clouds[0]
        if len(first) < points:
            raise CloudFileError(f"{root}: objects have {len(first)} points, fewer than {points}")
        if normals and first.shape[1] < NORMAL_COLUMNS:
            raise CloudFileError(f"{root} has no normals: set data.normals to false")
        super().__init__(len(self.labels))
        self.points, self.columns = points, NORMAL_COLUMNS if normals else 3

    def generate(self, indices: Sequence[int], device: Device) -> dict[str, Tensor]:
        rows = self.clouds[list(indices), : self.points, : self.columns]
        points = torch.from_numpy(np.array(rows, np.float32))
        xyz = points[..., :3]
        xyz -= xyz.mean(1, keepdim=True)
        xyz /= xyz.norm(dim=-1).amax(1).clamp(min=1e-12)[:, None, None]
        label = torch.from_numpy(self.labels[list(indices)].astype(np.int64))
        ids = torch.tensor(list(indices), dtype=torch.int64)
        return {"points": points.to(device), "label": label.to(device), "id": ids.to(device)}


def _lines(path: Path) -> list[str]:
    with explained(path, "list of names"):
        return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def _resampled(
    root: Path, cache: Path, split: str, rows: int
) -> tuple[Mapped, np.ndarray, list[str]]:
    classes = _lines(root / "modelnet40_shape_names.txt")
    names = _lines(root / f"modelnet40_{FILES[split]}.txt")
    if not names:
        raise CloudFileError(f"{root}: modelnet40_{FILES[split]}.txt names no object")
    kinds = [re.sub(r"_\d+$", "", name) for name in names]  # night_stand_0001 -> night_stand
    if unknown := sorted(set(kinds) - set(classes)):
        raise CloudFileError(f"{root}: class {unknown[0]} is not in modelnet40_shape_names.txt")
    labels = np.array([classes.index(kind) for kind in kinds])
    shape = (len(names), rows, NORMAL_COLUMNS)

    def write(file: BinaryIO) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for name, kind in zip(names, kinds, strict=True):
            path = root / kind / f"{name}.txt"
            table = read_table(path, NORMAL_COLUMNS, ",")
            if len(table) < rows:
                raise CloudFileError(f"{path} has {len(table)} points, fewer than {rows}")
            file.write(np.ascontiguousarray(table[:rows], "<f4").tobytes())

    key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    path = cache / f"{split}_{rows}_{key}.npy"
    return packed(path, lambda clouds: clouds.shape == shape, write), labels, classes


def _hdf5(root: Path, split: str, normals: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    h5py = require("h5py", "to read HDF5 files")
    files = root.glob(f"ply_data_{FILES[split]}*.h5")
    clouds, labels = [], []
    for path in sorted(files, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]):
        with explained(path, "file of ModelNet40"), h5py.File(path, "r") as file:
            columns = [_dataset(h5py, file, "data")]
            if normals and "normal" in file:
                columns.append(_dataset(h5py, file, "normal"))
            clouds.append(np.concatenate(columns, -1).astype(np.float32))
            labels.append(_dataset(h5py, file, "label").reshape(-1))
            if clouds[-1].shape != (len(labels[-1]), *clouds[0].shape[1:]) or clouds[0].ndim != 3:
                raise ValueError(f"its shapes do not fit: {clouds[-1].shape} {labels[-1].shape}")
    names = root / "shape_names.txt"
    label = np.concatenate(labels)
    classes = _lines(names) if names.is_file() else [str(i) for i in range(MOST_CLASSES)]
    if not len(label) or not ((label >= 0) & (label < len(classes))).all():
        raise CloudFileError(f"{root}: labels must lie in 0..{len(classes) - 1}")
    label = label.astype(np.int64)
    if not names.is_file():
        classes = classes[: int(label.max()) + 1]
    return np.concatenate(clouds), label, classes


def _dataset(h5py: ModuleType, file: Any, name: str) -> np.ndarray:
    """A data set whose bytes are in the file. HDF5 fills in what a file leaves out, so that a small
    file may claim any size."""
    data = file[name]
    inside = isinstance(file.get(name, getlink=True), h5py.HardLink)
    if not inside or not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise ValueError(f"{name} must be stored in this file")
    if data.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold numbers, got {data.dtype}")
    chunk = math.prod(data.chunks or (0,)) * data.dtype.itemsize
    size = data.id.get_storage_size()
    if max(data.nbytes, chunk - SMALL_CHUNK) > DEFLATE_EXPANSION * size:
        claim = max(data.nbytes, chunk)
        raise ValueError(f"{name} claims {claim} bytes, but the file holds {size}")
    return data[:]
