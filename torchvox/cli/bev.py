# SPDX-License-Identifier: Apache-2.0
"""torchvox bev: bird's-eye views of files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import torchvox
from torchvox._errors import TorchvoxError, WrongUseError
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
    numbers,
    output_paths,
)
from torchvox.cli.voxelize import cloud_title
from torchvox.cli.work import choose_device, for_each, note
from torchvox.io import Grid, PointCloud, find_clouds, write_npy, write_npz

FORMATS = (".png", ".npz", ".npy")
INTENSITY_CHANNELS = ("intensity_top", "intensity_mean", "intensity_max")
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
    paths: Inputs,
    channels: Annotated[
        str,
        typer.Option(help="Comma list: " + ", ".join(LABELS) + ", occupancy:K, slices:K."),
    ] = "height_max",
    layout: Layout = None,
    grid: GridName = None,
    voxel_size: VoxelSize = None,
    point_cloud_range: Range = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="NX,NY", help="Cells, instead of one per voxel.", show_default=False),
    ] = None,
    output: Output = OUTPUT_FOLDER,
    file_format: Annotated[
        str, typer.Option("--format", help="png (one channel), npz or npy.")
    ] = "png",
    device: Device = DeviceChoice.auto,
) -> None:
    """Rasterize point clouds from above, one pixel per cell, as pictures or arrays."""
    wanted = _channels(channels)
    cells = None if size is None else _cells(size)
    files = find_clouds(paths)
    targets = output_paths(files, output, "bev", FORMATS, format_suffix(file_format, FORMATS))
    if any(t.suffix.lower() == ".png" for t in targets) and (
        len(wanted) > 1 or wanted[0] not in LABELS
    ):
        raise WrongUseError("a .png shows one channel: give one, or --format npz")
    read, choose = cloud_reader(files, layout), grid_chooser(grid, voxel_size, point_cloud_range)
    where, name = choose_device(device)
    note(f"device: {name}")

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        chosen = choose(cloud)
        nx, ny = cells or chosen.bev_size
        image, empty, counts = rasterize(cloud, chosen, (nx, ny), wanted, where)
        filled, used = counts[:2]
        _write(target, cloud, chosen, wanted, image, empty)
        limits = ",".join(f"{v:g}" for v in chosen.point_cloud_range)
        return (
            f"{source.name}: {used:,} of {len(cloud):,} points in {nx} x {ny} cells, "
            f"{filled:,} of them filled ({chosen.chosen}: {limits}); wrote {target}"
        )

    for_each(files, targets, work)


def rasterize(
    cloud: PointCloud,
    grid: Grid,
    size: tuple[int, int],
    channels: list[str],
    device: torch.device,
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
        sliced = kind in ("occupancy", "slices") and number.isdigit() and int(number) > 0
        if name not in LABELS and not sliced:
            known = ", ".join([*LABELS, "occupancy:K", "slices:K"])
            raise WrongUseError(f"channel {name!r} is unknown: choose from {known}")
    return names


def _cells(text: str) -> tuple[int, int]:
    nx, ny = numbers(text, "--size", 2)
    if nx < 1 or ny < 1 or nx != int(nx) or ny != int(ny):
        raise WrongUseError(f"--size must be two whole numbers from 1 up, got {text!r}")
    return int(nx), int(ny)


def _write(
    target: Path,
    cloud: PointCloud,
    grid: Grid,
    channels: list[str],
    image: np.ndarray,
    empty: np.ndarray,
) -> None:
    suffix = target.suffix.lower()
    if suffix == ".npy":
        write_npy(target, image)
    elif suffix == ".npz":
        write_npz(
            target,
            image=image,
            empty=empty,
            channels=np.array(channels),
            point_cloud_range=np.array(grid.point_cloud_range),
            origin=cloud.origin,
            unit=np.array(cloud.unit),
        )
    else:
        from torchvox import viz
        from torchvox.viz import style

        title, label, colors, log = LABELS[channels[0]]
        ny, nx = empty.shape
        picture = viz.bev_picture(
            np.where(empty, np.nan, image[0]),
            grid.point_cloud_range,
            title,
            f"{cloud_title(cloud)}: {len(cloud):,} points, {nx} x {ny} cells",
            label.format(unit=cloud.unit),
            unit=cloud.unit,
            colors=getattr(style, colors),
            log=log,
        )
        viz.save(picture, target)
