# SPDX-License-Identifier: Apache-2.0
"""torchvox predict: apply a trained model to files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from torchvox._util.errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.commands import write_json
from torchvox.cli.options import option, option_class
from torchvox.cli.work import attempt_each, cloud_title, console, table_of, use_device
from torchvox.data.readers import objects
from torchvox.io import PointCloud, write_npz
from torchvox.io.readers import FOLDER_SUFFIXES

if TYPE_CHECKING:
    from torchvox.train.checkpoint import Checkpoint

FORMATS = (".npz", ".png")
LIKELIEST = 3  # classes in the line of a cloud
MANY = 4  # clouds that have a table


@option_class
class PredictOptions(options.FileOptions):
    model: Path = option(
        ...,
        "best.ckpt from torchvox train, or a name such as pointnet2_cls_shapes_small.",
        "--model",
        "-m",
    )
    json: options.Json = None
    category: str | None = option(None, "Category of the objects, for a part segmentation model.")
    file_format: str | None = option(
        None, "Format of point labels: npz, or png (picture).", "--format", show_default="npz"
    )
    trust_code: options.TrustCode = False
    device: options.Device = "auto"


@options.command
def predict(args: PredictOptions) -> None:
    """Classify clouds (prints the classes) or label their points (writes files).

    Examples:
        torchvox predict objects/ -m runs/mine/best.ckpt --json classes.json
        torchvox predict room.ply -m runs/rooms/best.ckpt -o labels.npz
    """
    from torchvox.train import load_checkpoint
    from torchvox.train.predict import classify_cloud, number_of_category

    options.check_model(args.model)
    trained = load_checkpoint(args.model, use_device(args.device), args.trust_code)
    is_classifier = trained.config.task == "classify"
    files = args.clouds(_clouds(args.paths) if is_classifier else args.paths)
    read, names = options.cloud_reader(files, args.layout), _names(files)
    if is_classifier and (args.output != options.OUTPUT or args.file_format):
        option = "--format" if args.file_format else f"--output {args.output}"
        rule = "this model labels no points: write the classes with --json FILE"
        raise WrongUseError(f"{option} would write nothing, {rule}")
    if trained.config.task == "parts":
        number_of_category(trained, args.category)  # raises for an unknown one
    elif args.category is not None:
        raise WrongUseError("remove --category: the model is not for parts of objects")
    targets: list[Path] = []
    if not is_classifier:
        targets = options.output_paths(files, args.output, "labels", FORMATS, args.file_format)
    outputs = {"--output": targets, "--json": args.json}
    options.check_outputs([*files, args.model], outputs)
    results: list[tuple[str, dict[str, float]]] = []
    as_table = is_classifier and len(files) >= MANY

    def work(number: int) -> str | None:
        cloud, name = read(files[number]), names[number]
        if is_classifier:
            shares, start, end = classify_cloud(trained, cloud).numpy(), "", ""
        else:
            shares = _label(trained, targets[number], cloud, args.category)
            start, end = f"{len(cloud):,} points, ", f"; wrote {targets[number]}"
        order = np.argsort(-shares, kind="stable")
        classes = {trained.labels.classes[i]: round(float(shares[i]), 6) for i in order}
        results.append((name, classes))
        return None if as_table else f"{name}: {start}{', '.join(_words(classes))}{end}"

    failed = attempt_each(files, work)
    if as_table:
        rows = ((name, *_words(shares)) for name, shares in results)
        console().print(table_of("", ("file", "class", "second", "third"), rows))
    write_json(args.json, [{"file": name, "classes": each} for name, each in results])
    if failed:
        raise typer.Exit(1)


def _clouds(paths: list[Path]) -> Iterator[Path]:
    """The paths; for a folder of class folders, as training reads it, the clouds in these."""
    for path in paths:
        has_clouds = {p.suffix.lower() for p in objects.clouds_in(path)} & {*FOLDER_SUFFIXES}
        inside = [] if has_clouds else objects.class_folders(path)
        yield from [cloud for folder in inside for cloud in objects.clouds_in(folder)] or [path]


def _names(files: list[Path]) -> list[str]:
    """The names of files; the paths below the folder of all where a name is there twice."""
    names, whole = [path.name for path in files], [os.path.abspath(path) for path in files]
    if len(set(names)) == len(set(whole)):
        return names
    root = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [os.path.relpath(path, root) for path in whole]


def _words(shares: dict[str, float]) -> list[str]:
    likeliest = list(shares.items())[:LIKELIEST]
    return [f"{name} {100 * share:.1f} %" for name, share in likeliest if share]


def _label(
    trained: Checkpoint, target: Path, cloud: PointCloud, category: str | None
) -> np.ndarray:
    """Write the labels of points; the share of each class."""
    from torchvox.train.predict import label_points

    labels = label_points(trained, cloud, category)
    names = trained.labels.classes
    if target.suffix.lower() == ".npz":
        arrays = {"points": cloud.points, "origin": cloud.origin, "labels": labels}
        write_npz(target, **arrays, names=np.array(names))
    else:
        from torchvox import viz

        rows = labels >= 0
        panel = viz.Panel(cloud.points[rows, :3], "", labels[rows])
        viz.save(viz.clouds_picture([panel], cloud_title(cloud), columns=1), target)
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    return counts / max(counts.sum(), 1)
