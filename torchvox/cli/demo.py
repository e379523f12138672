# SPDX-License-Identifier: Apache-2.0
"""torchvox demo: a scan through the ops, and pictures of what they did."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.markup import escape
from rich.table import Table

import torchvox
from torchvox._errors import TorchvoxError
from torchvox._extras import require
from torchvox.cli import options, work
from torchvox.cli.voxelize import cloud_title
from torchvox.data import generate_drive, generate_scan
from torchvox.io import Grid, PointCloud

PICTURES = ["overview", "bev_height", "bev_intensity", "voxel_density", "samples"]
PICTURES += ["downsample", "map"]
DEMO_GRID = "sweep_02"  # of the generated scan; the grid of a file is derived from its points
DRIVE: dict[str, Any] = {"scans": 8, "azimuths": 900, "step": 1.9}  # past the junction
DRIVE_RANGE = (-40.0, -40.0, -1.0, 60.0, 40.0, 6.0)
DRIVE_VOXEL = 0.2


@dataclass
class Results:
    """What the ops gave for one cloud, on the CPU, with their times in ms."""

    voxels: Any
    kept: Any  # of voxel_downsample, of the points inside the range
    density: np.ndarray  # [ny, nx] points per pillar
    idx: np.ndarray  # [S] samples, as rows of the cloud
    covered: str
    height: np.ndarray  # [ny, nx], NaN where empty
    intensity: np.ndarray | None  # [ny, nx], NaN where empty
    times: dict[str, float]


def demo(
    scan: Annotated[
        Path | None,
        typer.Argument(help="A point-cloud file; without it a street scene is generated."),
    ] = None,
    layout: options.Layout = None,
    grid: options.GridName = None,
    voxel_size: options.VoxelSize = None,
    point_cloud_range: options.Range = None,
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=1, help="Points to sample.")
    ] = 4096,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the pictures.")] = Path(
        "demo_out"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated scan.")] = 0,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Scan -> voxelize -> furthest point sample -> bird's-eye view, with pictures."""
    require("matplotlib", "to draw pictures")
    options.check_outputs([scan], {"--output": [output / f"{name}.png" for name in PICTURES]})
    if scan is None and point_cloud_range is None:
        grid = grid or DEMO_GRID
    choose = options.grid_chooser(grid, voxel_size, point_cloud_range)
    where, name = work.choose_device(device)
    start = time.perf_counter()
    cloud = generate_scan(seed) if scan is None else choose.read(scan, layout)
    seconds = time.perf_counter() - start
    if not cloud.finite().any():
        raise TorchvoxError(f"{cloud_title(cloud)} has no finite point to work on")
    chosen = choose(cloud)
    if grid is None:  # a given or derived one has no cap of its own, and means need none
        chosen = replace(chosen, max_points=-1)
    results = run_ops(cloud, chosen, samples, where)
    work.warn_if_none(int(results.voxels.counts[0, 2]), cloud, chosen.point_cloud_range)
    start = time.perf_counter()
    pictures = _draw(cloud, chosen, results, output)
    mapped: list[str] = []
    if scan is None:
        mapped, results.times["map"] = _map_drive(seed, where, output / "map.png")
        pictures.append(output / "map.png")
    results.times |= {"read": 1e3 * seconds, "draw": 1e3 * (time.perf_counter() - start)}
    _report(cloud, chosen, results, name, pictures, seed if scan is None else None, mapped)


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
    intensity = cloud.column("intensity")
    if intensity is not None:
        at = top[0].cpu().numpy()
        known = len(intensity) > 0
        intensity = np.where(at < 0, np.nan, intensity[np.maximum(at, 0)]) if known else None
    return Results(
        voxels=voxels,
        kept=kept,
        density=work.pillar_counts(voxels, (nx, ny)).cpu().numpy(),
        idx=inside[idx.long()].cpu().numpy(),
        covered=work.coverage(dist2, cloud.unit, len(inside)),
        height=height[0].cpu().numpy(),
        intensity=intensity,
        times=times,
    )


def _draw(cloud: PointCloud, grid: Grid, results: Results, folder: Path) -> list[Path]:
    from torchvox import viz

    ny, nx = results.height.shape
    title, unit, voxels = cloud_title(cloud), cloud.unit, int(results.voxels.counts[0, 0])
    filled = int(np.isfinite(results.height).sum())
    cell = " x ".join(f"{v:g}" for v in grid.voxel_size[:2])
    cells = f"{title}: {filled:,} of {nx} x {ny} cells filled, {cell} {unit} each"
    place = grid.moved(cloud.base).point_cloud_range
    common: dict[str, Any] = {"point_cloud_range": place, "unit": unit}
    height = {"height": results.height + cloud.base[2], "note": cells, **common}
    density = {
        "density": results.density,
        "note": f"{title}: {int(results.density.sum()):,} points in {voxels:,} voxels",
        **common,
    }
    samples = {
        "xyz": cloud.points[:, :3] + cloud.origin,
        "chosen": results.idx,
        "note": f"{title}: {len(results.idx):,} samples, {results.covered}",
        **common,
    }
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
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        viz.save(figure, paths[-1])
    return paths


