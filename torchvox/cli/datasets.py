# SPDX-License-Identifier: Apache-2.0
"""torchvox data: data sets for training, checked and generated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.cli import commands, options
from torchvox.cli.options import argument, option, option_class
from torchvox.cli.work import attempt_each, console, note
from torchvox.data.readers import kitti, objects, segments
from torchvox.data.readers.folder import PLACE, Scan, ScanFolder, other_class, unlabelled
from torchvox.io.readers import FOLDER_SUFFIXES
from torchvox.ops import points_in_boxes

data = typer.Typer(
    name="data",
    help="Check and generate data sets for training.",
    cls=commands.CommandGroup,
    no_args_is_help=True,
)
LARGEST, TURNS = 60.0, 12.6  # m of an edge, rad of a yaw: more is surely in other units


@option_class
class CheckOptions:
    folder: Path = argument(
        ..., "Scans with boxes, KITTI, class folders, labelled clouds.", metavar="FOLDER"
    )
    classes: str | None = option(None, "Classes of boxes or of labels 0, 1, .., comma-separated.")
    label: str = option("label", "Column of the labels of points, where there is no labels/.")
    ignore: list[int] | None = option(
        None, "Label to ignore, as -1 always is. Repeatable.", metavar="N"
    )
    layout: options.Layout = None


@data.command(cls=commands.Command)
@options.command
def check(args: CheckOptions) -> None:
    """Read a folder of labelled scans or objects, report what is wrong, count what is in it.

    Examples:
        torchvox data check mine/ --layout kitti --classes car,cyclist
        torchvox data check objects/
    """
    folder = args.folder
    if not (folder / "training").is_dir() and not (folder / "boxes").is_dir():
        inside = [path.name for path in objects.class_folders(folder)]
        if inside and not {"points", "labels"} & set(inside):
            return _check_objects(args)
        if (folder / "points").is_dir() or _clouds(folder, "*"):
            return _check_segments(args)
        what = "has neither points/, KITTI's training/ nor class folders with point clouds"
        raise WrongUseError(f"{folder} {what if folder.is_dir() else 'is not a folder'}")
    if is_kitti := (folder / "training").is_dir():
        scans: ScanFolder = kitti.Kitti(folder, None)
    else:
        scans = ScanFolder(folder, None, classes=[], columns=PLACE[:3], layout=args.layout)
        options.cloud_reader([scan.points for scan in scans.scans], args.layout)
    lists = folder / "ImageSets" if is_kitti else folder
    allowed = [name.strip() for name in args.classes.split(",")] if args.classes else None
    rows: dict[str, list[list[float]]] = defaultdict(list)
    failed = 0
    for index in range(len(scans)):
        try:
            for name, row in _rows(scans, index, allowed):
                rows[name].append(row)
        except TorchvoxError as error:
            failed += 1
            note(f"torchvox: {error}")
    out = console()
    for split in ("train", "val"):
        listed = "listed" if (lists / f"{split}.txt").exists() else "by default"
        out.print(f"{split:<10}{len(scans.find(folder, split)):,} scans, {listed}", markup=False)
    for name in sorted(rows):
        boxes, counts = np.split(np.array(rows[name]), [3], axis=1)
        edges = " x ".join(f"{edge:.2f}" for edge in boxes.mean(axis=0))
        text = f"{len(boxes):,} boxes, mean {edges} m, "
        text += f"{np.median(counts):,.0f} points (median), {(counts == 0).sum():,} without"
        out.print(f"{name:<9} {text}", soft_wrap=True, markup=False)
    if empty := unlabelled(scans.scans):
        out.print(f"{'empty':<10}{empty}", soft_wrap=True, markup=False)
    out.print(f"{'checked':<10}{len(scans) - failed:,} of {len(scans):,} scans are right")
    if failed:
        raise typer.Exit(1)


def _check_objects(args: CheckOptions) -> None:
    counts: dict[str, list[int]] = defaultdict(list)
    columns: Counter[str] = Counter()

    def read(scan: Scan) -> None:
        cloud = objects.finite_points(objects.read_object(scan.points, args.layout))
        counts[scan.name.split("/")[0]].append(len(cloud))
        columns.update(cloud.columns)

    def lines() -> Iterator[tuple[str, str]]:
        for name, points in counts.items():
            yield name, f"{len(points):,} objects, {min(points):,} to {max(points):,} points"
        if odd := [*_clouds(args.folder, "*"), *_clouds(args.folder, "*/*/*")]:
            yield "not read", f"{len(odd):,} files beside or below the folders of classes: {odd[0]}"
        if len(counts) < 2:
            note("torchvox: warning: training needs two classes or more")
        total = sum(map(len, counts.values()))
        yield "columns", ", ".join(name for name, count in columns.items() if count == total)

    _check_each(args, "objects", objects.find_objects, read, lines)


def _check_segments(args: CheckOptions) -> None:
    classes = [name.strip() for name in args.classes.split(",")] if args.classes else []
    how: dict[str, Any] = {"label": args.label, "ignore": args.ignore or []}
    data = segments.Segments(args.folder, None, classes=classes, layout=args.layout, **how)
    points, clouds = Counter[int](), Counter[int]()
    names = dict(enumerate(classes)) | {segments.IGNORED: "ignored"}

    def read(scan: Scan) -> None:
        numbers, counts = np.unique(data.read(scan)[1], return_counts=True)
        points.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        clouds.update(numbers.tolist())

    def lines() -> Iterator[tuple[str, str]]:
        for number in sorted({*points, *range(len(classes))}):
            text = f"{points[number]:,} points in {clouds[number]:,} clouds"
            yield names.get(number, f"label {number}"), text

    _check_each(args, "clouds", segments.find_segments, read, lines)


def _check_each(
    args: CheckOptions,
    what: str,
    find: Callable[[Path, str | None], list[Scan]],
    read: Callable[[Scan], None],
    lines: Callable[[], Iterable[tuple[str, str]]],
) -> None:
    """Read each cloud, then print the splits and the lines."""
    whole, train, val = (find(args.folder, split) for split in (None, "train", "val"))
    files = [scan.points for scan in whole]
    options.cloud_reader(files, args.layout)  # raises for a layout that is wrong for all
    failed = attempt_each(files, lambda index: read(whole[index]))
    if both := {scan.name for scan in train} & {scan.name for scan in val}:
        note(f"torchvox: warning: {len(both):,} {what} are in train and in val: {min(both)}")
    if empty := [name for name, part in (("train", train), ("val", val)) if not part]:
        note(f"torchvox: warning: no {what} in {empty[0]}: training needs both splits")
    right = f"{len(whole) - failed:,} of {len(whole):,} {what} are right"
    splits = [(name, f"{len(part):,} {what}") for name, part in (("train", train), ("val", val))]
    for name, text in (*splits, *lines(), ("checked", right)):
        console().print(f"{name:<9} {text}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def _clouds(folder: Path, pattern: str) -> list[Path]:
    files = (path for path in folder.glob(pattern) if path.suffix.lower() in FOLDER_SUFFIXES)
    return sorted(path for path in files if not path.name.startswith("."))


def _rows(
    scans: ScanFolder, index: int, allowed: list[str] | None
) -> list[tuple[str, list[float]]]:
    """Class, sizes and number of points of each box of a scan. Raises TorchvoxError."""
    scan = scans.scans[index]
    points = scans.read_points(index)
    if not np.isfinite(points).all(axis=1).any():
        raise TorchvoxError(f"{scan.points} has no points")
    labels = scans.read_labels(index)
    for name, box in zip(labels.names, labels.boxes, strict=True):
        if allowed is not None and name not in allowed and scans.others == "error":
            raise TorchvoxError(f"{scan.boxes}: {other_class(name, allowed)}")
        if box[3:6].max() > LARGEST or abs(box[6]) > TURNS:
            edges, unit = box[3:7].tolist(), "meters" if box[3:6].max() > LARGEST else "radians"
            raise TorchvoxError(f"{scan.boxes}: l, w, h, yaw of a box are {edges}: in {unit}?")
    where = torch.from_numpy(points[:, :3].astype(np.float32))
    boxes = torch.from_numpy(labels.boxes[:, :7].copy())
    inside = points_in_boxes(where[None], boxes[None])[0] if len(boxes) else torch.empty(0)
    counts = torch.bincount(inside[inside >= 0].long(), minlength=len(boxes)).tolist()
    rows = np.column_stack([labels.boxes[:, 3:6], counts]).tolist()
    return list(zip(labels.names, rows, strict=True))


@option_class
class ExportKittiOptions:
    folder: Path = argument(..., "A new or empty folder.", metavar="FOLDER")
    train: int = option(80, "Frames for training.", min=0)
    val: int = option(20, "Frames for validation.", min=0)
    seed: int = option(0, "Seed of the generated scenes.")


@data.command("export-kitti", cls=commands.Command)
@options.command
def export_kitti(args: ExportKittiOptions) -> None:
    """Write generated streets in KITTI's format, to try readers and metrics without KITTI.

    Examples:
        torchvox data export-kitti kitti/
    """
    kitti.export_kitti(args.folder, args.train, args.val, args.seed)
    text = f"{args.folder}: {args.train:,} and {args.val:,} frames"
    console().print(text, soft_wrap=True, markup=False)
