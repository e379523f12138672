# SPDX-License-Identifier: Apache-2.0
"""torchvox data: data sets for training, checked and generated."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import typer

from torchvox._util.errors import TorchvoxError
from torchvox.cli import options
from torchvox.cli.options import argument, option, option_class
from torchvox.cli.work import console, note
from torchvox.data.readers import kitti
from torchvox.data.readers.folder import PLACE, ScanFolder, unlabelled
from torchvox.ops import points_in_boxes

data = typer.Typer(
    name="data", help="Check and generate data sets for training.", no_args_is_help=True
)
LARGEST, TURNS = 60.0, 12.6  # m of an edge, rad of a yaw: more is surely in other units


@option_class
class CheckOptions:
    folder: Path = argument(..., "Folder with points/ and boxes/, or in KITTI's format.")
    classes: str | None = option(None, "Allowed classes, comma-separated.")
    layout: options.Layout = None


@data.command(cls=options.Command)
@options.command
def check(args: CheckOptions) -> None:
    """Read a folder of labelled scans, report what is wrong and count what is in it."""
    folder = args.folder
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
            choices = ", ".join(allowed)
            raise TorchvoxError(f"{scan.boxes}: class {name!r} is not one of {choices}")
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
    folder: Path = argument(..., "A new or empty folder.")
    train: int = option(80, "Frames for training.", min=0)
    val: int = option(20, "Frames for validation.", min=0)
    seed: int = option(0, "Seed of the generated scenes.")


@data.command("export-kitti", cls=options.Command)
@options.command
def export_kitti(args: ExportKittiOptions) -> None:
    """Write generated streets in KITTI's format, to try readers and metrics without KITTI."""
    kitti.export_kitti(args.folder, args.train, args.val, args.seed)
    text = f"{args.folder}: {args.train:,} and {args.val:,} frames"
    console().print(text, soft_wrap=True, markup=False)