def _map_drive(seed: int, device: torch.device, target: Path) -> tuple[list[str], float]:
    """Maps a short generated drive and draws it: what it did, and the ms of mapping."""
    from torchvox import viz

    drive = generate_drive(seed, **DRIVE)
    made = torchvox.OccupancyMap(DRIVE_VOXEL, preset="ohm", device=device)
    start, rays = time.perf_counter(), 0
    for scan in drive:
        rays += int(made.integrate(scan.points[:, :3].to(device), pose=scan.pose.to(device))[0, 0])
    seconds = time.perf_counter() - start
    z0 = DRIVE_RANGE[2]
    label = made.crop([DRIVE_VOXEL] * 3, DRIVE_RANGE).label[0].cpu().numpy()  # [nz, ny, nx]
    top = len(label) - 1 - np.argmax(label[::-1] == 1, axis=0)
    occupied = (label == 1).any(axis=0)
    height = np.where(occupied, z0 + (top + 0.5) * DRIVE_VOXEL, np.nan)
    free = (label == 0).any(axis=0) & ~occupied
    path = np.stack([scan.pose[:, 3].numpy() for scan in drive])
    words = f"{len(drive)} scans of a generated drive, {rays:,} rays"
    note = f"{words}: occupied by height, free dark, the sensor's path white"
    viz.save(viz.map_picture(height, free, path, DRIVE_RANGE, note=note), target)
    voxels = int(made.extract("observed", 0).count)
    return [words, f"{voxels:,} voxels of {DRIVE_VOXEL:g} m observed"], 1e3 * seconds


def _downsample_picture(cloud: PointCloud, grid: Grid, results: Results, viz: Any) -> Any:
    inside = (results.voxels.point_voxel >= 0).cpu().numpy()
    before, after = cloud.points[inside, :3], results.kept.out[:, :3].cpu().numpy()
    words = ("before", before + cloud.origin), ("after voxel_downsample", after + cloud.origin)
    panes = [viz.Pane(f"{when}: {len(xyz):,} points", xyz, xyz[:, 2]) for when, xyz in words]
    low, high = np.percentile(panes[0].values, (1, 99))
    scale = viz.Scale(f"z  [{cloud.unit}]", float(low), max(float(high), float(low) + 1e-6))
    size = f"voxels of {grid.voxel_size[0]:g} {cloud.unit}"
    note = f"{size}, {len(before) / len(after):,.1f}x fewer points"
    counts = results.kept.num_points.cpu().numpy()
    return viz.comparison_picture(panes, cloud_title(cloud), note, scale, counts, cloud.unit)


def _report(
    cloud: PointCloud,
    grid: Grid,
    results: Results,
    device: str,
    pictures: list[Path],
    seed: int | None,
    mapped: list[str],
) -> None:
    counts = results.voxels.counts[0].tolist()
    nx, ny, nz = torchvox.grid_size(list(grid.voxel_size), list(grid.point_cloud_range))
    place = grid.moved(cloud.base).point_cloud_range
    bounds = zip("xyz", place[:3], place[3:], strict=True)
    spans = ", ".join(f"{axis} {low:.12g}..{high:.12g}" for axis, low, high in bounds)
    dropped = [f"dropped {n:,} {why}" for why, n in work.drops(results.voxels.counts).items()]
    size = " x ".join(f"{v:g}" for v in grid.voxel_size)
    source = cloud_title(cloud) if seed is None else f"generated crossroads, seed {seed}"
    shift = ", ".join(f"{v:,.3f}" for v in cloud.origin)
    filled, unit = int(np.isfinite(results.height).sum()), cloud.unit
    voxels = f"{counts[0]:,} voxels ({counts[1]:,} found) with {counts[2]:,} points"
    origin = [f"local origin {shift}"] if cloud.origin.any() else []
    rows: list[tuple[str, ...]] = [  # step, clock, lines
        ("scan", "read", source, f"{len(cloud):,} points with {', '.join(cloud.columns)}", *origin),
        ("grid", "", grid.chosen, f"{nx} x {ny} x {nz} voxels of {size} {unit}", f"{spans} {unit}"),
        ("voxelize", "voxelize", voxels, *(dropped or ["dropped none"])),
        (
            "filter",
            "filter",
            f"{len(results.kept.out):,} points, one a {grid.voxel_size[0]:g} {unit} cube",
        ),
        ("sample", "sample", f"{len(results.idx):,} furthest point samples", results.covered),
        ("bev", "bev", f"{nx} x {ny} cells, {filled:,} filled"),
        *([("map", "map", *mapped)] if mapped else []),
        ("pictures", "draw", *map(str, pictures)),
    ]
    table = Table(title="torchvox demo", title_justify="left", title_style="bold", expand=False)
    table.add_column("step", style="bold cyan")
    table.add_column("what it did")
    table.add_column("time", justify="right", style="green")
    for step, clock, *lines in rows:
        seconds = work.milliseconds(results.times[clock]) if clock else ""
        table.add_row(step, escape("\n".join(lines)), seconds)
    out = work.console()
    out.print(table)
    out.print(f"device    {device}", soft_wrap=True)
    out.print("times     of the ops: median after a warm-up, points already on the device")
