# SPDX-License-Identifier: Apache-2.0
"""torchvox voxelize: group the points of files into voxels."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import torchvox
from torchvox._errors import WrongUseError
from torchvox.cli.options import (
    OUTPUT_FOLDER,
    Device,
    DeviceChoice,
    GridName,
    Inputs,
    Layout,
    Output,
    Range,
    VoxelSize,
    cloud_reader,
    format_suffix,
    grid_chooser,
    output_paths,
)
from torchvox.cli.work import choose_device, drops, for_each, note, pillar_counts
from torchvox.io import Grid, PointCloud, find_clouds, write_npy, write_npz

FORMATS = (".npz", ".npy", ".png")


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
    paths: Inputs,
    layout: Layout = None,
    grid: GridName = None,
    voxel_size: VoxelSize = None,
    point_cloud_range: Range = None,
    max_points: Annotated[
        int | None,
        typer.Option(min=-1, help="Points per voxel, -1: no limit.", show_default="the grid's"),
    ] = None,
    max_voxels: Annotated[
        int | None,
        typer.Option(min=-1, help="Voxels per file, -1: no limit.", show_default="the grid's"),
    ] = None,
    reduce: Annotated[Reduce, typer.Option(help="none keeps the points of a voxel.")] = Reduce.mean,
    order: Annotated[Order, typer.Option(help="Order of the voxels.")] = Order.first,
    output: Output = OUTPUT_FOLDER,
    file_format: Annotated[
        str, typer.Option("--format", help="npz, npy (features only) or png (density picture).")
    ] = "npz",
    device: Device = DeviceChoice.auto,
) -> None:
    """Voxelize point clouds: features, (batch, z, y, x) indices and counts, as .npz."""
    if reduce is Reduce.none and max_points == -1:
        raise WrongUseError("--reduce none needs --max-points from 0 up: its rows are padded to it")
    files = find_clouds(paths)
    targets = output_paths(files, output, "voxels", FORMATS, format_suffix(file_format, FORMATS))
    read, choose = cloud_reader(files, layout), grid_chooser(grid, voxel_size, point_cloud_range)
    where, name = choose_device(device)
    note(f"device: {name}")

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
        _write(target, cloud, chosen, voxels)
        return _summary(source, target, cloud, chosen, voxels)

    for_each(files, targets, work)


def _summary(source: Path, target: Path, cloud: PointCloud, grid: Grid, voxels: Any) -> str:
    dropped = "; ".join(f"{n:,} {why}" for why, n in drops(voxels.counts).items()) or "none"
    size = " x ".join(f"{v:g}" for v in grid.voxel_size)
    return (
        f"{source.name}: {len(cloud):,} points -> {len(voxels.indices):,} voxels of {size} "
        f"{cloud.unit} ({grid.chosen}: {','.join(f'{v:g}' for v in grid.point_cloud_range)}); "
        f"dropped: {dropped}; wrote {target}"
    )


def _write(target: Path, cloud: PointCloud, grid: Grid, voxels: Any) -> None:
    suffix = target.suffix.lower()
    if suffix == ".npy":
        write_npy(target, voxels.features.cpu().numpy())
    elif suffix == ".npz":
        write_npz(
            target,
            features=voxels.features.cpu().numpy(),
            indices=voxels.indices.cpu().numpy(),
            num_points=voxels.num_points.cpu().numpy(),
            point_voxel=voxels.point_voxel.cpu().numpy(),
            counts=voxels.counts.cpu().numpy(),
            columns=np.array(cloud.columns),
            voxel_size=np.array(grid.voxel_size),
            point_cloud_range=np.array(grid.point_cloud_range),
            origin=cloud.origin,
            unit=np.array(cloud.unit),
        )
    else:
        from torchvox import viz

        nx, ny, _ = torchvox.grid_size(list(grid.voxel_size), list(grid.point_cloud_range))
        remark = f"{cloud_title(cloud)}: {len(voxels.indices):,} voxels"
        image = pillar_counts(voxels, (nx, ny)).cpu().numpy()
        viz.save(
            viz.density_picture(image, grid.point_cloud_range, unit=cloud.unit, note=remark), target
        )


def cloud_title(cloud: PointCloud) -> str:
    """File name, or what a cloud without a file is."""
    return cloud.path.name if cloud.path else "generated scan"
