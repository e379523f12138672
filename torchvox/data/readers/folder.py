# SPDX-License-Identifier: Apache-2.0
"""Your own labelled scans: a folder of point clouds and a folder of boxes, one file per scan.

    points/0001.bin   any cloud that torchvox.io reads, in the frame of the sensor, z up
    boxes/0001.csv    one line per box: class,x,y,z,l,w,h,yaw, and optionally vx, vy, ignore, score,
                      track: a name that the object has in other scans too
    boxes/0001.json   or a list of objects with these names, or what torchvox detect writes
    train.txt         names of the scans in a split, one per line; without such files every fifth
                      scan is in "val", the others in "train"

x, y, z: the center of the box in meters; l along yaw, w, h; yaw in radians, counterclockwise from x
seen from above; vx, vy in m/s; ignore: 1 for a box that training and evaluation ignore. dx, dy, dz
and heading are other names of l, w, h and yaw.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from torchvox._util.errors import CloudFileError, WrongUseError, expect, explained, short
from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device, Generated
from torchvox.io import read_cloud
from torchvox.io.paths import cloud_stem
from torchvox.io.readers import find_clouds

PLACE = ("x", "y", "z", "l", "w", "h", "yaw")
NAMES = ("class", *PLACE)
MORE = ("vx", "vy", "score", "ignore", "track")
ALIASES = {"dx": "l", "dy": "w", "dz": "h", "heading": "yaw"}
REST = "values past the names"  # of a line of a .csv file
SUFFIXES = (".csv", ".json")
IGNORE = {word: False for word in ("", "0", "0.0", "false", "none")}
IGNORE |= {word: True for word in ("1", "1.0", "true")}
LARGEST = float(np.finfo(np.float32).max)
VAL = 5  # every fifth scan is in "val"


class ScanBoxes(NamedTuple):
    """boxes: [n, 9] float32, NaN for unknown velocities. names: their classes. ignore: [n] bool.
    tracks: names of objects that other scans have too; "" where there is none."""

    boxes: np.ndarray
    names: list[str]
    ignore: np.ndarray
    tracks: Sequence[str] = ()


def read_boxes(path: str | Path) -> ScanBoxes:
    """Boxes of a .csv or .json file. Raises CloudFileError that names the line or the box, and the
    reason: a missing column, a value that is not a number, a size that is not above 0."""
    path = Path(path)
    rows, names, ignore, tracks = [], [], [], []
    for place, row in _rows(path):
        if missing := [name for name in NAMES if row.get(name) in (None, "")]:
            raise CloudFileError(f"{path} {place}: {', '.join(missing)} is missing")
        if REST in row:
            raise CloudFileError(f"{path} {place} has more values than line 1 has names")
        if unknown := [name for name in row if name not in (*NAMES, *MORE)]:
            rule = f"{short(unknown[0])!r} is not one of {', '.join((*NAMES, *MORE))}"
            raise CloudFileError(f"{path} {place}: {rule}")
        rows.append([_number(row, name, f"{path} {place}") for name in (*PLACE, *MORE[:2])])
        names.append(str(row["class"]).strip())
        if (word := str(row.get("ignore", 0)).strip().lower()) not in IGNORE:
            raise CloudFileError(f"{path} {place}: ignore must be 0 or 1, got {short(word)!r}")
        ignore.append(IGNORE[word])
        track = row.get("track")
        tracks.append("" if track is None else str(track).strip())
    boxes = np.array(rows, np.float32).reshape(-1, len(PLACE) + 2)
    return ScanBoxes(boxes, names, np.array(ignore, bool), tracks)


def _rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    with explained(path, "file of boxes"), path.open(newline="", encoding="utf-8-sig") as file:
        if path.suffix.lower() == ".json":
            rows = json.load(file)
            rows = rows.get("boxes") if isinstance(rows, dict) else rows
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError("it must be a list of objects")
            rows = [dict(zip(_plain(row), row.values(), strict=True)) for row in rows]
            return [(f"box {i}", row) for i, row in enumerate(rows)]
        reader = csv.DictReader(file, restkey=REST, skipinitialspace=True, strict=True)
        try:
            reader.fieldnames = _plain(reader.fieldnames or NAMES)
            if missing := [name for name in NAMES if name not in reader.fieldnames]:
                raise ValueError(f"line 1: {', '.join(missing)} is missing")
            return [(f"line {reader.line_num}", row) for row in reader if any(row.values())]
        except csv.Error as error:
            raise ValueError(f"line {reader.reader.line_num}: {error}") from None


def _plain(names: Iterable[str]) -> list[str]:
    """The names of a row with those of ALIASES replaced, unless both are there."""
    names = list(names)
    return [name if ALIASES.get(name, name) in names else ALIASES[name] for name in names]


def other_class(name: str, classes: Sequence[str]) -> str:
    """The sentence about a class that is not one of these."""
    near = [each for each in classes if each.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, classes, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    return f"class {short(name)!r} is not one of {', '.join(classes)}{hint}"


def _number(row: Mapping[str, Any], name: str, place: str) -> float:
    value, text = math.inf, row.get(name)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        value = math.nan if text in (None, "") else float(text)
    unknown = name in MORE and math.isnan(value)
    if not (abs(value) <= LARGEST or unknown) or (name in "lwh" and value <= 0):
        rule = "above 0" if name in "lwh" else "a finite number"
        raise CloudFileError(f"{place}: {name} must be {rule}, got {short(text)!r}")
    return value


@dataclass(frozen=True)
class Scan:
    """The files of a scan. boxes: None for a scan without labels, which has no boxes."""

    name: str
    points: Path
    boxes: Path | None


def find_scans(root: str | Path, split: str | None = None) -> list[Scan]:
    """The scans of a folder, or of one split, sorted by name. Raises WrongUseError."""
    root = Path(root)
    for name in ("points", "boxes"):
        if not (root / name).is_dir():
            raise WrongUseError(f"{root} must hold the folders points and boxes: {name} is missing")
    clouds = by_name((cloud_stem(path), path) for path in find_clouds([root / "points"]))
    files = sorted(root.glob("boxes/[!.]*"))
    boxes = by_name((path.stem, path) for path in files if path.suffix.lower() in SUFFIXES)
    if alone := sorted(boxes.keys() - clouds.keys()):
        raise WrongUseError(f"{boxes[alone[0]]} has no point cloud {alone[0]} in {root / 'points'}")
    if odd := [path for path in files if path.stem in clouds.keys() - boxes.keys()]:
        raise WrongUseError(f"{odd[0]} must be a {' or '.join(SUFFIXES)} file")
    scans = [Scan(name, path, boxes.get(name)) for name, path in clouds.items()]
    names = list(clouds)
    usual = {"val": names[VAL - 1 :: VAL], "train": [n for i, n in enumerate(names, 1) if i % VAL]}
    return scans if split is None else listed_scans(scans, root / f"{split}.txt", usual.get(split))


def unlabelled(scans: Sequence[Scan]) -> str:
    """A sentence that names scans without a file of boxes, "" if all have one."""
    names = [scan.name for scan in scans if scan.boxes is None]
    more = ", .." if len(names) > 5 else ""
    what = f"{len(names):,} scan{'s' if len(names) > 1 else ''} without boxes: trained as empty"
    return f"{what} ({', '.join(names[:5])}{more})" if names else ""


def by_name(files: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """The files by their names. Raises WrongUseError for two of one name."""
    paths: dict[str, Path] = {}
    for name, path in files:
        if (other := paths.setdefault(name, path)) != path:
            raise WrongUseError(f"{other} and {path.name} belong to the same scan: keep one")
    return paths


def listed_scans(scans: Sequence[Scan], listed: Path, names: list[str] | None) -> list[Scan]:
    """The scans that the lines of a file name, or, without that file, those of the names. A suffix
    behind a name is allowed. Raises WrongUseError and CloudFileError."""
    known = {s.name + s.points.name.removeprefix(cloud_stem(s.points)): s for s in scans}
    known |= {scan.name: scan for scan in scans}
    where = f"{listed} does not exist; standard split"
    if listed.exists():
        with explained(listed, "list of scans"):
            lines, where = listed.read_text(encoding="utf-8-sig").splitlines(), str(listed)
        names = [line.strip() for line in lines]
    if names is None:
        raise WrongUseError(f"{listed} does not exist, which lists the scans of this split")
    places: dict[str, int] = {}  # lines of scans
    for number, name in enumerate(names, 1):
        if name and name not in known:
            raise WrongUseError(f"{where} line {number}: there is no scan {short(name)}")
        if name and (first := places.setdefault(known[name].name, number)) != number:
            raise WrongUseError(f"{where} line {number}: {short(name)} is in line {first} too")
    return [known[name] for name in names if name]


class ScanFolder(Generated):
    """A folder of labelled scans as a data set of detection.

    classes: names, in the order of the labels from 0. similar: other names whose boxes are ignored
        as boxes of a class: {"Van": "Car"}. others: "error" or "drop" boxes of further names.
    points, boxes: capacities N and G of a sample. Scans with more points are thinned at random,
        the same each time; more boxes are an error.
    columns: of the points, x, y, z first. layout: columns of files that do not name theirs.

    A batch holds points [B, N, columns] float32, NaN past num_points [B] int32; boxes [B, G, 9]
    float32 (x, y, z, l, w, h, yaw, vx, vy), labels [B, G] int32, -1 past num_boxes [B] int32;
    weight [B, G] float32, 0 for boxes to be ignored; id [B] int64.
    Raises WrongUseError and CloudFileError that name the file and the line.
    """

    width, find = 9, staticmethod(find_scans)  # width: of boxes

    def __init__(
        self,
        root: str | Path,
        split: str | None = "train",
        *,
        classes: Sequence[str],
        similar: Mapping[str, str] | None = None,
        others: str = "error",
        points: int = 65536,
        boxes: int = 128,
        columns: Sequence[str] = ("x", "y", "z", "intensity"),
        layout: str | None = None,
    ) -> None:
        expect(others in ("error", "drop"), "ScanFolder: others must be 'error' or 'drop'", others)
        self.classes, self.similar = list(classes), dict(similar or {})
        rule = "ScanFolder: classes must be different names"
        expect(len(set(self.classes)) == len(self.classes), rule, self.classes)
        good = set(self.similar.values()) <= set(self.classes)
        rule = f"ScanFolder: similar must map other names to some of {self.classes}"
        expect(good and not self.similar.keys() & set(self.classes), rule, self.similar)
        good = tuple(columns[:3]) == PLACE[:3] and min(points, boxes) > 0
        rule = "ScanFolder: columns must begin with x, y, z, points and boxes be above 0"
        expect(good, rule, (tuple(columns), points, boxes))
        self.scans = self.find(root, split)
        if not self.scans:
            raise WrongUseError(f"{root} has no scans of {split or 'any split'}")
        super().__init__(len(self.scans))
        self.others, self.layout = others, layout
        self.points, self.boxes, self.columns = points, boxes, list(columns)

    def generate(self, indices: Sequence[int], device: Device) -> dict[str, Tensor]:
        batch = default_collate([{**self.labels(i), "points": self.cloud(i)} for i in indices])
        batch["num_points"] = batch["points"][..., 0].isfinite().sum(1).int()
        batch["id"] = torch.tensor(list(indices))
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def read_points(self, index: int) -> np.ndarray:
        """Points [n, columns] of a scan, float32 or float64. Raises CloudFileError."""
        path = self.scans[index].points
        cloud = read_cloud(path, self.layout)
        if missing := [name for name in self.columns if name not in cloud.columns]:
            columns = ", ".join(cloud.columns)
            raise CloudFileError(f"{path} has no column {missing[0]}: it has {columns}")
        table = cloud.points.astype(np.float64)
        table[:, :3] += cloud.origin
        return table[:, [cloud.columns.index(name) for name in self.columns]]

    def read_labels(self, index: int) -> ScanBoxes:
        """The boxes of a scan, of any class. Raises CloudFileError."""
        path = self.scans[index].boxes
        nothing = ScanBoxes(np.empty((0, 9), np.float32), [], np.empty(0, bool))
        return nothing if path is None else read_boxes(path)

    def cloud(self, index: int) -> Tensor:
        """Points [N, columns] of a scan."""
        rows = torch.from_numpy(self.read_points(index)).float()
        rows = rows[rows.isfinite().all(1)]
        if len(rows) > self.points:
            draws = Draws(0, "thin", torch.tensor([index])).bits("points", len(rows))[0]
            rows = rows[draws.argsort()[: self.points].sort().values]
        out = torch.full((self.points, len(self.columns)), math.nan)
        out[: len(rows)] = rows
        return out

    def labels(self, index: int) -> dict[str, Tensor]:
        """boxes, labels, num_boxes and weight of a scan."""
        rows, path = self.read_labels(index), self.scans[index].boxes
        names = [self.similar.get(name, name) for name in rows.names]
        kept = [i for i, name in enumerate(names) if name in self.classes]
        if self.others == "error" and len(kept) < len(names):
            other = next(name for name in names if name not in self.classes)
            raise CloudFileError(f"{path}: {other_class(other, self.classes)}")
        if (count := len(kept)) > self.boxes:
            rule = f"a sample has room for {self.boxes}"
            raise CloudFileError(f"{path} has {count} boxes, but {rule}")
        labels = torch.full((self.boxes,), -1, dtype=torch.int32)
        labels[:count] = torch.tensor([self.classes.index(names[i]) for i in kept])
        boxes, weight = torch.zeros(self.boxes, self.width), torch.zeros(self.boxes)
        boxes[:count] = torch.from_numpy(rows.boxes[kept])
        used = [names[i] == rows.names[i] and not rows.ignore[i] for i in kept]
        weight[:count] = torch.tensor(used).float()
        out = {"boxes": boxes, "labels": labels, "weight": weight}
        return {**out, "num_boxes": torch.tensor(count, dtype=torch.int32)}


def detections(
    found: Sequence[Mapping[str, Any]], frames: int, classes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Boxes [n, 9], scores [n] and labels [n] of each frame; missing velocities are 0. Raises
    ValueError."""
    expect(len(found) == frames, f"found must have {frames} frames", len(found))
    for i, frame in enumerate(found):
        boxes, scores = (np.asarray(frame[name], np.float64) for name in ("boxes", "scores"))
        labels = np.asarray(frame["labels"], np.int64)
        boxes = boxes if len(labels) else boxes.reshape(-1, 9)
        shapes, n = (boxes.shape, scores.shape, labels.shape), labels.size
        rule = f"found[{i}] must have boxes [n, 7] or [n, 9], scores [n] and labels [n]"
        expect(shapes in (((n, width), (n,), (n,)) for width in (7, 9)), rule, shapes)
        odd = [x for x in (*boxes[:, :7].flat, *scores) if not math.isfinite(x)]
        expect(not odd, f"found[{i}] must have finite boxes and scores", odd)
        odd = [label for label in labels.tolist() if not 0 <= label < classes]
        expect(not odd, f"found[{i}] must have labels from 0 to {classes - 1}", odd)
        yield np.pad(boxes, ((0, 0), (0, 9 - boxes.shape[1]))), scores, labels
