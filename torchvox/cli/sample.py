# SPDX-License-Identifier: Apache-2.0
"""torchvox sample: furthest point sampling of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from torchvox._errors import WrongUseError
from torchvox.cli.options import (
    OUTPUT_FOLDER,
    Device,
    DeviceChoice,
    Inputs,
    Layout,
    Output,
    cloud_reader,
    format_suffix,
    output_paths,
)
from torchvox.cli.voxelize import cloud_title
from torchvox.cli.work import choose_device, coverage, for_each, furthest_points, note
from torchvox.io import (
    PointCloud,
    find_clouds,
    grid_around,
    write_cloud,
    write_npz,
)

FORMATS = (".npz", ".npy", ".png")


def sample(
    paths: Inputs,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Samples per file.")] = 4096,
    start: Annotated[
        str, typer.Option(help="Index of the first sample, or random (see --seed).")
    ] = "0",
    seed: Annotated[int, typer.Option(help="Seed of a random start.")] = 0,
    layout: Layout = None,
    output: Output = OUTPUT_FOLDER,
    file_format: Annotated[
        str, typer.Option("--format", help="npz, npy (points only) or png (picture).")
    ] = "npz",
    device: Device = DeviceChoice.auto,
) -> None:
    """Choose points that cover a cloud evenly: each next one is furthest from those chosen."""
    if start != "random" and not start.isdigit():
        raise WrongUseError(f"--start must be random or an index from 0 up, got {start!r}")
    first = start if start == "random" else int(start)
    files = find_clouds(paths)
    targets = output_paths(files, output, "samples", FORMATS, format_suffix(file_format, FORMATS))
    read = cloud_reader(files, layout)
    where, name = choose_device(device)
    note(f"device: {name}")

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        idx, dist2 = furthest_points(cloud.tensor(where), count, first, seed)
        chosen = idx.cpu().numpy().astype(np.int64)
        reach = coverage(dist2, cloud.unit)
        _write(target, cloud, chosen, dist2.cpu().numpy(), reach)
        return f"{source.name}: {len(chosen):,} of {len(cloud):,} points, {reach}; wrote {target}"

    for_each(files, targets, work)


def _write(
    target: Path, cloud: PointCloud, chosen: np.ndarray, dist2: np.ndarray, reach: str
) -> None:
    picked = replace(cloud, points=cloud.points[chosen])
    suffix = target.suffix.lower()
    if suffix == ".npy":
        write_cloud(target, picked)
    elif suffix == ".npz":
        write_npz(
            target,
            points=picked.points,
            idx=chosen,
            dist2=dist2,
            columns=np.array(cloud.columns),
            origin=cloud.origin,
            unit=np.array(cloud.unit),
        )
    else:
        from torchvox import viz

        remark = f"{cloud_title(cloud)}: {len(chosen):,} of {len(cloud):,} points, {reach}"
        point_cloud_range = grid_around(cloud).point_cloud_range
        viz.save(
            viz.samples_picture(
                cloud.points[:, :3], chosen, point_cloud_range, unit=cloud.unit, note=remark
            ),
            target,
        )
