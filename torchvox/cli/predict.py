# SPDX-License-Identifier: Apache-2.0
"""torchvox predict: apply a trained model to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import for_each, use_device
from torchvox.io import PointCloud, find_clouds, write_npz

if TYPE_CHECKING:
    from torchvox.train.checkpoint import Checkpoint

FORMATS = (".npz", ".png")
LIKELIEST = 3  # classes in the line of a cloud


@option_class
class PredictOptions(options.FileOptions):
    model: Path = option(
        ...,
        "best.ckpt from torchvox train, or a name such as pointnet2_cls_shapes_small.",
        "--model",
        "-m",
    )
    category: str | None = option(None, "Category of the objects, for a part segmentation model.")
    file_format: str | None = option(
        None, "Format of point labels: npz, or png (picture).", "--format", show_default="npz"
    )
    trust_code: options.TrustCode = False
    device: options.Device = "auto"


@options.command
def predict(args: PredictOptions) -> None:
    """Classify clouds (prints the classes) or label their points (writes files)."""
    from torchvox.train import load_checkpoint
    from torchvox.train.predict import number_of_category

    options.check_model(args.model)
    trained = load_checkpoint(args.model, use_device(args.device), args.trust_code)
    files = find_clouds(args.paths)
    read = options.cloud_reader(files, args.layout)
    if trained.config.task == "classify":
        for_each(files, files, lambda source, _: _classify(trained, source, read(source)))
        return
    category = args.category
    if trained.config.task == "parts":
        number_of_category(trained, category)  # raises for an unknown one
    targets = options.output_paths(files, args.output, "labels", FORMATS, args.file_format)
    options.check_outputs([*files, args.model], {"--output": targets})
    for_each(files, targets, lambda src, dst: _label(trained, src, dst, read(src), category))


def _classify(trained: Checkpoint, source: Path, cloud: PointCloud) -> str:
    from torchvox.train.predict import classify_cloud

    likely = classify_cloud(trained, cloud).topk(min(LIKELIEST, len(trained.labels.classes)))
    names = [trained.labels.classes[i] for i in likely.indices]
    shares = zip(names, likely.values.tolist(), strict=True)
    return f"{source.name}: {', '.join(f'{name} {100 * share:.1f} %' for name, share in shares)}"


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

        rows = labels >= 0
        panel = viz.Panel(cloud.points[rows, :3], "", labels[rows])
        viz.save(viz.clouds_picture([panel], source.name, columns=1), target)
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    most = [f"{names[i]} {counts[i]:,}" for i in np.argsort(-counts)[:LIKELIEST] if counts[i]]
    return f"{source.name}: {len(cloud):,} points, {', '.join(most)}; wrote {target}"
