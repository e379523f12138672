# SPDX-License-Identifier: Apache-2.0
"""torchvox labels: labels of occupancy networks for whole sets of scenes."""

from __future__ import annotations

import time
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import typer
from rich.progress import MofNCompleteColumn, TextColumn

from torchvox._util.errors import TorchvoxError, WrongUseError, explained
from torchvox.cli import options
from torchvox.cli.commands import write_json
from torchvox.cli.options import argument, declare, option, option_class
from torchvox.cli.work import choose_device, console, note, progress_bar, sentence
from torchvox.data.label_scenes import LabelOptions, open_input
from torchvox.data.label_stages import LabelScene, scene_rows
from torchvox.filter.stages import Row

MOST = 16  # classes; 17 is free


def _sweeps(text: str, option: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    counts = options.numbers(text, option, 2)
    if any(count != int(count) or count < 0 for count in counts):
        raise WrongUseError(f"{option} takes two numbers of sweeps or all, got {text!r}")
    return tuple(map(int, counts))


def _lines(path: Path) -> tuple[str, ...]:
    with explained(path, "list of names"):
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _classes(text: str, option: str) -> tuple[str, ...]:
    names = _lines(Path(text))
    if not 0 < len(set(names)) == len(names) <= MOST:
        rule = f"{option} must list 1 to {MOST} different classes"
        raise WrongUseError(f"{rule}, got {len(names)} lines in {text}")
    return names


@option_class
class LabelsCommand(LabelOptions):
    paths: list[Path] = argument(
        ..., "nuScenes, recordings, folders with points/, boxes/ and poses.txt.", metavar="INPUT..."
    )
    output: Path = option(Path("gts"), "Folder of the labels.", "--output", "-o")
    scenes: Path | None = option(None, "Label only the scenes that a file names, one per line.")
    json: options.Json = None
    device: options.Device = "auto"

    DECLARED: ClassVar = {
        "voxel_size": declare("--voxel"),
        "point_cloud_range": declare("--bounds", metavar="X0,Y0,Z0,X1,Y1,Z1", parse=options.box),
        "sweeps": declare(metavar="B,A | all", parse=_sweeps),
        "every": declare(min=1, metavar="K"),
        "classes": declare(metavar="FILE", parse=_classes),
        "boxes": declare(metavar="DIR"),
        **dict.fromkeys(("poses", "extrinsic"), declare(metavar="FILE")),
    }


@options.command
def labels(args: LabelsCommand) -> None:
    """Label the cells around keyframes: occupied, free or unknown, in Occ3D's layout.

    A run that was ended goes on where it was: labels that exist are kept.

    Examples:
        torchvox labels nuscenes/ -o gts/ --cameras
        torchvox labels drive.mcap --sweeps 5,5 --every 10 -o gts/ --json report.json
    """
    chosen = LabelOptions(**{each.name: getattr(args, each.name) for each in fields(LabelOptions)})
    if args.output.exists() and not args.output.is_dir():
        raise WrongUseError(f"--output must be a folder, got {args.output}")
    inputs = [*args.paths, args.scenes, args.poses, args.extrinsic]
    options.check_outputs(inputs, {"--json": args.json})
    where, device = choose_device(args.device)
    open_input.cache_clear()
    names = None if args.scenes is None else _lines(args.scenes)
    rows = scene_rows(args.paths, args.output, chosen, names)
    stage, frames, failed = LabelScene(args.output, chosen, where.type), list[Row](), 0
    new, start, total = 0, time.perf_counter(), sum(row["keyframes"] for row in rows)
    with progress_bar(True, MofNCompleteColumn(), TextColumn("{task.fields[pace]}")) as bar:
        task = bar.add_task("", total=total, pace="")
        for row in rows:
            before = len(frames)
            try:
                for frame in stage.frames(row):
                    if frame["error"]:
                        note(f"torchvox: {frame['file']}: {frame['error']}")
                    frames.append(frame)
                    failed, new = failed + (frame["error"] != ""), new + ("points" in frame)
                    pace = f"{new / (time.perf_counter() - start):.3g} per s"
                    bar.update(task, advance=1, description=row["scene"], pace=pace)
            except (TorchvoxError, OSError) as error:  # of this scene alone
                if len(rows) == 1:
                    raise
                failed += row["keyframes"] - (len(frames) - before)
                note(f"torchvox: {row['scene']}: {sentence(error)}")
    spent = time.perf_counter() - start
    write_json(args.json, {"schema": 1, "device": device, "seconds": spent, "keyframes": frames})
    there = sum(not frame["error"] for frame in frames) - new
    text = f"labelled {new:,} of {total:,} keyframes in {spent:,.1f} s, {there:,} were there"
    text += f", {failed:,} failed; wrote {args.output}, on {device}"
    console().print(text, soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)
