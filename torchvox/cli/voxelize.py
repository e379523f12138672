# SPDX-License-Identifier: Apache-2.0
"""torchvox voxelize: group the points of files into voxels."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import torchvox
from torchvox._errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.work import (
    drops,
    for_each,
    pillar_counts,
    use_device,
    warn_if_none,
    write_result,
)
from torchvox.io import Grid, PointCloud, find_clouds

FORMATS = (".npz", ".npy", ".png")
ARRAYS = ("features", "indices", "num_points", "point_voxel", "counts")


class Reduce(str, Enum):
    """What becomes of the points of a voxel."""

    none = "none"
    mean = "mean"
    max = "max"
    min = "min"
    sum = "sum"


class Order(str, Enum):
    """Order of the voxels."""

    first = "first"
    zyx = "zyx"
    xyz = "xyz"


def voxelize(
    paths: options.Inputs,
    layout: options.Layout = None,
    grid: options.GridName = None,
    voxel_size: options.VoxelSize = None,
    point_cloud_range: options.Range = None,
    max_points: Annotated[
        int | None,
        typer.Option(
            min=-1,
            help="Points per voxel, -1: no limit.",
            show_default="the grid's; without --grid 10 for --reduce none, else no limit",
        ),
    ] = None,
    max_voxels: Annotated[
        int | None,
        typer.Option(min=-1, help="Voxels per file, -1: no limit.", show_default="the grid's"),
    ] = None,
    reduce: Annotated[Reduce, typer.Option(help="none keeps the points of a voxel.")] = Reduce.mean,
    order: Annotated[Order, typer.Option(help="Order of the voxels.")] = Order.first,
    output: options.Output = options.OUTPUT_FOLDER,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="npz, npy (features only) or png (density picture).",
            show_default="npz",
        ),
    ] = None,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Voxelize point clouds: features, (batch, z, y, x) indices and counts, as .npz."""
    if reduce is Reduce.none and max_points == -1:
        raise WrongUseError("--reduce none needs --max-points from 0 up: its rows are padded to it")
    if grid is None and max_points is None and reduce is not Reduce.none:
        max_points = -1
    files = find_clouds(paths)
    targets = options.output_paths(files, output, "voxels", FORMATS, file_format)
    choose = options.grid_chooser(grid, voxel_size, point_cloud_range)
    read = options.cloud_reader(files, layout, choose.read)
    where = use_device(device)

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        chosen = choose(cloud)
        limits: dict[str, Any] = {"max_points": max_points, "max_voxels": max_voxels}
        chosen = replace(chosen, **{k: v for k, v in limits.items() if v is not None})
        voxels = torchvox.voxelize(
            cloud.tensor(where),
            list(chosen.voxel_size),
            list(chosen.point_cloud_range),
            chosen.max_points,
            chosen.max_voxels,
            reduce=reduce.value,
            order=order.value,
            trim=True,
        )
        arrays = {name: getattr(voxels, name).cpu().numpy() for name in ARRAYS}
        arrays["columns"] = np.array(cloud.columns)
        arrays["voxel_size"] = np.array(chosen.voxel_size)
        arrays["point_cloud_range"] = np.array(chosen.point_cloud_range)
        write_result(target, cloud, partial(_picture, cloud, chosen, voxels), **arrays)
        warn_if_none(int(voxels.counts[0, 2]), cloud, chosen.point_cloud_range)
        return _summary(source, target, cloud, chosen, voxels)

    for_each(files, targets, work)


def _summary(source: Path, target: Path, cloud: PointCloud, grid: Grid, voxels: Any) -> str:
    dropped = "; ".join(f"{n:,} {why}" for why, n in drops(voxels.counts).items()) or "none"
    size = " x ".join(f"{v:g}" for v in grid.voxel_size)
    return (
        f"{source.name}: {len(cloud):,} points -> {len(voxels.indices):,} voxels of {size} "
        f"{cloud.unit} ({grid.chosen}: {grid.moved(cloud.base).limits}); "
        f"dropped: {dropped}; wrote {target}"
    )


def _picture(cloud: PointCloud, grid: Grid, voxels: Any, viz: Any) -> Any:
    nx, ny, _ = torchvox.grid_size(list(grid.voxel_size), list(grid.point_cloud_range))
    remark = f"{cloud_title(cloud)}: {len(voxels.indices):,} voxels"
    image = pillar_counts(voxels, (nx, ny)).cpu().numpy()
    place = grid.moved(cloud.base).point_cloud_range
    return viz.density_picture(image, place, unit=cloud.unit, note=remark)


def cloud_title(cloud: PointCloud) -> str:
    """File name, or what a cloud without a file is."""
    return cloud.path.name if cloud.path else "generated scan"
