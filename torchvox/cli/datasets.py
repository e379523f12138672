# SPDX-License-Identifier: Apache-2.0
"""torchvox data: what is in data sets for training."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from torchvox._errors import TorchvoxError
from torchvox.cli import options
from torchvox.cli.work import console, note
from torchvox.data.folder import Scan, find_scans, read_boxes
from torchvox.io import read_cloud
from torchvox.ops import points_in_boxes

data = typer.Typer(name="data", help="Data sets for training.", no_args_is_help=True)
LARGEST = 60.0  # m, of an edge: beyond, boxes are surely in other units


@data.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder with points/ and boxes/.")],
    classes: Annotated[
        str | None, typer.Option(help="Names, with commas between.", show_default=False)
    ] = None,
    layout: options.Layout = None,
) -> None:
    """Read all of a folder of labelled scans; say what is wrong, and what is there."""
    scans = find_scans(folder)
    known = classes.split(",") if classes else None
    sizes: dict[str, list[np.ndarray]] = defaultdict(list)
    held: dict[str, list[int]] = defaultdict(list)
    failed = 0
    for scan in scans:
        try:
            _add(scan, layout, known, sizes, held)
        except TorchvoxError as error:
            failed += 1
            note(f"torchvox: {error}")
    out = console()
    for split in ("train", "val"):
        listed = "listed" if (folder / f"{split}.txt").exists() else "by their order"
        out.print(f"{split:<10}{len(find_scans(folder, split)):,} scans, {listed}", markup=False)
    for name in sorted(sizes):
        boxes, counts = np.array(sizes[name]), np.array(held[name])
        edges = " x ".join(f"{edge:.2f}" for edge in boxes.mean(axis=0))
        text = f"{len(boxes):,} boxes, mean {edges} m, "
        text += f"{np.median(counts):,.0f} points (median), {(counts == 0).sum():,} without"
        out.print(f"{name:<10}{text}", soft_wrap=True, markup=False)
    out.print(f"{'checked':<10}{len(scans) - failed:,} of {len(scans):,} scans are right")
    if failed:
        raise typer.Exit(1)


def _add(
    scan: Scan,
    layout: str | None,
    known: list[str] | None,
    sizes: dict[str, list[np.ndarray]],
    held: dict[str, list[int]],
) -> None:
    """Sizes of the boxes of a scan and points in them, by class. Raises TorchvoxError."""
    cloud = read_cloud(scan.points, layout)
    if len(cloud) == 0:
        raise TorchvoxError(f"{scan.points} holds no points")
    if scan.boxes is None:
        return
    found = read_boxes(scan.boxes)
    for name, box in zip(found.names, found.boxes, strict=True):
        if known is not None and name not in known:
            raise TorchvoxError(f"{scan.boxes}: class {name!r} is none of {', '.join(known)}")
        if box[3:6].max() > LARGEST:
            raise TorchvoxError(
                f"{scan.boxes}: a box is {box[3:6].max():g} m long: are these meters?"
            )
    points = torch.from_numpy((cloud.points[:, :3] + cloud.origin).astype(np.float32))
    boxes = torch.from_numpy(found.boxes[:, :7].copy())
    inside = points_in_boxes(points[None], boxes[None])[0] if len(boxes) else torch.empty(0)
    counts = torch.bincount(inside[inside >= 0].long(), minlength=len(boxes)).tolist()
    for name, box, count in zip(found.names, found.boxes, counts, strict=True):
        sizes[name].append(box[3:6])
        held[name].append(count)
