# SPDX-License-Identifier: Apache-2.0
"""torchvox voxelize: group the points of files into voxels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import (
    amounts,
    cloud_title,
    drops,
    for_each,
    pillar_counts,
    use_device,
    warn_if_none,
    write_result,
)
from torchvox.io import Grid, PointCloud

FORMATS = (".npz", ".npy", ".png")
ARRAYS = ("features", "indices", "num_points", "point_voxel", "counts")


@option_class
class VoxelizeOptions(options.GridOptions):
    max_points: int | None = option(
        None,
        "Maximum points per voxel; -1: no limit.",
        min=-1,
        show_default="the grid's; without --grid 10 for --reduce none, else no limit",
    )
    max_voxels: int | None = option(
        None, "Maximum voxels per file; -1: no limit.", min=-1, show_default="the grid's"
    )
    reduce: Literal["none", "mean", "max", "min", "sum"] = option(
        "mean", "How the points of a voxel are reduced; none keeps them."
    )
    order: Literal["first", "zyx", "xyz"] = option("first", "Order of the voxels.")
    file_format: str | None = option(
        None,
        "npz, npy (features only) or png (picture of the density).",
        "--format",
        show_default="npz",
    )


@options.command
def voxelize(args: VoxelizeOptions) -> None:
    """Voxelize point clouds: features, (batch, z, y, x) indices and counts, as .npz."""
    max_points, max_voxels = args.max_points, args.max_voxels
    if args.reduce == "none" and max_points == -1:
        raise WrongUseError("--reduce none needs --max-points >= 0: its rows are padded to it")
    if args.grid is None and max_points is None and args.reduce != "none":
        max_points = -1
    files, targets = args.files("voxels", FORMATS, args.file_format)
    choose = options.grid_chooser(args.grid, args.voxel_size, args.point_cloud_range)
    read = options.cloud_reader(files, args.layout, choose.read)
    device = use_device(args.device)

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        chosen = choose(cloud)
        limits: dict[str, Any] = {"max_points": max_points, "max_voxels": max_voxels}
        chosen = replace(chosen, **{k: v for k, v in limits.items() if v is not None})
        voxels = torchvox.voxelize(
            cloud.tensor(device),
            list(chosen.voxel_size),
            list(chosen.point_cloud_range),
            chosen.max_points,
            chosen.max_voxels,
            reduce=args.reduce,
            order=args.order,
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
    size = " x ".join(f"{v:g}" for v in grid.voxel_size)
    return (
        f"{source.name}: {len(cloud):,} points -> {len(voxels.indices):,} voxels of {size} "
        f"{cloud.unit} ({grid.chosen}: {grid.moved(cloud.base).limits}); "
        f"dropped: {amounts(drops(voxels.counts))}; wrote {target}"
    )


def _picture(cloud: PointCloud, grid: Grid, voxels: Any, viz: Any) -> Any:
    nx, ny, _ = torchvox.grid_size(list(grid.voxel_size), list(grid.point_cloud_range))
    remark = f"{cloud_title(cloud)}: {len(voxels.indices):,} voxels"
    image = pillar_counts(voxels, (nx, ny)).cpu().numpy()
    place = grid.moved(cloud.base).point_cloud_range
    return viz.density_picture(image, place, unit=cloud.unit, note=remark)
