# SPDX-License-Identifier: Apache-2.0
"""torchvox predict: a trained model on files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from torchvox.cli import options
from torchvox.cli.work import for_each, use_device
from torchvox.io import PointCloud, find_clouds, write_npz

if TYPE_CHECKING:
    from torchvox.train.checkpoint import Checkpoint

FORMATS = (".npz", ".png")
LIKELIEST = 3  # classes named per cloud


def predict(
    paths: options.Inputs,
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            "-m",
            help="best.ckpt of torchvox train, or a name such as pointnet2_cls_shapes_small.",
            show_default=False,
        ),
    ],
    layout: options.Layout = None,
    category: Annotated[
        str | None, typer.Option(help="What the objects are, for a model of parts.")
    ] = None,
    output: options.Output = options.OUTPUT_FOLDER,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Of point labels: npz, or png (picture).", show_default="npz"
        ),
    ] = None,
    trust_code: options.TrustCode = False,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Classify clouds, or label their points: what each is printed, point labels are written."""
    from torchvox.train import load_checkpoint
    from torchvox.train.predict import number_of_category

    options.check_model(model)
    where = use_device(device)
    trained = load_checkpoint(model, where, trust_code)
    files = find_clouds(paths)
    read = options.cloud_reader(files, layout)
    if trained.config.task == "classify":
        for_each(files, files, lambda source, _: _classify(trained, source, read(source)))
        return
    if trained.config.task == "parts":
        number_of_category(trained, category)  # refuses an unknown one
    targets = options.output_paths(files, output, "labels", FORMATS, file_format)
    options.check_outputs([*files, model], {"--output": targets})
    for_each(files, targets, lambda src, dst: _label(trained, src, dst, read(src), category))


def _classify(trained: Checkpoint, source: Path, cloud: PointCloud) -> str:
    from torchvox.train.predict import classify_cloud

    likely = classify_cloud(trained, cloud).topk(min(LIKELIEST, len(trained.labels.classes)))
    names = [trained.labels.classes[i] for i in likely.indices]
    shown = [f"{n} {100 * p:.1f} %" for n, p in zip(names, likely.values.tolist(), strict=True)]
    return f"{source.name}: {', '.join(shown)}"


def _label(
    trained: Checkpoint, source: Path, target: Path, cloud: PointCloud, category: str | None
) -> str:
    from torchvox.train.predict import label_points

    labels = label_points(trained, cloud, category)
    names = trained.labels.classes
    if target.suffix.lower() == ".npz":
        arrays = {"points": cloud.points, "origin": cloud.origin, "labels": labels}
        write_npz(target, **arrays, names=np.array(names))
    else:
        from torchvox import viz

        known = labels >= 0
        panel = viz.Panel(cloud.points[known, :3], "", labels[known])
        viz.save(viz.clouds_picture([panel], source.name, columns=1), target)
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    most = [f"{names[i]} {counts[i]:,}" for i in np.argsort(-counts)[:LIKELIEST] if counts[i]]
    return f"{source.name}: {len(cloud):,} points, {', '.join(most)}; wrote {target}"
