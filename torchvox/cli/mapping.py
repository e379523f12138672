# SPDX-License-Identifier: Apache-2.0
"""torchvox map: occupancy maps of scans, and what can be made of them."""

from __future__ import annotations

import re
import time
from collections import Counter
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from torchvox._errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.map_info import is_graph
from torchvox.cli.map_inputs import (
    Source,
    Tally,
    checked,
    graph_batches,
    integrate,
    merged,
    posed_batches,
)
from torchvox.cli.map_outputs import MAPS, SUFFIXES, output_files, write_outputs
from torchvox.cli.notes import open_noted
from torchvox.cli.options import numbers
from torchvox.cli.work import attempt_each, choose_device, console, milliseconds, note, spans
from torchvox.io import find_clouds
from torchvox.mapping import PRESETS, OccupancyMap, RegionStore
from torchvox.mapping.files import is_map

DROPS = {  # columns of the counts of integrate
    2: "not finite",
    3: "nearer than --min-range",
    4: "outside of --range or the reach of the map",
}
CUT = 5  # the column of rays that --max-range cuts


class Select(str, Enum):
    """Voxels to write as points or to show."""

    occupied = "occupied"
    free = "free"
    observed = "observed"


def map_(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Scans, folders of them, .graph files; or maps."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help=f"By its suffix: {' '.join(SUFFIXES)}"),
    ] = Path("map.npz"),
    poses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A pose a scan: KITTI, TUM or .npy.")
    ] = None,
    extrinsic: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="calib.txt with Tr, since KITTI's poses are a camera's."),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="The frame of the map is that of the first scan.")
    ] = False,
    trajectory: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TUM poses, for points that have gps_time."),
    ] = None,
    max_gap: Annotated[
        float, typer.Option(min=0, help="Seconds between poses of --trajectory.")
    ] = 0.5,
    batch_seconds: Annotated[
        float | None,
        typer.Option(
            min=1e-6, help="Points of so many seconds are a call, by gps_time.", show_default=False
        ),
    ] = None,
    voxel_size: Annotated[
        float | None,
        typer.Option("--voxel-size", "--voxel", help="In meters.", show_default="0.1"),
    ] = None,
    map_origin: Annotated[
        str | None,
        typer.Option("--origin", metavar="X,Y,Z", help="Corner of a voxel.", show_default="0,0,0"),
    ] = None,
    bounds: Annotated[
        str | None,
        typer.Option(
            "--range", metavar="X0,Y0,Z0,X1,Y1,Z1", help="Map this box.", show_default=False
        ),
    ] = None,
    min_range: Annotated[
        float | None, typer.Option(help="Leave shorter rays out.", show_default=False)
    ] = None,
    max_range: Annotated[
        float | None, typer.Option(help="Cut longer rays.", show_default=False)
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Of the sensor: {', '.join(PRESETS)}.", show_default="ohm")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="logodds, or logodds,hit_miss.", show_default="logodds")
    ] = None,
    ndt: Annotated[
        bool, typer.Option("--ndt", help="Normal distributions of what is in voxels.")
    ] = False,
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="REGIONS | BYTES",
            help="A limit, as 2GiB; else it grows.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Of the device, as 4GiB; the map is in host memory.",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Probability from which a voxel is occupied.")
    ] = 0.5,
    select: Annotated[
        Select | None,
        typer.Option(help="Voxels of points and pages.", show_default="occupied"),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            "--slice", metavar="Z0,Z1", help="Of pictures, points, pages.", show_default=False
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--html", help="A page beside the output, too.")] = False,
    ros_yaml: Annotated[
        bool, typer.Option("--ros-yaml", help="What ROS's map_server reads, beside a .png.")
    ] = False,
    rate: Annotated[float, typer.Option(min=1e-6, help="Scans a second, of the sensor.")] = 10.0,
    layout: options.Layout = None,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Map the space around a sensor from scans and poses; merge maps, draw and convert them."""
    files = find_clouds(paths)
    targets = output_files(output, page, ros_yaml)
    options.check_outputs([*files, poses, trajectory, extrinsic], {"--output": targets})
    height = None if cut is None else numbers(cut, "--slice", 2)
    if height is not None and not height[0] < height[1]:
        raise WrongUseError(f"--slice must go up, got {cut}")
    if not 0 < threshold < 1:
        raise WrongUseError(f"--threshold must be between 0 and 1, got {threshold:g}")
    if (cut or select) and set(MAPS) >= {path.suffix.lower() for path in targets}:
        raise WrongUseError(f"{output}: a map is written whole: leave --slice and --select out")
    maps, graphs = all(map(is_map, files)), all(map(is_graph, files))
    if not (maps or graphs) and any(is_graph(path) or is_map(path) for path in files):
        raise WrongUseError("inputs must be all maps, all .graph files, or all scans")
    posed: dict[str, Any] = {"--poses": poses, "--trajectory": trajectory, "--extrinsic": extrinsic}
    posed |= {"--relative": relative or None, "--layout": layout}
    posed |= {"--batch-seconds": batch_seconds}
    grid: dict[str, Any] = {"--voxel-size": voxel_size, "--origin": map_origin, "--range": bounds}
    grid |= {"--min-range": min_range, "--max-range": max_range, "--preset": preset}
    if maps:
        _refuse(posed | grid | {"--layers": layers, "--ndt": ndt or None}, "maps have their own")
    elif graphs:
        _refuse(posed, "graphs have points and poses")
    elif (poses is None) == (trajectory is None):
        raise WrongUseError("scans need either --poses, one each, or --trajectory for gps_time")
    elif relative and poses is None:
        raise WrongUseError("--relative needs --poses")
    elif batch_seconds is not None and trajectory is None:
        raise WrongUseError("--batch-seconds needs --trajectory: with --poses a scan is a call")
    if memory is not None and capacity is not None:
        raise WrongUseError("give either --memory, of a cache, or --capacity, of the map")
    where, name = choose_device(device)
    start = time.perf_counter()
    common: dict[str, Any] = {"threshold": threshold, "device": where}
    if capacity is not None:
        room = int(capacity) if re.fullmatch(r"\d+", capacity) else capacity
        common |= {"capacity": room, "on_overflow": "raise"}
    if memory is not None:
        common |= {"capacity": memory, "store": RegionStore()}
    tally = Tally()
    if maps:
        made, failed = merged(files, common)
    else:
        sources: list[Source]
        if graphs:
            sources = [partial(graph_batches, path) for path in files]
        else:
            read = options.cloud_reader(files, layout, open_noted)
            moving = max_gap, batch_seconds
            sources = posed_batches(files, read, poses, trajectory, extrinsic, relative, *moving)
        common |= {"voxel_size": 0.1 if voxel_size is None else voxel_size}
        common |= {"preset": preset or "ohm", "layers": (layers or "logodds").split(",")}
        common["ndt"] = ndt
        common["origin"] = numbers(map_origin or "0,0,0", "--origin", 3)
        limits = {"min_range": min_range, "max_range": max_range}
        rays: dict[str, Any] = {name: v for name, v in limits.items() if v is not None}
        if bounds is not None:
            rays["point_cloud_range"] = list(options.box(bounds, "--range"))
        made = checked(common, rays)
        failed = attempt_each(files, lambda i: integrate(made, sources[i](), rays, tally))
    if failed == len(files):
        raise typer.Exit(1)
    spent = time.perf_counter() - start
    if tally.counts[0] == 0 < tally.counts[4] and bounds is None:
        near = ",".join(f"{v:.0f}" for v in tally.path[0][0])
        note(f"no ray is within reach of the map: give --origin, such as {near}")
    track = np.concatenate(tally.path) if tally.path else None
    if bounds is not None and track is not None and tally.counts[0] and not tally.counts[6]:
        place = spans([track.min(axis=0), track.max(axis=0)])
        within = spans(numbers(bounds, "--range", 6))
        note(
            f"torchvox: warning: no voxel is mapped: the rays begin in {place}, --range is {within}"
        )
    title = files[0].name if len(files) == 1 else f"{len(files)} files"
    write_outputs(made, targets, title, (select or Select.occupied).value, height, track)
    lines = _of_rays(tally, spent, rate, max_range is not None)
    if maps:
        lines = [("merged", f"{len(files) - failed} of {len(files)} maps")]
    lines += [*_of_map(made), ("device", name), ("wrote", ", ".join(map(str, targets)))]
    out = console()
    for word, text in lines:
        out.print(f"{word:<10}{text}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def _refuse(given: dict[str, Any], why: str) -> None:
    if wrong := [name for name, value in given.items() if value is not None]:
        raise WrongUseError(f"leave {', '.join(wrong)} out: {why}")


def _of_rays(tally: Tally, spent: float, rate: float, cuts: bool) -> list[tuple[str, str]]:
    counts = tally.counts
    reasons = tally.dropped + Counter({text: int(counts[i]) for i, text in DROPS.items()})
    given = int(counts[1]) + sum(tally.dropped.values())
    dropped = [f"{n:,} {text}" for text, n in reasons.items() if n] or ["none"]
    measured = tally.measured or tally.batches / rate
    clock = "" if tally.measured else f" at {rate:g} Hz"
    real = f"{measured / max(tally.seconds, 1e-9):,.3g} times real time{clock}"
    total, mapped = (milliseconds(1e3 * seconds) for seconds in (spent, tally.seconds))
    lines = [
        ("rays", f"{counts[0]:,} of {given:,}, in {tally.batches:,} calls"),
        ("dropped", "; ".join(dropped)),
        ("cut", f"{counts[CUT]:,} rays at --max-range"),
        ("visits", f"{counts[6]:,}"),
        ("time", f"{mapped} to map, {real}; {total} with reading"),
    ]
    return lines if cuts else [line for line in lines if line[0] != "cut"]


def _of_map(made: OccupancyMap) -> list[tuple[str, str]]:
    observed, occupied = (int(made.extract(kind, 0).count) for kind in ("observed", "occupied"))
    voxels = f"{observed:,} voxels of {made.voxel_size:g} m observed, {occupied:,} occupied"
    memory = made.memory()
    stored = memory.pop("store", None)  # the whole map, since extract read it
    regions, room = int(made.status[1]), f"room for {made.capacity:,} regions"
    if stored is not None:
        regions, room = len(made.store.keys), f"{room} of {stored / 2**20:,.1f} MiB in host memory"
    return [
        ("map", f"{regions:,} regions, {voxels}"),
        ("memory", f"{sum(memory.values()) / 2**20:,.1f} MiB, {room}"),
    ]
