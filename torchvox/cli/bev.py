# SPDX-License-Identifier: Apache-2.0
"""torchvox bev: bird's-eye views of files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchvox
from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import cloud_title, for_each, use_device, warn_if_none, write_result
from torchvox.io import Grid, PointCloud

FORMATS = (".png", ".npz", ".npy")
INTENSITY_CHANNELS = ("intensity_top", "intensity_mean", "intensity_max")
HEIGHTS = ("height_max", "height_min", "height_mean")  # coordinates
COUNTED = ("occupancy:K", "slices:K")  # channels of K planes
LABELS = {  # channel -> (title, label of the color bar, color map of viz.style, logarithmic)
    "height_max": ("Height from above", "z of the highest point  [{unit}]", "HEIGHT", False),
    "height_min": ("Lowest points", "z of the lowest point  [{unit}]", "HEIGHT", False),
    "height_mean": ("Mean height", "mean z  [{unit}]", "HEIGHT", False),
    "height_range": ("Height range", "highest minus lowest z  [{unit}]", "HEIGHT", False),
    "height_norm": ("Relative height", "z from 0 to 1 within the range", "HEIGHT", False),
    "intensity_top": ("Intensity from above", "intensity, as recorded", "INTENSITY", False),
    "intensity_mean": ("Mean intensity", "mean intensity, as recorded", "INTENSITY", False),
    "intensity_max": ("Largest intensity", "largest intensity, as recorded", "INTENSITY", False),
    "count": ("Points per cell", "points per cell  (log)", "DENSITY", True),
    "density": ("Density", "log(count + 1) / log(64), at most 1", "DENSITY", False),
}


@option_class
class BevOptions(options.GridOptions):
    channels: str = option(
        "height_max", f"Channels, separated by commas: {', '.join([*LABELS, *COUNTED])}."
    )
    size: str | None = option(
        None, "Size of the image in cells.", metavar="NX,NY", show_default="one per voxel"
    )
    file_format: str | None = option(
        None, "png (one channel), npz or npy.", "--format", show_default="png"
    )


@options.command
def bev(args: BevOptions) -> None:
    """Rasterize point clouds from above, one pixel per cell, as pictures or arrays."""
    channels = _channels(args.channels)
    cells = None if args.size is None else _cells(args.size)
    files, targets = args.files("bev", FORMATS, args.file_format)
    if any(t.suffix.lower() == ".png" for t in targets) and (
        len(channels) > 1 or channels[0] not in LABELS
    ):
        raise WrongUseError("a .png shows one channel: choose one, or --format npz")
    choose = options.grid_chooser(args.grid, args.voxel_size, args.point_cloud_range)
    read = options.cloud_reader(files, args.layout, choose.read)
    device = use_device(args.device)

    def work(source: Path, target: Path) -> str:
        cloud = read(source)
        grid = choose(cloud)
        nx, ny = cells or grid.bev_size
        image, empty, counts = rasterize(cloud, grid, (nx, ny), channels, device)
        filled, used = counts[:2]
        warn_if_none(used, cloud, grid.point_cloud_range)
        arrays = {"image": image, "empty": empty, "channels": np.array(channels)}
        arrays["point_cloud_range"] = np.array(grid.point_cloud_range)
        picture = partial(_picture, cloud, grid, channels[0], image[0], empty)
        write_result(target, cloud, picture, **arrays)
        return (
            f"{source.name}: {used:,} of {len(cloud):,} points in {nx} x {ny} cells, "
            f"{filled:,} of them filled ({grid.chosen}: "
            f"{grid.moved(cloud.base).limits}); wrote {target}"
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
    channels = [name.strip() for name in text.split(",")]
    for name in channels:
        kind, _, number = name.partition(":")
        sliced = kind in ("occupancy", "slices") and number.isdecimal() and int(number) > 0
        if name not in LABELS and not sliced:
            names = ", ".join([*LABELS, *COUNTED])
            raise WrongUseError(f"channel {name!r} is unknown: choose from {names}")
    return channels


def _cells(text: str) -> tuple[int, int]:
    nx, ny = options.numbers(text, "--size", 2)
    if not all(1 <= n <= 2**24 and n == int(n) for n in (nx, ny)):
        raise WrongUseError(f"--size takes two whole numbers from 1 to 2^24, got {text!r}")
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
