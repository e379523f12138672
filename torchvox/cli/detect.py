# SPDX-License-Identifier: Apache-2.0
"""torchvox detect: boxes of objects in scans."""

from __future__ import annotations

import json
import statistics
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchvox._util.errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.notes import note
from torchvox.cli.options import option, option_class
from torchvox.cli.work import console, for_each, milliseconds, timed, use_device, warn_if_none
from torchvox.io import PointCloud, cloud_stem, open_points, read_cloud
from torchvox.io.paths import scan_of
from torchvox.io.recording import ScanReader
from torchvox.io.writers import write_text
from torchvox.mapping.options import RayOptions
from torchvox.mapping.recorded import JoinedScans, RecordedScans, recorded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from torchvox.io.recording import Scan
    from torchvox.models import Boxes, Detector

MOST_NAMED = 3  # classes in the line of a scan
FRAME = "coordinates of the scan; yaw about +z from +x, in radians"


@option_class
class DetectOptions(options.FileOptions):
    model: Path = option(
        ...,
        "A detector: a name such as center_world_small, a file from torchvox import or train, or "
        "a TorchScript program from torchvox export.",
        "--model",
        "-m",
    )
    pictures: Path | None = option(
        None, "Picture of the boxes from above: a .png for one scan, else a folder."
    )
    truth: Path | None = option(
        None,
        "Labelled boxes to draw beside them with --pictures: a .csv or .json file for one scan "
        "(class,x,y,z,l,w,h,yaw), else a folder of files named as the scans.",
    )
    sweeps: int = option(
        1, "Scans of a recording to join: each with those before it, by its poses.", min=1, max=64
    )
    odom: str | None = option(None, "Topic of the poses for --sweeps, where there are several.")
    extrinsic: Path | None = option(
        None, "Pose of the sensor in the frame whose poses --odom gives, as of torchvox map."
    )
    score: float = option(0.3, "Drop boxes with a lower score.", min=0.0, max=1.0)
    time: bool = option(
        False, "Print the time to read a scan and to detect: medians after a warm-up."
    )
    device: options.Device = "auto"


@options.command
def detect(args: DetectOptions) -> None:
    """Detect objects in scans: boxes as .json, and pictures of them.

    Examples:
        torchvox detect scan.bin --layout kitti -m center_world_small -o boxes.json
        torchvox detect scans/ --layout kitti -m runs/mine/model.pt --pictures pictures/ --time
        torchvox detect drive.mcap --sweeps 10 -m runs/nuscenes/model.pt
    """
    from torchvox.models import Detector

    options.check_model(args.model)
    files, targets = args.files("boxes", (".json",))
    drawn: dict[Path, Path] = {}
    if args.pictures is not None:
        drawings = options.output_paths(files, args.pictures, "boxes", (".png",), None)
        drawn = dict(zip(targets, drawings, strict=True))
    truths = _truths(files, args)
    outputs = {"--output": targets, "--pictures": drawn.values()}
    options.check_outputs([*files, *truths.values(), args.model, args.extrinsic], outputs)
    scans = _posed(files, args)
    read = options.cloud_reader(files, args.layout)
    again = options.cloud_reader(files, args.layout, read_cloud)  # without notes
    detector = Detector(args.model, args.score, use_device(args.device, args.model))
    joined = None if scans is None else JoinedScans(scans, args.sweeps, detector.columns)
    times: list[tuple[float, float]] = []

    def work(source: Path, target: Path) -> str:
        cloud, line = read(source), ""
        rows = noted_points(detector, cloud)
        low, high = np.split(np.array(detector.point_cloud_range), 2)
        inside = ((cloud.points[:, :3] >= low) & (cloud.points[:, :3] < high)).all(axis=1).sum()
        warn_if_none(int(inside), cloud, detector.point_cloud_range)
        if joined is not None:
            rows = joined.join(_scan(source), rows.to(detector.device))
        boxes = detector(rows)
        if args.time:
            _, reading = timed(lambda: detector.points(again(source)), torch.device("cpu"))
            boxes, detecting = timed(lambda: detector(rows), detector.device)
            times.append((reading, detecting))
            line = f"; {_times(times[-1:])}"
        write_text(target, as_text(cloud, source.name, boxes, _moment(source)))
        outputs, head = str(target), f"{source.name}: {len(cloud):,} points"
        if (picture := drawn.get(target)) is not None:
            _draw(cloud, boxes, detector, truths.get(source), head, picture)
            outputs += f" and {picture}"
        return f"{head}, {_summary(boxes)}{line}; wrote {outputs}"

    try:
        for_each(files, targets, work)
    finally:
        if len(times) > 1:
            console().print(f"median of {len(times)} scans: {_times(times)}", soft_wrap=True)


