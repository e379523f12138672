# SPDX-License-Identifier: Apache-2.0
"""Your own objects: a folder per class, a file per object.

mine/chair/0001.ply   any cloud that torchvox.io reads, .txt and .csv too; the folder's name is
                      the class
mine/train.txt        names such as chair/0001, one per line, of the objects to learn from, and
mine/val.txt          of those that are held back; of one file alone, the other split is the
                      rest; without both a fifth of each class is held back
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from torchvox._util.errors import CloudFileError, WrongUseError, expect
from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device, Generated
from torchvox.data.readers.folder import VAL, Scan, by_name, listed_scans
from torchvox.data.readers.stored import draw_points
from torchvox.io import PointCloud, read_cloud
from torchvox.io.paths import cloud_stem
from torchvox.io.readers import NAMED, SUFFIXES
from torchvox.io.roles import COLORS

XYZ, NORMALS = ("x", "y", "z"), ("nx", "ny", "nz")


def clouds_in(folder: Path) -> list[Path]:
    """The files of points in a folder, .txt and .csv too, sorted by name."""
    return sorted(p for p in folder.glob("[!.]*") if p.suffix.lower() in SUFFIXES)


def class_folders(root: str | Path) -> list[Path]:
    """The folders in a folder that hold files of points, sorted; none that torchvox made."""
    folders = (p for p in Path(root).glob("[!.]*") if not p.name.startswith("torchvox_"))
    return sorted(p for p in folders if p.is_dir() and clouds_in(p))


def find_objects(root: str | Path, split: str | None = None, seed: int = 0) -> list[Scan]:
    """The objects of a folder, or of one split, named class/name, sorted. Raises WrongUseError."""
    root, scans = Path(root), []
    for folder in class_folders(root):
        files = by_name((f"{folder.name}/{cloud_stem(path)}", path) for path in clouds_in(folder))
        scans += [Scan(name, path, None) for name, path in files.items()]
    if not scans:
        what = "has no folders with point clouds" if root.is_dir() else "is not a folder"
        raise WrongUseError(f"{root} {what}: objects are in a folder per class")
    return split_of(scans, root, split, seed)


def split_of(scans: list[Scan], root: Path, split: str | None, seed: int) -> list[Scan]:
    """The clouds of a split by <root>/<split>.txt, else the rest of the other split's file, else by
    chance: a fifth of each class, which depends on the names and the seed, is held back."""
    if split is None:
        return scans
    expect(split in ("train", "val"), "split must be train or val", split)
    other, groups = root / {"train": "val.txt", "val": "train.txt"}[split], defaultdict(list)
    if other.exists():
        there = {scan.name for scan in listed_scans(scans, other, None)}
        rest = [scan.name for scan in scans if scan.name not in there]
        return listed_scans(scans, root / f"{split}.txt", rest)
    for scan in sorted(scans, key=lambda s: hashlib.sha256(f"{seed}/{s.name}".encode()).digest()):
        groups[scan.name.rpartition("/")[0]].append(scan.name)
    fifths = (names[: max(len(names) // VAL, len(names) > 1)] for names in groups.values())
    held = {name for names in fifths for name in names}
    usual = [scan.name for scan in scans if (scan.name in held) == (split == "val")]
    return listed_scans(scans, root / f"{split}.txt", usual)


def feature_names(columns: Sequence[str], normals: bool = False) -> tuple[str, ...]:
    """The columns behind x, y, z, with normals where they are asked for. Raises WrongUseError."""
    if tuple(columns[:3]) != XYZ or len(set(columns)) < len(columns):
        got = ", ".join(columns)
        raise WrongUseError(f"data.columns must be different names, x, y, z first, got {got}")
    return (*columns[3:], *(name for name in NORMALS if normals and name not in columns))


def read_object(path: Path, layout: str | None = None) -> PointCloud:
    """A cloud, whose layout counts where its format does not name the columns."""
    return read_cloud(path, None if path.suffix.lower() in NAMED else layout)


def finite_points(cloud: PointCloud) -> PointCloud:
    """The points whose coordinates are finite. Raises CloudFileError without any."""
    kept = cloud.finite()
    if not kept.any():
        raise CloudFileError(f"{cloud.path or 'the cloud'} has no finite point")
    return replace(cloud, points=cloud.points[kept])


def unit_sphere(cloud: PointCloud) -> np.ndarray:
    """Coordinates [N, 3] float64 about their mean, the farthest at distance 1."""
    xyz = cloud.points[:, :3].astype(np.float64)
    xyz -= xyz.mean(0)
    xyz /= max(np.linalg.norm(xyz, axis=1).max(), 1e-12)
    return xyz


def features(cloud: PointCloud, names: Sequence[str]) -> np.ndarray:
    """Columns [N, k] float32. Red, green and blue are from 0 to 1, others as they are; what is not
    finite is 0. Raises WrongUseError for a column that is missing."""
    columns = [column for name in names if (column := cloud.column(name)) is not None]
    if len(columns) < len(names):
        raise WrongUseError(
            f"{cloud.path or 'the cloud'} must have the columns {', '.join(names)}, "
            f"it has {', '.join(cloud.columns)}: check the layout"
        )
    table = np.stack(columns, 1) if columns else np.empty((len(cloud), 0), np.float32)
    table = np.where(np.isfinite(table), table, np.float32(0))
    if colors := [i for i, name in enumerate(names) if name in COLORS]:
        highest = table[:, colors].max()
        table[:, colors] /= 1.0 if highest <= 1 else 255.0 if highest <= 255 else 65535.0
    return table


class Objects(Generated):
    """Your own objects as samples {points [N, C], label, id}.

    root: the folder. split: train or val; None: all objects. points: N random ones per object, the
        same each time; of fewer all, and random ones again.
    columns: x, y, z and others; normals: also nx, ny, nz. layout: columns of files that do not name
        theirs. seed: of the split without lists, and of the choice of points.
    Coordinates are centered and scaled to the unit sphere. classes: the names of the folders,
    sorted, in label order.
    Raises WrongUseError and CloudFileError that name the file.
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = "train",
        points: int = 1024,
        columns: Sequence[str] = XYZ,
        normals: bool = False,
        layout: str | None = None,
        seed: int = 0,
    ) -> None:
        expect(points > 0, f"{type(self).__name__}: points must be above 0", points)
        self.names, self.root = feature_names(columns, normals), Path(root)
        self.points, self.columns = points, len(XYZ) + len(self.names)
        self.layout, self.seed = layout, seed
        self.scans = self._find(split)
        super().__init__(len(self.scans))

    def _find(self, split: str | None) -> list[Scan]:
        scans = find_objects(self.root, None)
        self.classes = sorted({scan.name.split("/")[0] for scan in scans})
        return split_of(scans, self.root, split, self.seed)

    def generate(self, indices: Sequence[int], device: Device) -> dict[str, Tensor]:
        batch = default_collate([self._sample(int(i)) for i in indices])
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def _sample(self, index: int) -> dict[str, np.ndarray | int]:
        scan = self.scans[index]
        cloud = finite_points(read_object(scan.points, self.layout))
        table = np.concatenate([unit_sphere(cloud), features(cloud, self.names)], 1)
        draws = Draws(self.seed, scan.name, torch.zeros(1))
        rows = draw_points(draws, np.arange(len(table)), self.points)
        label = self.classes.index(scan.name.split("/")[0])
        return {"points": table[rows].astype(np.float32), "label": label, "id": index}
