# SPDX-License-Identifier: Apache-2.0
"""torchvox sample: furthest point sampling of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from torchvox._errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.voxelize import cloud_title
from torchvox.cli.work import coverage, for_each, furthest_points, use_device, write_result
from torchvox.io import PointCloud, find_clouds, grid_around, write_cloud

FORMATS = (".npz", ".npy", ".png")


def sample(
    paths: options.Inputs,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Samples per file.")] = 4096,
    start: Annotated[
        str, typer.Option(help="Index of the first sample, or random (see --seed).")
    ] = "0",
    seed: Annotated[int, typer.Option(help="Seed of a random start.")] = 0,
    layout: options.Layout = None,
    output: options.Output = options.OUTPUT_FOLDER,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="npz, npy (points only) or png (picture).", show_default="npz"
        ),
    ] = None,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Choose points that cover a cloud evenly: each next one is furthest from those chosen."""
    if start != "random" and not start.isdecimal():
        raise WrongUseError(f"--start must be random or an index from 0 up, got {start!r}")
    first = start if start == "random" else int(start)
    files = find_clouds(paths)
    targets = options.output_paths(files, output, "samples", FORMATS, file_format)
    read = options.cloud_reader(files, layout)
    where = use_device(device)

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        if first != "random" and int(first) >= max(len(cloud), 1):
            raise WrongUseError(f"--start {first} is past the {len(cloud):,} points of {source}")
        idx, dist2 = furthest_points(cloud.tensor(where), count, first, seed)
        chosen = idx.cpu().numpy().astype(np.int64)
        reach = coverage(dist2, cloud.unit, int(cloud.finite().sum()))
        picked = replace(cloud, points=cloud.points[chosen])
        if target.suffix.lower() == ".npy":
            write_cloud(target, picked)
        else:
            arrays = {"points": picked.points, "idx": chosen, "dist2": dist2.cpu().numpy()}
            arrays["columns"] = np.array(cloud.columns)
            write_result(target, cloud, partial(_picture, cloud, chosen, reach), **arrays)
        return f"{source.name}: {len(chosen):,} of {len(cloud):,} points, {reach}; wrote {target}"

    for_each(files, targets, work)


def _picture(cloud: PointCloud, chosen: np.ndarray, reach: str, viz: Any) -> Any:
    remark = f"{cloud_title(cloud)}: {len(chosen):,} of {len(cloud):,} points, {reach}"
    limits = grid_around(cloud).moved(cloud.base).point_cloud_range
    xyz = cloud.points[:, :3] + cloud.origin
    return viz.samples_picture(xyz, chosen, limits, unit=cloud.unit, note=remark)
