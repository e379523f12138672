# SPDX-License-Identifier: Apache-2.0
"""torchvox bev: bird's-eye views of files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import torchvox
from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.cli import options
from torchvox.cli.options import option, option_class
from torchvox.cli.work import Clock, Output, cloud_title, note, run_on_each, warn_if_none
from torchvox.io import Grid, PointCloud
from torchvox.io.writers import write_text
from torchvox.viz import style

FORMATS = (".png", ".npz", ".npy")
INTENSITY_CHANNELS = ("intensity_top", "intensity_mean", "intensity_max")
HEIGHTS = ("height_max", "height_min", "height_mean")  # coordinates
COUNTED = ("occupancy:K", "slices:K")  # channels of K planes
LABELS = {  # channel -> (title, label of the color bar, color map, logarithmic)
    "height_max": ("Height from above", "z of the highest point  [{unit}]", style.HEIGHT, False),
    "height_min": ("Lowest points", "z of the lowest point  [{unit}]", style.HEIGHT, False),
    "height_mean": ("Mean height", "mean z  [{unit}]", style.HEIGHT, False),
    "height_range": ("Height range", "highest minus lowest z  [{unit}]", style.HEIGHT, False),
    "height_norm": ("Relative height", "z from 0 to 1 within the range", style.HEIGHT, False),
    "intensity_top": ("Intensity from above", "intensity, as recorded", style.INTENSITY, False),
    "intensity_mean": ("Mean intensity", "mean intensity, as recorded", style.INTENSITY, False),
    "intensity_max": (
        "Largest intensity",
        "largest intensity, as recorded",
        style.INTENSITY,
        False,
    ),
    "count": ("Points per cell", "points per cell  (log)", style.DENSITY, True),
    "density": ("Density", "log(count + 1) / log(64), at most 1", style.DENSITY, False),
}


def _channels(text: str, option: str) -> list[str]:
    channels = [name.strip() for name in text.split(",")]
    for name in channels:
        kind, _, number = name.partition(":")
        sliced = kind in ("occupancy", "slices") and number.isdecimal() and int(number) > 0
        if name not in LABELS and not sliced:
            names = ", ".join([*LABELS, *COUNTED])
            raise WrongUseError(f"channel {name!r} is unknown: choose from {names}")
    return channels


def _cells(text: str, option: str) -> tuple[int, int]:
    nx, ny = options.numbers(text, option, 2)
    if not all(1 <= n <= 2**24 and n == int(n) for n in (nx, ny)):
        raise WrongUseError(f"{option} takes two whole numbers from 1 to 2^24, got {text!r}")
    return int(nx), int(ny)


@option_class
class BevOptions(options.GridOptions):
    channels: list[str] = option(
        "height_max",
        f"Channels, separated by commas: {', '.join([*LABELS, *COUNTED])}.",
        parse=_channels,
    )
    size: tuple[int, int] | None = option(
        None,
        "Size of the image in cells.",
        metavar="NX,NY",
        show_default="one per voxel",
        parse=_cells,
    )
    world_file: bool = option(
        False,
        "For GIS: one pixel per cell in the .png, without axes, and beside it a world file .pgw "
        "and, if the file holds its reference system as WKT, a .prj.",
    )
    file_format: str | None = option(
        None, "png (one channel), npz or npy.", "--format", show_default="png"
    )


@options.command
def bev(args: BevOptions) -> None:
    """Rasterize point clouds from above, one pixel per cell, as pictures or arrays.

    Examples:
        torchvox bev scan.bin --layout kitti -o above.png
        torchvox bev tile.laz --voxel 1 --world-file -o heights.png
        torchvox bev scans/ --layout kitti --channels height_max,density --format npz
    """
    channels, choose = args.channels, args.grid_choice()
    forms = {args.output.suffix.lower(), f".{args.file_format or 'png'}"}
    if args.world_file and not forms <= {"", ".png"}:
        raise WrongUseError("--world-file goes with a .png: remove --format or name a .png")

    def work(cloud: PointCloud, clock: Clock) -> Output:
        grid = choose(cloud)
        output = rasterize_cloud(cloud, grid, clock, channels, args.size)
        warn_if_none(int((~output.arrays["empty"]).sum()), cloud, grid.point_cloud_range)
        if args.world_file:
            cells = output.arrays["empty"].shape
            beside = partial(write_world_file, cloud, grid.moved(cloud.base), cells)
            output = output._replace(draw="raster_picture", beside=beside)
        return output

    drawable = len(channels) == 1 and channels[0] in LABELS
    run_on_each(args, "bev", FORMATS, work, choose.read, drawable)


def rasterize_cloud(
    cloud: PointCloud,
    grid: Grid,
    clock: Clock,
    channels: Sequence[str],
    cells: tuple[int, int] | None = None,
) -> Output:
    points, limits, features = cloud.tensor(clock.device), grid.point_cloud_range, None
    if set(channels) & set(INTENSITY_CHANNELS):
        if "intensity" not in cloud.columns:
            raise TorchvoxError(
                f"{cloud_title(cloud)} has no intensity column (it has {','.join(cloud.columns)})"
            )
        features = points[:, cloud.columns.index("intensity")].contiguous()
    nx, ny = cells or grid.bev_size
    names = [*channels, "count"]
    raster = clock(
        lambda: torchvox.bev_rasterize(points, list(limits), [nx, ny], names, features=features)
    )
    *planes, number = raster.image[0].cpu().numpy()
    empty, (filled, used) = number == 0, raster.counts[0, :2].tolist()
    arrays = {"image": np.stack(planes), "empty": empty, "channels": np.array(channels)}
    arrays["point_cloud_range"] = np.array(limits)
    place = grid.moved(cloud.base)
    line = f"{used:,} of {len(cloud):,} points in {nx} x {ny} cells, {filled:,} of them filled "
    line += f"({grid.chosen}: {place.limits})"
    look = partial(look_of, cloud, place, channels[0], planes[0], empty)
    return Output(line, arrays, "bev_picture", look)


def write_world_file(cloud: PointCloud, place: Grid, cells: tuple[int, int], png: Path) -> None:
    """Write beside a picture, north up, its place and the WKT of the cloud, as GIS read them.
    place: the grid in file coordinates. cells: rows, columns."""
    x0, y0, _, x1, y1, _ = place.point_cloud_range
    dx, dy = (x1 - x0) / cells[1], (y1 - y0) / cells[0]
    lines = dx, 0.0, 0.0, -dy, x0 + dx / 2, y1 - dy / 2  # the center of the first pixel
    write_text(png.with_suffix(".pgw"), "".join(f"{v:.12g}\n" for v in lines))
    if cloud.crs and "[" in cloud.crs:
        write_text(png.with_suffix(".prj"), cloud.crs)
    else:
        note(f"{png.name}: no .prj, as {cloud_title(cloud)} holds no reference system as WKT")


def look_of(
    cloud: PointCloud, place: Grid, channel: str, image: np.ndarray, empty: np.ndarray
) -> dict[str, Any]:
    """Arguments of viz.bev_picture for a channel [H, W]. place: the grid in file coordinates."""
    title, label, colors, log = LABELS[channel]
    ny, nx = image.shape
    return {
        "image": np.where(empty, np.nan, image + cloud.base[2] * (channel in HEIGHTS)),
        "point_cloud_range": place.point_cloud_range,
        "title": title,
        "note": f"{cloud_title(cloud)}: {len(cloud):,} points, {nx} x {ny} cells",
        "label": label.format(unit=cloud.unit),
        "unit": cloud.unit,
        "colors": colors,
        "log": log,
    }
