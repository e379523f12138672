# SPDX-License-Identifier: Apache-2.0
"""torchvox bev: bird's-eye views of files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import torchvox
from torchvox._errors import TorchvoxError, WrongUseError
from torchvox.cli import options
from torchvox.cli.voxelize import cloud_title
from torchvox.cli.work import for_each, use_device, warn_if_none, write_result
from torchvox.io import Grid, PointCloud, find_clouds

FORMATS = (".png", ".npz", ".npy")
INTENSITY_CHANNELS = ("intensity_top", "intensity_mean", "intensity_max")
HEIGHTS = ("height_max", "height_min", "height_mean")  # coordinates
LABELS = {  # channel -> (title, label of the color bar, color map of viz.style, logarithmic)
    "height_max": ("Height from above", "z of the highest point  [{unit}]", "HEIGHT", False),
    "height_min": ("Lowest points", "z of the lowest point  [{unit}]", "HEIGHT", False),
    "height_mean": ("Mean height", "mean z  [{unit}]", "HEIGHT", False),
    "height_range": ("Height range", "highest less lowest z  [{unit}]", "HEIGHT", False),
    "height_norm": ("Relative height", "z between the range's ends", "HEIGHT", False),
    "intensity_top": ("Intensity from above", "intensity, as recorded", "INTENSITY", False),
    "intensity_mean": ("Mean intensity", "mean intensity, as recorded", "INTENSITY", False),
    "intensity_max": ("Largest intensity", "largest intensity, as recorded", "INTENSITY", False),
    "count": ("Points per cell", "points per cell  (log)", "DENSITY", True),
    "density": ("Density", "log(count + 1) / log(64), at most 1", "DENSITY", False),
}


def bev(
    paths: options.Inputs,
    channels: Annotated[
        str, typer.Option(help="Comma list: " + ", ".join(LABELS) + ", occupancy:K, slices:K.")
    ] = "height_max",
    layout: options.Layout = None,
    grid: options.GridName = None,
    voxel_size: options.VoxelSize = None,
    point_cloud_range: options.Range = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="NX,NY", help="Cells, instead of one per voxel.", show_default=False),
    ] = None,
    output: options.Output = options.OUTPUT_FOLDER,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="png (one channel), npz or npy.", show_default="png"),
    ] = None,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Rasterize point clouds from above, one pixel per cell, as pictures or arrays."""
    wanted = _channels(channels)
    cells = None if size is None else _cells(size)
    files = find_clouds(paths)
    targets = options.output_paths(files, output, "bev", FORMATS, file_format)
    if any(t.suffix.lower() == ".png" for t in targets) and (
        len(wanted) > 1 or wanted[0] not in LABELS
    ):
        raise WrongUseError("a .png shows one channel: give one, or --format npz")
    choose = options.grid_chooser(grid, voxel_size, point_cloud_range)
    read = options.cloud_reader(files, layout, choose.read)
    where = use_device(device)

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        chosen = choose(cloud)
        nx, ny = cells or chosen.bev_size
        image, empty, counts = rasterize(cloud, chosen, (nx, ny), wanted, where)
        filled, used = counts[:2]
        warn_if_none(used, cloud, chosen.point_cloud_range)
        arrays = {"image": image, "empty": empty, "channels": np.array(wanted)}
        arrays["point_cloud_range"] = np.array(chosen.point_cloud_range)
        picture = partial(_picture, cloud, chosen, wanted[0], image[0], empty)
        write_result(target, cloud, picture, **arrays)
        return (
            f"{source.name}: {used:,} of {len(cloud):,} points in {nx} x {ny} cells, "
            f"{filled:,} of them filled ({chosen.chosen}: "
            f"{chosen.moved(cloud.base).limits}); wrote {target}"
        )

    for_each(files, targets, work)


def rasterize(
    cloud: PointCloud, grid: Grid, size: tuple[int, int], channels: list[str], device: torch.device
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The channels [C, H, W], the empty cells [H, W], and the counts of the whole call."""
    points, point_cloud_range = cloud.tensor(device), list(grid.point_cloud_range)
    features = None
    if set(channels) & set(INTENSITY_CHANNELS):
        if "intensity" not in cloud.columns:
            raise TorchvoxError(
                f"{cloud_title(cloud)} has no intensity column (it has {','.join(cloud.columns)})"
            )
        at = cloud.columns.index("intensity")
        features = points[:, at].contiguous()
    image, counts = torchvox.bev_rasterize(
        points, point_cloud_range, list(size), [*channels, "count"], features=features
    )
    planes = image[0].cpu().numpy()
    return planes[:-1], planes[-1] == 0, counts[0].tolist()


def _channels(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        kind, _, number = name.partition(":")
        sliced = kind in ("occupancy", "slices") and number.isdecimal() and int(number) > 0
        if name not in LABELS and not sliced:
            known = ", ".join([*LABELS, "occupancy:K", "slices:K"])
            raise WrongUseError(f"channel {name!r} is unknown: choose from {known}")
    return names


def _cells(text: str) -> tuple[int, int]:
    nx, ny = options.numbers(text, "--size", 2)
    if not all(1 <= n <= 2**24 and n == int(n) for n in (nx, ny)):
        raise WrongUseError(f"--size must be two whole numbers from 1 to 2^24, got {text!r}")
    return int(nx), int(ny)


def _picture(
    cloud: PointCloud, grid: Grid, channel: str, image: np.ndarray, empty: np.ndarray, viz: Any
) -> Any:
    title, label, colors, log = LABELS[channel]
    if channel in HEIGHTS:
        image = image + cloud.base[2]
    ny, nx = empty.shape
    return viz.bev_picture(
        np.where(empty, np.nan, image),
        grid.moved(cloud.base).point_cloud_range,
        title,
        f"{cloud_title(cloud)}: {len(cloud):,} points, {nx} x {ny} cells",
        label.format(unit=cloud.unit),
        unit=cloud.unit,
        colors=getattr(viz.style, colors),
        log=log,
    )
