# SPDX-License-Identifier: Apache-2.0
"""torchvox demo: the ops on a scan, and pictures of the results."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import torchvox
from torchvox._util.errors import TorchvoxError
from torchvox._util.extras import require
from torchvox.cli import options, work
from torchvox.cli.bev import look_of, rasterize_cloud
from torchvox.cli.options import argument, option, option_class
from torchvox.cli.sample import sample_cloud
from torchvox.cli.voxelize import voxelize_cloud
from torchvox.data import generate_drive, generate_scan
from torchvox.io import Grid, PointCloud

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ["overview", "bev_height", "bev_intensity", "voxel_density", "samples"]
PICTURES += ["downsample", "map"]
DEMO_GRID = "sweep_02"  # for the generated scan; the grid of a file is derived from its points
DRIVE: dict[str, Any] = {"scans": 8, "azimuths": 900, "step": 1.9}
DRIVE_RANGE = (-40.0, -40.0, -1.0, 60.0, 40.0, 6.0)
DRIVE_VOXEL = 0.2
Step = tuple[str, str, float]  # its name, what it did in lines, ms


@option_class
class DemoOptions(options.GridFields):
    scan: Path | None = argument(
        None, "A point-cloud file; without it, a street is generated.", metavar="PATH"
    )
    layout: options.Layout = None
    samples: int = option(4096, "Number of points to sample.", "--samples", "-n", min=1)
    output: Path = option(Path("demo_out"), "Folder for the pictures.", "--output", "-o")
    seed: int = option(0, "Seed of the generated scan.", min=0)
    device: options.Device = "auto"


@options.command
def demo(args: DemoOptions) -> None:
    """Voxelize, sample and rasterize a scan, and draw pictures of the results.

    Examples:
        torchvox demo
        torchvox demo scan.bin --layout kitti -o pictures/
    """
    require("matplotlib", "to draw pictures")
    from torchvox import viz

    scan, output = args.scan, args.output
    options.check_outputs([scan], {"--output": [output / f"{name}.png" for name in PICTURES]})
    default = DEMO_GRID if scan is None and args.point_cloud_range is None else None
    choose = args.grid_choice(default)
    device, device_name = work.choose_device(args.device)
    start = time.perf_counter()
    cloud = generate_scan(args.seed) if scan is None else choose.read(scan, args.layout)
    read_ms = 1e3 * (time.perf_counter() - start)
    title = work.cloud_title(cloud)
    if not cloud.finite().any():
        raise TorchvoxError(f"{title} has no finite point to work on")
    grid = choose(cloud)
    if (args.grid or default) is None:  # means need no cap, which only a named grid has of its own
        grid = replace(grid, max_points=-1)
    source = title if scan else f"generated street, seed {args.seed}"
    heading = f"{source}\n{len(cloud):,} points with {', '.join(cloud.columns)}"
    if cloud.origin.any():
        heading += f"\nlocal origin {', '.join(f'{v:,.3f}' for v in cloud.origin)}"
    steps, figures = _run_ops(cloud, grid, args.samples, device)
    if scan is None:
        step, figures["map"] = _map_drive(args.seed, device)
        steps.append(step)
    start = time.perf_counter()
    files = [output / f"{name}.png" for name in figures]
    for file, figure in zip(files, figures.values(), strict=True):
        viz.save(figure, file)
    draw_ms = 1e3 * (time.perf_counter() - start)
    steps = [("scan", heading, read_ms), *steps, ("pictures", "\n".join(map(str, files)), draw_ms)]
    rows = [(word, lines, work.milliseconds(ms)) for word, lines, ms in steps]
    columns = ("step", "what it did", "time")
    out = work.console()
    out.print(work.table_of("torchvox demo", columns, rows, right=["time"]))
    out.print(f"device    {device_name}", soft_wrap=True)
    out.print("times     of the ops: median after a warm-up, points already on the device")


def _run_ops(
    cloud: PointCloud, grid: Grid, count: int, device: torch.device
) -> tuple[list[Step], dict[str, Figure]]:
    """What the commands of these names do with the cloud, and the pictures."""
    from torchvox import viz

    steps: list[Step] = []
    clock = work.Clock(device, patient=True)

    def add(name: str, output: work.Output) -> work.Output:
        steps.append((name, output.line.replace("; ", "\n"), clock.ms))
        return output

    voxels = add("voxelize", voxelize_cloud(cloud, grid, clock))
    inner = replace(cloud, points=cloud.points[voxels.arrays["point_voxel"] >= 0])
    picture = _downsampled(inner, grid, clock, steps)
    place = grid.moved(cloud.base)
    samples = add("sample", sample_cloud(inner, clock, count, place=place))
    channels = ["height_max", "intensity_top"][: 1 + ("intensity" in cloud.columns)]
    views = add("bev", rasterize_cloud(cloud, grid, clock, channels)).arrays
    density, chosen = voxels.look(), samples.look()
    height, *intensity = (
        look_of(cloud, place, channel, image, views["empty"])
        for channel, image in zip(channels, views["image"], strict=True)
    )
    figures = {
        "bev_height": viz.bev_picture(**height),
        "voxel_density": viz.density_picture(**density),
        "samples": viz.samples_picture(**chosen),
    }
    if intensity:
        figures["bev_intensity"] = viz.bev_picture(**intensity[0])
    if picture is not None:
        figures["downsample"] = picture
    title = f"{work.cloud_title(cloud)}  ·  {len(cloud):,} points"
    shared = ("point_cloud_range", "note", "unit")
    seen = {"height": height["image"], **{w: height[w] for w in shared}}
    lit = [{"intensity": i["image"], **{w: i[w] for w in shared}} for i in intensity]
    figures["overview"] = viz.overview_picture(title, seen, density, chosen, *lit)
    return steps, figures


def _downsampled(
    cloud: PointCloud, grid: Grid, clock: work.Clock, steps: list[Step]
) -> Figure | None:
    """A picture of the cloud with a point per cube; adds the step."""
    from torchvox import viz

    points, size = cloud.tensor(clock.device), grid.voxel_size[0]
    lower = [math.floor(low / size) for low in grid.point_cloud_range[:3]]
    kept = clock(lambda: torchvox.voxel_downsample(points, [size] * 3, lower=lower, trim=True))
    before, after = cloud.points[:, :3], kept.out[:, :3].cpu().numpy()
    line = f"{len(after):,} points, one per {size:g} {cloud.unit} cube"
    steps.append(("filter", line, clock.ms))
    if not len(after):
        return None
    words = ("before", before + cloud.origin), ("after voxel_downsample", after + cloud.origin)
    panes = [viz.Pane(f"{when}: {len(xyz):,} points", xyz, xyz[:, 2]) for when, xyz in words]
    scale = viz.Scale.of(f"z  [{cloud.unit}]", panes[0].values)
    note = f"voxels of {size:g} {cloud.unit}, {len(before) / len(after):,.1f}x fewer points"
    counts = kept.num_points.cpu().numpy()
    return viz.comparison_picture(panes, work.cloud_title(cloud), note, scale, counts, cloud.unit)


def _map_drive(seed: int, device: torch.device) -> tuple[Step, Figure]:
    """Map a short generated drive and draw it."""
    from torchvox import viz

    drive = generate_drive(seed, **DRIVE)
    grid = torchvox.OccupancyMap(DRIVE_VOXEL, preset="ohm", device=device)
    start, rays = time.perf_counter(), 0
    for scan in drive:
        rays += int(grid.integrate(scan.points[:, :3].to(device), pose=scan.pose.to(device))[0, 0])
    ms = 1e3 * (time.perf_counter() - start)
    label = grid.crop([DRIVE_VOXEL] * 3, DRIVE_RANGE).label[0].cpu().numpy()  # [nz, ny, nx]
    top = len(label) - 1 - np.argmax(label[::-1] == 1, axis=0)
    occupied = (label == 1).any(axis=0)
    height = np.where(occupied, DRIVE_RANGE[2] + (top + 0.5) * DRIVE_VOXEL, np.nan)
    free = (label == 0).any(axis=0) & ~occupied
    path = np.stack([scan.pose[:, 3].numpy() for scan in drive])
    words = f"{len(drive)} scans of a generated drive, {rays:,} rays"
    note = f"{words}: occupied by height, free dark, the sensor's path white"
    observed = f"{int(grid.extract('observed', 0).count):,} voxels of {DRIVE_VOXEL:g} m observed"
    figure = viz.map_picture(height, free, path, DRIVE_RANGE, note=note)
    return ("map", f"{words}\n{observed}", ms), figure
