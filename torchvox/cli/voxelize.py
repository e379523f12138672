# SPDX-License-Identifier: Apache-2.0
"""torchvox voxelize: group the points of files into voxels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import Clock, Output, amounts, cloud_title, run_on_each, warn_if_none
from torchvox.io import Grid, PointCloud
from torchvox.ops.voxel import Voxels

FORMATS = (".npz", ".npy", ".png")
ARRAYS = ("features", "indices", "num_points", "point_voxel", "counts")
DROPS = {  # columns of the counts
    "over the points-per-voxel cap": 3,
    "in voxels past the voxel cap": 4,
    "out of range": 5,
    "not finite": 6,
}
Reduce = Literal["none", "mean", "max", "min", "sum"]
Order = Literal["first", "zyx", "xyz"]


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
    reduce: Reduce = option("mean", "How the points of a voxel are reduced; none keeps them.")
    order: Order = option("first", "Order of the voxels.")
    file_format: str | None = option(
        None,
        "npz, npy (features only) or png (picture of the density).",
        "--format",
        show_default="npz",
    )


@options.command
def voxelize(args: VoxelizeOptions) -> None:
    """Voxelize point clouds: features, (batch, z, y, x) indices and counts, as .npz.

    Examples:
        torchvox voxelize scan.bin --layout kitti --grid kitti_pillars
        torchvox voxelize tile.laz --voxel 2 --reduce mean -o tile.npz
    """
    max_points, max_voxels = args.max_points, args.max_voxels
    if args.reduce == "none" and max_points == -1:
        raise WrongUseError("--reduce none needs --max-points >= 0: its rows are padded to it")
    if args.grid is None and max_points is None and args.reduce != "none":
        max_points = -1

    choose = args.grid_choice()

    def work(cloud: PointCloud, clock: Clock) -> Output:
        grid = choose(cloud)
        most = grid.max_points if max_points is None else max_points
        rows = grid.max_voxels if max_voxels is None else max_voxels
        grid = replace(grid, max_points=most, max_voxels=rows)
        return voxelize_cloud(cloud, grid, clock, args.reduce, args.order)

    run_on_each(args, "voxels", FORMATS, work, choose.read)


def voxelize_cloud(
    cloud: PointCloud, grid: Grid, clock: Clock, reduce: Reduce = "mean", order: Order = "first"
) -> Output:
    points, size, limits = cloud.tensor(clock.device), list(grid.voxel_size), grid.point_cloud_range
    caps = grid.max_points, grid.max_voxels
    voxels = clock(
        lambda: torchvox.voxelize(
            points, size, list(limits), *caps, reduce=reduce, order=order, trim=True
        )
    )
    warn_if_none(int(voxels.counts[0, 2]), cloud, limits)
    arrays = {name: getattr(voxels, name).cpu().numpy() for name in ARRAYS}
    arrays |= {"columns": np.array(cloud.columns), "voxel_size": np.array(size)}
    arrays["point_cloud_range"] = np.array(limits)
    count, edges, place = len(voxels.indices), " x ".join(f"{v:g}" for v in size), cloud.base

    def look() -> dict[str, Any]:
        nx, ny, _ = torchvox.grid_size(size, list(limits))
        return {
            "density": pillar_counts(voxels, (nx, ny)).cpu().numpy(),
            "point_cloud_range": grid.moved(place).point_cloud_range,
            "unit": cloud.unit,
            "note": f"{cloud_title(cloud)}: {count:,} voxels",
        }

    dropped = {why: int(voxels.counts[0, column]) for why, column in DROPS.items()}
    line = f"{len(cloud):,} points -> {count:,} voxels of {edges} {cloud.unit} ({grid.chosen}: "
    line += f"{grid.moved(place).limits}); dropped: {amounts(dropped)}"
    return Output(line, arrays, "density_picture", look)


def pillar_counts(voxels: Voxels, size: tuple[int, int]) -> torch.Tensor:
    """Number of points in each pillar [ny, nx] int64, from the output of voxelize.

    size: (nx, ny) of the grid. Points over the cap count too: point_voxel has their voxel.
    """
    (nx, ny), rows = size, voxels.point_voxel[voxels.point_voxel >= 0].long()
    cells = voxels.indices[rows, 2].long() * nx + voxels.indices[rows, 3]
    return torch.bincount(cells, minlength=ny * nx).view(ny, nx)
