# SPDX-License-Identifier: Apache-2.0
"""torchvox detect: boxes of objects in scans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from torchvox._errors import CloudFileError
from torchvox.cli import options
from torchvox.cli.work import for_each, use_device, warn_if_none
from torchvox.io import find_clouds
from torchvox.io.writers import write_text

if TYPE_CHECKING:
    from torchvox.models.detection.running import Detections

MOST_NAMED = 3  # classes counted in the line of a scan


def detect(
    paths: options.Inputs,
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            "-m",
            help="A detector: a name such as center_world_small, a file of torchvox import or "
            "train, or a TorchScript program of torchvox export.",
            show_default=False,
        ),
    ],
    layout: options.Layout = None,
    output: options.Output = options.OUTPUT_FOLDER,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="A picture of the boxes from above: a .png for one scan, else a folder.",
            show_default=False,
        ),
    ] = None,
    score: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Leave out boxes with a lower score.")
    ] = 0.0,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Find objects in scans: boxes as .json, and pictures of them."""
    from torchvox.models.detection.running import load_runner

    options.check_model(model)
    files = find_clouds(paths)
    targets = options.output_paths(files, output, "boxes", (".json",), None)
    pictures: dict[Path, Path] = {}
    if plot is not None:
        drawn_to = options.output_paths(files, plot, "boxes", (".png",), None)
        pictures = dict(zip(targets, drawn_to, strict=True))
    outputs = {"--output": targets, "--plot": pictures.values()}
    options.check_outputs([*files, model], outputs)
    read = options.cloud_reader(files, layout)
    where = use_device(device)
    runner = load_runner(model, where)

    def work(source: Path, target: Path) -> str:
        cloud, picture = read(source), pictures.get(target)
        if any(cloud.origin):
            raise CloudFileError(
                f"{source} is no scan about its sensor: its coordinates are shifted"
            )
        low, high = np.split(np.array(runner.point_cloud_range), 2)
        inside = ((cloud.points[:, :3] >= low) & (cloud.points[:, :3] < high)).all(axis=1).sum()
        warn_if_none(int(inside), cloud, runner.point_cloud_range)
        found = runner(cloud).above(score)
        write_text(target, json.dumps(as_json(source, len(cloud), found), indent=1) + "\n")
        wrote, head = str(target), f"{source.name}: {len(cloud):,} points"
        if picture is not None:
            from torchvox import viz

            shown = (found.boxes, found.labels, found.classes, runner.point_cloud_range)
            note = f"{head}, {len(found.boxes)} boxes"
            drawn = viz.boxes_picture(cloud.points[:, :3], *shown, scores=found.scores, note=note)
            viz.save(drawn, picture)
            wrote += f" and {picture}"
        return f"{head}, {_counted(found)}; wrote {wrote}"

    for_each(files, targets, work)


def as_json(source: Path, points: int, found: Detections) -> dict[str, Any]:
    """What is written: boxes by falling score, [x, y, z, l, w, h, yaw] with z at the center."""
    boxes = []
    for box, score, label in zip(found.boxes, found.scores, found.labels, strict=True):
        one: dict[str, Any] = {
            "class": found.classes[label],
            "score": round(float(score), 6),
            "box": [round(float(v), 5) for v in box[:7]],
        }
        if len(box) > 7:
            one["velocity"] = [round(float(v), 5) for v in box[7:9]]
        boxes.append(one)
    return {"file": source.name, "points": points, "boxes": boxes, "overflow": found.overflow}


def _counted(found: Detections) -> str:
    if not len(found.boxes):
        return "no boxes"
    counts = {name: int((found.labels == i).sum()) for i, name in enumerate(found.classes)}
    most = sorted((n for n in counts if counts[n]), key=lambda n: -counts[n])
    shown = ", ".join(f"{name} {counts[name]}" for name in most[:MOST_NAMED])
    return f"{len(found.boxes)} boxes ({shown}{', ...' if len(most) > MOST_NAMED else ''})"