def _posed(files: list[Path], args: DetectOptions) -> RecordedScans | None:
    """The poses of the scans to join; None where --sweeps is 1. Raises WrongUseError."""
    places = recorded(files)
    if args.sweeps == 1 or places is None:
        for name in ("sweeps", "odom", "extrinsic"):
            if getattr(args, name) not in (1, None):
                rule = "is for recordings" if places is None else "needs --sweeps"
                raise WrongUseError(f"--{name} {rule}")
        return None
    return RecordedScans(places, RayOptions(odom=args.odom, extrinsic=args.extrinsic))


def _scan(source: Path) -> Scan:
    reader = open_points(source)
    assert isinstance(reader, ScanReader)
    return reader.scan


def _moment(source: Path) -> dict[str, int | str]:
    """Number and stamp of a scan of a recording, as text: numbers in JSON end at 2^53."""
    if scan_of(source) is None:
        return {}
    scan = _scan(source)
    return {"number": scan.number, "stamp": str(scan.stamp)}


def _truths(files: list[Path], args: DetectOptions) -> dict[Path, Path]:
    """The files of labelled boxes of scans. Raises WrongUseError."""
    truth = args.truth
    if truth is None:
        return {}
    from torchvox.data.readers.folder import SUFFIXES

    if args.pictures is None:
        raise WrongUseError("--truth is drawn in a picture: give --pictures too")
    if not truth.is_dir():
        if len(files) > 1 or not truth.is_file():
            what = "must be a folder for several scans" if truth.is_file() else "does not exist"
            raise WrongUseError(f"--truth {truth} {what}")
        return {files[0]: truth}
    places = {f: [truth / f"{cloud_stem(f)}{suffix}" for suffix in SUFFIXES] for f in files}
    truths = {f: path for f, paths in places.items() for path in paths if path.is_file()}
    if not truths:
        names = " or ".join(path.name for path in places[files[0]])
        raise WrongUseError(f"--truth {truth} has no boxes of the scans, such as {names}")
    if rest := [f.name for f in files if f not in truths]:
        note(f"torchvox: {len(rest)} of {len(files)} scans have no boxes in {truth}: {rest[0]}")
    return truths


def noted_points(detector: Detector, cloud: PointCloud) -> Tensor:
    """What the detector sees of a scan, with a note for what does not fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = detector.points(cloud)
    for one in caught:
        note(f"torchvox: warning: {cloud.path.name if cloud.path else 'scan'}: {one.message}")
    return rows


def _draw(
    cloud: PointCloud, boxes: Boxes, detector: Detector, truth: Path | None, head: str, to: Path
) -> None:
    from torchvox import viz

    known, words = None, ""
    if truth is not None:
        from torchvox.data.readers.folder import read_boxes

        known = read_boxes(truth).boxes
        words = f", {len(known)} labelled (dashed)"
    figure = viz.boxes_picture(
        cloud.points[:, :3],
        boxes.boxes,
        boxes.labels,
        boxes.classes,
        detector.point_cloud_range,
        scores=boxes.scores,
        known=known,
        note=f"{head}, {len(boxes)} boxes{words}",
    )
    viz.save(figure, to)


def as_text(
    cloud: PointCloud, name: str, boxes: Boxes, moment: Mapping[str, int | str] | None = None
) -> str:
    """The JSON of a scan, one box per line by falling score. moment: of a scan of a recording."""
    entries = []
    for box in boxes:
        entry = {"class": box.class_name, "score": round(box.score, 6)}
        numbers = {k: v for k, v in box._asdict().items() if k not in ("class_name", "score")}
        entry |= {k: round(v, 5) for k, v in numbers.items() if v is not None}
        entries.append(json.dumps(entry))
    head = {"file": name, **(moment or {}), "points": len(cloud), "overflow": boxes.overflow}
    text = json.dumps({**head, "frame": FRAME, "unit": cloud.unit}, indent=1)[:-2]
    rows = ",".join(f"\n  {entry}" for entry in entries)
    return f'{text},\n "boxes": [{rows}\n ]\n}}\n'


def _times(times: list[tuple[float, float]]) -> str:
    read, detected = (milliseconds(statistics.median(each)) for each in zip(*times, strict=True))
    return f"read {read}, detect {detected}"


def _summary(boxes: Boxes) -> str:
    total, classes = len(boxes), boxes.classes
    if not total:
        return "no boxes"
    counts = {name: int((boxes.labels == i).sum()) for i, name in enumerate(classes)}
    names = sorted((n for n in counts if counts[n]), key=lambda n: -counts[n])
    words = ", ".join(f"{name} {counts[name]}" for name in names[:MOST_NAMED])
    return f"{total} boxes ({words}{', ...' if len(names) > MOST_NAMED else ''})"
