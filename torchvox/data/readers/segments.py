# SPDX-License-Identifier: Apache-2.0
"""Your own clouds with a label for each point.

    mine/points/0001.ply  any cloud that torchvox.io reads, with a column of labels (0, 1, ..), or
    mine/labels/0001.npy  its labels [N], of all points in their order; -1 for points to be ignored
    mine/train.txt        and val.txt, names of clouds as 0001, as for objects

Without a folder `points` the clouds lie in the folder itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.data.counter_random import Draws
from torchvox.data.readers import objects, stored
from torchvox.data.readers.folder import Scan, by_name
from torchvox.io import PointCloud, cloud_stem, find_clouds
from torchvox.io.binary import load_npy
from torchvox.io.roles import column_named, is_whole

IGNORED = -1  # the label of points that training and evaluation ignore


def find_segments(root: str | Path, split: str | None = None, seed: int = 0) -> list[Scan]:
    """The clouds of a folder, or of one split, sorted by name. Raises WrongUseError."""
    root = Path(root)
    inside = root / "points" if (root / "points").is_dir() else root
    files = objects.clouds_in(inside) if inside != root else find_clouds([root])
    scans = [Scan(n, p, None) for n, p in by_name((cloud_stem(p), p) for p in files).items()]
    if not scans:
        raise WrongUseError(f"{inside} holds no point clouds")
    return objects.split_of(scans, root, split, seed)


class Segments(objects.Objects):
    """Your own labelled clouds as samples {points [N, C], labels [N], id}, labels -1: ignored.

    root: the folder. split: train or val; None: all clouds. classes: names of the labels 0, 1, ..
    label: column of the labels, where there is no file of labels. ignore: labels that become -1.
    block: meters. None: a sample is a cloud, centered and scaled to the unit sphere. Otherwise it
        is a column of that width around a random point; x and y from there, z from the lowest point
        of the cloud. Block i is a function of (seed, i); clouds have blocks by their points, and
        are all in memory.
    size: blocks; by default so many that their points are as many as those of the clouds.
    points, columns, normals, layout, seed and errors: as of Objects.
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = "train",
        *,
        classes: Sequence[str],
        label: str = "label",
        ignore: Sequence[int] = (),
        block: float | None = None,
        points: int = 4096,
        columns: Sequence[str] = objects.XYZ,
        normals: bool = False,
        layout: str | None = None,
        seed: int = 0,
        size: int | None = None,
    ) -> None:
        self.classes, self.label, self.ignore = list(classes), label, list(ignore)
        self.root, self.split, self.block = Path(root), str(split), block
        if not all(self.classes) or len(set(self.classes)) < len(self.classes):
            raise WrongUseError(f"Segments: classes must be different names, got {self.classes}")
        super().__init__(root, split, points, columns, normals, layout, seed)
        if block is not None:
            self.tables = [self._table(scan) for scan in self.scans]
            counts = [np.count_nonzero(table[:, -1] != IGNORED) for table in self.tables]
            self.ends = np.cumsum(counts)  # of points that have a label
            self.size = -(-sum(map(len, self.tables)) // points) if size is None else size

    def _find(self, split: str | None) -> list[Scan]:
        return find_segments(self.root, split, self.seed)

    def read(self, scan: Scan) -> tuple[PointCloud, np.ndarray]:
        """A cloud and its labels [N] int64, of all points. Raises CloudFileError."""
        cloud = objects.read_object(scan.points, self.layout)
        path = self.root / "labels" / f"{scan.name}.npy"
        if path.exists():
            labels = load_npy(path).reshape(-1)
            if len(labels) != len(cloud):
                rule = f"{scan.points} has {len(cloud):,} points"
                raise CloudFileError(f"{path} has {len(labels):,} labels, but {rule}")
        elif (name := column_named(cloud.columns, self.label)) is not None:
            labels, path = cloud.points[:, cloud.columns.index(name)], scan.points
        else:
            rule = f"it has {', '.join(cloud.columns)}, and there is no {path}"
            raise CloudFileError(f"{scan.points} has no column {self.label} of labels: {rule}")
        good = labels.dtype.kind in "iufb" and bool((abs(labels.astype("f8")) < 2**31).all())
        if not good or not is_whole(labels):
            raise CloudFileError(f"{path}: labels must be whole numbers")
        labels = labels.astype(np.int64)
        labels[np.isin(labels, self.ignore)] = IGNORED
        wrong = labels[(labels < IGNORED) | (labels >= len(self.classes))]
        if len(wrong) and self.classes:
            last = f"{len(self.classes) - 1} ({self.classes[-1]})"
            rule = f"is neither from 0 to {last}, -1 nor in ignore"
            raise CloudFileError(f"{path}: the label {wrong[0]} of {len(wrong):,} points {rule}")
        if not (labels[cloud.finite()] != IGNORED).any():
            raise CloudFileError(f"{path}: no point has a label")
        return cloud, labels

    def _table(self, scan: Scan) -> np.ndarray:
        """[N, C + 1] float32: columns and label of the finite points, those with a label first."""
        cloud, labels = self.read(scan)
        labels, cloud = labels[cloud.finite()], objects.finite_points(cloud)
        xyz = objects.unit_sphere(cloud) if self.block is None else cloud.points[:, :3]
        xyz = xyz if self.block is None else xyz - xyz.min(0)
        table = np.column_stack([xyz, objects.features(cloud, self.names), labels]).astype("<f4")
        return table[np.argsort(labels == IGNORED, kind="stable")]

    def _sample(self, index: int) -> dict[str, np.ndarray | int]:
        if self.block is None:
            scan = self.scans[index]
            draws, table, middle = Draws(self.seed, scan.name, torch.zeros(1)), self._table(scan), 0
            members, at = np.arange(len(table)), np.zeros(2, np.float32)
        else:
            draws = Draws(self.seed, self.split, torch.tensor([index]))
            middles = draws.uniform("middle", stored.TRIES)[0].numpy() * self.ends[-1]
            number = int(np.searchsorted(self.ends, middles[0], side="right"))
            table, count = self.tables[number], np.diff(self.ends, prepend=0)[number]
            middles = middles.astype(np.int64) % count  # each has a label
            members, middle = stored.find_block(table, middles, self.block, self.points // 4)
            at = table[middle, :2]
        rows = table[stored.draw_points(draws, members, self.points)]
        if not (rows[:, -1] != IGNORED).any():  # no loss can be computed without a label
            rows[0] = table[middle]
        rows[:, :2] -= at
        return {"points": rows[:, :-1], "labels": rows[:, -1].astype(np.int64), "id": index}
