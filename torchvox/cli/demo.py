# SPDX-License-Identifier: Apache-2.0
"""torchvox demo: the ops on a scan, and pictures of the results."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

import torchvox
from torchvox._util.errors import TorchvoxError
from torchvox._util.extras import require
from torchvox.cli import options, work
from torchvox.cli.options import argument, option, option_class
from torchvox.data import generate_drive, generate_scan
from torchvox.io import Grid, PointCloud

PICTURES = ["overview", "bev_height", "bev_intensity", "voxel_density", "samples"]
PICTURES += ["downsample", "map"]
DEMO_GRID = "sweep_02"  # for the generated scan; the grid of a file is derived from its points
DRIVE: dict[str, Any] = {"scans": 8, "azimuths": 900, "step": 1.9}
DRIVE_RANGE = (-40.0, -40.0, -1.0, 60.0, 40.0, 6.0)
DRIVE_VOXEL = 0.2


@dataclass
class Results:
    """Outputs of the ops for one cloud, on the CPU, with their times in ms."""

    voxels: Any
    kept: Any  # of voxel_downsample, of the points inside the range
    density: np.ndarray  # [ny, nx] points per pillar
    idx: np.ndarray  # [S] samples, as rows of the cloud
    covered: str
    height: np.ndarray  # [ny, nx], NaN where empty
    intensity: np.ndarray | None  # [ny, nx], NaN where empty
    times: dict[str, float]


@option_class
class DemoOptions:
    scan: Path | None = argument(None, "A point-cloud file; without it, a street is generated.")
    layout: options.Layout = None
    grid: options.GridName = None
    voxel_size: options.VoxelSize = None
    point_cloud_range: options.Range = None
    samples: int = option(4096, "Number of points to sample.", "--samples", "-n", min=1)
    output: Path = option(Path("demo_out"), "Folder for the pictures.", "--output", "-o")
    seed: int = option(0, "Seed of the generated scan.", min=0)
    device: options.Device = options.DeviceChoice.auto


@options.command
def demo(args: DemoOptions) -> None:
    """Voxelize, sample and rasterize a scan, and draw pictures of the results."""
    require("matplotlib", "to draw pictures")
    scan, output = args.scan, args.output
    options.check_outputs([scan], {"--output": [output / f"{name}.png" for name in PICTURES]})
    name = args.grid
    if scan is None and args.point_cloud_range is None:
        name = name or DEMO_GRID
    choose = options.grid_chooser(name, args.voxel_size, args.point_cloud_range)
    device, device_name = work.choose_device(args.device)
    start = time.perf_counter()
    cloud = generate_scan(args.seed) if scan is None else choose.read(scan, args.layout)
    seconds = time.perf_counter() - start
    if not cloud.finite().any():
        raise TorchvoxError(f"{work.cloud_title(cloud)} has no finite point to work on")
    grid = choose(cloud)
    if name is None:  # means need no cap, which only a named grid has of its own
        grid = replace(grid, max_points=-1)
    results = run_ops(cloud, grid, args.samples, device)
    work.warn_if_none(int(results.voxels.counts[0, 2]), cloud, grid.point_cloud_range)
    start = time.perf_counter()
    pictures = _draw(cloud, grid, results, output)
    drive: list[str] = []
    if scan is None:
        drive, results.times["map"] = _map_drive(args.seed, device, output / "map.png")
        pictures.append(output / "map.png")
    results.times |= {"read": 1e3 * seconds, "draw": 1e3 * (time.perf_counter() - start)}
    source = work.cloud_title(cloud) if scan else f"generated street, seed {args.seed}"
    _report(source, cloud, grid, results, drive, pictures)
    out = work.console()
    out.print(f"device    {device_name}", soft_wrap=True)
    out.print("times     of the ops: median after a warm-up, points already on the device")


def run_ops(cloud: PointCloud, grid: Grid, samples: int, device: torch.device) -> Results:
    """voxelize, furthest_point_sample and bev_max_height_with_index on one cloud."""
    points = cloud.tensor(device)
    size, point_cloud_range = list(grid.voxel_size), list(grid.point_cloud_range)
    nx, ny, _ = torchvox.grid_size(size, point_cloud_range)
    times: dict[str, float] = {}

    voxels, times["voxelize"] = work.timed(
        lambda: torchvox.voxelize(
            points, size, point_cloud_range, grid.max_points, grid.max_voxels, reduce="mean"
        ),
        device,
    )
    inside = torch.nonzero(voxels.point_voxel >= 0)[:, 0]
    (idx, dist2), times["sample"] = work.timed(
        lambda: work.furthest_points(points[inside], samples), device
    )
    (height, top, _), times["bev"] = work.timed(
        lambda: torchvox.bev_max_height_with_index(
            points, point_cloud_range, [nx, ny], fill=float("nan")
        ),
        device,
    )
    cube = [size[0]] * 3
    lower = [math.floor(low / size[0]) for low in point_cloud_range[:3]]
    kept, times["filter"] = work.timed(
        lambda: torchvox.voxel_downsample(points[inside], cube, lower=lower, trim=True), device
    )
    intensity, lit = cloud.column("intensity"), None
    if intensity is not None:
        at = top[0].cpu().numpy()
        lit = np.where(at < 0, np.nan, intensity[np.maximum(at, 0)]) if len(intensity) else None
    return Results(
        voxels=voxels,
        kept=kept,
        density=work.pillar_counts(voxels, (nx, ny)).cpu().numpy(),
        idx=inside[idx.long()].cpu().numpy(),
        covered=work.coverage(dist2, cloud.unit, len(inside)),
        height=height[0].cpu().numpy(),
        intensity=lit,
        times=times,
    )


def _draw(cloud: PointCloud, grid: Grid, results: Results, folder: Path) -> list[Path]:
    from torchvox import viz

    ny, nx = results.height.shape
    title, unit, voxels = work.cloud_title(cloud), cloud.unit, int(results.voxels.counts[0, 0])
    filled = int(np.isfinite(results.height).sum())
    cell = " x ".join(f"{v:g}" for v in grid.voxel_size[:2])
    cells = f"{title}: {filled:,} of {nx} x {ny} cells filled, {cell} {unit} each"
    points = f"{title}: {int(results.density.sum()):,} points in {voxels:,} voxels"
    covered = f"{title}: {len(results.idx):,} samples, {results.covered}"
    place = grid.moved(cloud.base).point_cloud_range
    common: dict[str, Any] = {"point_cloud_range": place, "unit": unit}
    height = {"height": results.height + cloud.base[2], "note": cells, **common}
    density = {"density": results.density, "note": points, **common}
    xyz = cloud.points[:, :3] + cloud.origin
    samples = {"xyz": xyz, "chosen": results.idx, "note": covered, **common}
    figures = {
        "bev_height": viz.height_picture(**height),
        "voxel_density": viz.density_picture(**density),
        "samples": viz.samples_picture(**samples),
    }
    intensity = None
    if results.intensity is not None:
        intensity = {"intensity": results.intensity, "note": cells, **common}
        figures["bev_intensity"] = viz.intensity_picture(**intensity)
    if len(results.kept.out):
        figures["downsample"] = _downsample_picture(cloud, grid, results, viz)
    heading = f"{title}  ·  {len(cloud):,} points"
    figures["overview"] = viz.overview_picture(heading, height, density, samples, intensity)
    for name, figure in figures.items():
        viz.save(figure, folder / f"{name}.png")
    return [folder / f"{name}.png" for name in figures]


def _map_drive(seed: int, device: torch.device, target: Path) -> tuple[list[str], float]:
    """Map a short generated drive and draw it; returns lines for the table, and ms of mapping."""
    from torchvox import viz

    drive = generate_drive(seed, **DRIVE)
    grid = torchvox.OccupancyMap(DRIVE_VOXEL, preset="ohm", device=device)
    start, rays = time.perf_counter(), 0
    for scan in drive:
        rays += int(grid.integrate(scan.points[:, :3].to(device), pose=scan.pose.to(device))[0, 0])
    seconds = time.perf_counter() - start
    z0 = DRIVE_RANGE[2]
    label = grid.crop([DRIVE_VOXEL] * 3, DRIVE_RANGE).label[0].cpu().numpy()  # [nz, ny, nx]
    top = len(label) - 1 - np.argmax(label[::-1] == 1, axis=0)
    occupied = (label == 1).any(axis=0)
    height = np.where(occupied, z0 + (top + 0.5) * DRIVE_VOXEL, np.nan)
    free = (label == 0).any(axis=0) & ~occupied
    path = np.stack([scan.pose[:, 3].numpy() for scan in drive])
    words = f"{len(drive)} scans of a generated drive, {rays:,} rays"
    note = f"{words}: occupied by height, free dark, the sensor's path white"
    viz.save(viz.map_picture(height, free, path, DRIVE_RANGE, note=note), target)
    voxels = int(grid.extract("observed", 0).count)
    return [words, f"{voxels:,} voxels of {DRIVE_VOXEL:g} m observed"], 1e3 * seconds


def _downsample_picture(cloud: PointCloud, grid: Grid, results: Results, viz: Any) -> Any:
    inside = (results.voxels.point_voxel >= 0).cpu().numpy()
    before, after = cloud.points[inside, :3], results.kept.out[:, :3].cpu().numpy()
    words = ("before", before + cloud.origin), ("after voxel_downsample", after + cloud.origin)
    panes = [viz.Pane(f"{when}: {len(xyz):,} points", xyz, xyz[:, 2]) for when, xyz in words]
    scale = viz.Scale.of(f"z  [{cloud.unit}]", panes[0].values)
    size = f"voxels of {grid.voxel_size[0]:g} {cloud.unit}"
    note = f"{size}, {len(before) / len(after):,.1f}x fewer points"
    counts = results.kept.num_points.cpu().numpy()
    return viz.comparison_picture(panes, work.cloud_title(cloud), note, scale, counts, cloud.unit)


def _report(
    source: str,
    cloud: PointCloud,
    grid: Grid,
    results: Results,
    drive: list[str],
    pictures: list[Path],
) -> None:
    """Print the table. source: what the cloud is. drive: what the map did, if any."""
    counts, unit = results.voxels.counts[0].tolist(), cloud.unit
    nx, ny, nz = torchvox.grid_size(list(grid.voxel_size), list(grid.point_cloud_range))
    place = grid.moved(cloud.base).point_cloud_range
    bounds = zip("xyz", place[:3], place[3:], strict=True)
    spans = ", ".join(f"{axis} {low:.12g}..{high:.12g}" for axis, low, high in bounds)
    dropped = [f"dropped {n:,} {why}" for why, n in work.drops(results.voxels.counts).items()]
    size = " x ".join(f"{v:g}" for v in grid.voxel_size)
    shift = ", ".join(f"{v:,.3f}" for v in cloud.origin)
    columns, filled = ", ".join(cloud.columns), int(np.isfinite(results.height).sum())
    voxels = f"{counts[0]:,} voxels ({counts[1]:,} found) with {counts[2]:,} points"
    origin = [f"local origin {shift}"] if cloud.origin.any() else []
    cubes = f"{len(results.kept.out):,} points, one per {grid.voxel_size[0]:g} {unit} cube"
    rows: list[tuple[str, ...]] = [  # step, clock, lines
        ("scan", "read", source, f"{len(cloud):,} points with {columns}", *origin),
        ("grid", "", grid.chosen, f"{nx} x {ny} x {nz} voxels of {size} {unit}", f"{spans} {unit}"),
        ("voxelize", "voxelize", voxels, *(dropped or ["dropped none"])),
        ("filter", "filter", cubes),
        ("sample", "sample", f"{len(results.idx):,} furthest point samples", results.covered),
        ("bev", "bev", f"{nx} x {ny} cells, {filled:,} filled"),
        *([("map", "map", *drive)] if drive else []),
        ("pictures", "draw", *map(str, pictures)),
    ]
    table = Table(title="torchvox demo", title_justify="left", title_style="bold", expand=False)
    table.add_column("step", style="bold cyan")
    table.add_column("what it did")
    table.add_column("time", justify="right", style="green")
    for step, clock, *lines in rows:
        seconds = work.milliseconds(results.times[clock]) if clock else ""
        table.add_row(step, escape("\n".join(lines)), seconds)
    work.console().print(table)
