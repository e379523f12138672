# SPDX-License-Identifier: Apache-2.0
"""torchvox detect: boxes of objects in scans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import CloudFileError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import for_each, use_device, warn_if_none
from torchvox.io.writers import write_text

if TYPE_CHECKING:
    from torchvox.models.detection.running import Detections

MOST_NAMED = 3  # classes in the line of a scan


@option_class
class DetectOptions(options.FileOptions):
    model: Path = option(
        ...,
        "A detector: a name such as center_world_small, a file from torchvox import or train, or "
        "a TorchScript program from torchvox export.",
        "--model",
        "-m",
    )
    plot: Path | None = option(
        None, "Picture of the boxes from above: a .png for one scan, else a folder."
    )
    score: float = option(0.0, "Drop boxes with a lower score.", min=0.0, max=1.0)
    device: options.Device = "auto"


@options.command
def detect(args: DetectOptions) -> None:
    """Detect objects in scans: boxes as .json, and pictures of them."""
    from torchvox.models.detection.running import load_runner

    options.check_model(args.model)
    files, targets = args.files("boxes", (".json",))
    pictures: dict[Path, Path] = {}
    if args.plot is not None:
        drawings = options.output_paths(files, args.plot, "boxes", (".png",), None)
        pictures = dict(zip(targets, drawings, strict=True))
    outputs = {"--output": targets, "--plot": pictures.values()}
    options.check_outputs([*files, args.model], outputs)
    read = options.cloud_reader(files, args.layout)
    runner = load_runner(args.model, use_device(args.device))

    def work(source: Path, target: Path) -> str:
        cloud, picture = read(source), pictures.get(target)
        if any(cloud.origin):
            raise CloudFileError(
                f"{source}: coordinates are not relative to the sensor, which a detector needs"
            )
        low, high = np.split(np.array(runner.point_cloud_range), 2)
        inside = ((cloud.points[:, :3] >= low) & (cloud.points[:, :3] < high)).all(axis=1).sum()
        warn_if_none(int(inside), cloud, runner.point_cloud_range)
        boxes = runner(cloud).above(args.score)
        write_text(target, json.dumps(as_json(source, len(cloud), boxes), indent=1) + "\n")
        outputs, head = str(target), f"{source.name}: {len(cloud):,} points"
        if picture is not None:
            from torchvox import viz

            rows = (boxes.boxes, boxes.labels, boxes.classes, runner.point_cloud_range)
            note = f"{head}, {len(boxes.boxes)} boxes"
            figure = viz.boxes_picture(cloud.points[:, :3], *rows, scores=boxes.scores, note=note)
            viz.save(figure, picture)
            outputs += f" and {picture}"
        return f"{head}, {_summary(boxes)}; wrote {outputs}"

    for_each(files, targets, work)


def as_json(source: Path, points: int, detections: Detections) -> dict[str, object]:
    """What is written: boxes by falling score, [x, y, z, l, w, h, yaw] with z at the center."""
    boxes = []
    rows = detections.boxes, detections.scores, detections.labels
    for box, score, label in zip(*rows, strict=True):
        numbers = [round(float(v), 5) for v in box]
        entry = {"class": detections.classes[label], "score": round(float(score), 6)}
        velocity = {"velocity": numbers[7:9]} if len(box) > 7 else {}
        boxes.append({**entry, "box": numbers[:7], **velocity})
    overflow = detections.overflow
    return {"file": source.name, "points": points, "boxes": boxes, "overflow": overflow}


def _summary(detections: Detections) -> str:
    total, classes = len(detections.boxes), detections.classes
    if not total:
        return "no boxes"
    counts = {name: int((detections.labels == i).sum()) for i, name in enumerate(classes)}
    names = sorted((n for n in counts if counts[n]), key=lambda n: -counts[n])
    words = ", ".join(f"{name} {counts[name]}" for name in names[:MOST_NAMED])
    return f"{total} boxes ({words}{', ...' if len(names) > MOST_NAMED else ''})"
