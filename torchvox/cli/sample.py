# SPDX-License-Identifier: Apache-2.0
"""torchvox sample: furthest point sampling of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from torchvox._util.errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import (
    cloud_title,
    coverage,
    for_each,
    furthest_points,
    use_device,
    write_result,
)
from torchvox.io import PointCloud, grid_around, write_cloud

FORMATS = (".npz", ".npy", ".png")


@option_class
class SampleOptions(options.FileOptions):
    count: int = option(4096, "Samples per file.", "--count", "-n", min=0)
    start: str = option("0", "Index of the first sample, or random (see --seed).")
    seed: int = option(0, "Random seed for --start random.")
    file_format: str | None = option(
        None, "npz, npy (points only) or png (picture).", "--format", show_default="npz"
    )
    device: options.Device = options.DeviceChoice.auto


@options.command
def sample(args: SampleOptions) -> None:
    """Choose points that cover a cloud evenly, each the furthest from those before it."""
    start = args.start
    if start != "random" and not start.isdecimal():
        raise WrongUseError(f"--start takes random or an index from 0, got {start!r}")
    first = start if start == "random" else int(start)
    files, targets = args.files("samples", FORMATS, args.file_format)
    read = options.cloud_reader(files, args.layout)
    device = use_device(args.device)

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        if first != "random" and int(first) >= max(len(cloud), 1):
            raise WrongUseError(f"--start {first} is past the {len(cloud):,} points of {source}")
        idx, dist2 = furthest_points(cloud.tensor(device), args.count, first, args.seed)
        chosen = idx.cpu().numpy().astype(np.int64)
        reach = coverage(dist2, cloud.unit, int(cloud.finite().sum()))
        samples = replace(cloud, points=cloud.points[chosen])
        if target.suffix.lower() == ".npy":
            write_cloud(target, samples)
        else:
            arrays = {"points": samples.points, "idx": chosen, "dist2": dist2.cpu().numpy()}
            arrays["columns"] = np.array(cloud.columns)
            write_result(target, cloud, partial(_picture, cloud, chosen, reach), **arrays)
        return f"{source.name}: {len(chosen):,} of {len(cloud):,} points, {reach}; wrote {target}"

    for_each(files, targets, work)


def _picture(cloud: PointCloud, chosen: np.ndarray, reach: str, viz: Any) -> Any:
    remark = f"{cloud_title(cloud)}: {len(chosen):,} of {len(cloud):,} points, {reach}"
    limits = grid_around(cloud).moved(cloud.base).point_cloud_range
    xyz = cloud.points[:, :3] + cloud.origin
    return viz.samples_picture(xyz, chosen, limits, unit=cloud.unit, note=remark)
