# SPDX-License-Identifier: Apache-2.0
"""torchvox map: occupancy maps of scans, and what can be made of them."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np
import typer
from typer import Option

from torchvox._util.errors import WrongUseError
from torchvox.cli import options as shared
from torchvox.cli.map_outputs import SUFFIXES, MapOutputs
from torchvox.cli.notes import open_noted
from torchvox.cli.options import numbers
from torchvox.cli.work import attempt_each, choose_device, console, milliseconds, note, spans
from torchvox.io import find_clouds
from torchvox.mapping import OccupancyMap
from torchvox.mapping.counts import STATUS
from torchvox.mapping.files import MAP_SUFFIXES
from torchvox.mapping.job import MapJob, MapOptions, Tally, kind_of

FILE = {"metavar": "FILE"}
SHOWN: dict[str, dict[str, Any]] = {  # how --help shows some fields of MapOptions
    "poses": FILE,
    "extrinsic": FILE,
    "trajectory": FILE,
    "max_gap": {"min": 0},
    "batch_seconds": {"min": 1e-6},
    "voxel_size": {"show_default": "0.1"},
    "origin": {"metavar": "X,Y,Z", "show_default": "0,0,0"},
    "point_cloud_range": {"metavar": "X0,Y0,Z0,X1,Y1,Z1"},
    "preset": {"show_default": "ohm"},
    "layers": {"show_default": "logodds"},
    "capacity": {"metavar": "REGIONS | BYTES"},
    "memory": {"metavar": "BYTES"},
}
POSED = ("poses", "trajectory", "extrinsic", "relative", "layout", "batch_seconds")
MODEL = ("voxel_size", "origin", "point_cloud_range", "min_range", "max_range", "preset", "layers",
         "ndt")  # fmt: skip


class Select(str, Enum):
    """Voxels to write as points or to show."""

    occupied = "occupied"
    free = "free"
    observed = "observed"


def names_of(field: str) -> list[str]:
    """The option of a field of MapOptions, and another name of it."""
    more = {"voxel_size": ["--voxel"]}.get(field, [])
    return ["--range" if field == "point_cloud_range" else f"--{field.replace('_', '-')}", *more]


def takes_map_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of MapOptions, its first parameter."""
    texts: dict[str, Callable[[str], tuple]] = {
        "origin": lambda text: numbers(text, "--origin", 3),
        "point_cloud_range": lambda text: shared.box(text, "--range"),
        "layers": lambda text: tuple(text.split(",")),
    }
    hints, fields = get_type_hints(MapOptions, include_extras=True), []
    for field in dataclasses.fields(MapOptions):
        kind, words = get_args(hints[field.name])
        kind = str | None if field.name in texts else kind
        option = Option(*names_of(field.name), help=words, **SHOWN.get(field.name, {}))
        typed = {"default": field.default, "annotation": Annotated[kind, option]}
        fields.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **typed))
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        options = {field.name: values.pop(field.name) for field in fields}
        for name, parse in texts.items():
            options[name] = None if options[name] is None else parse(options[name])
        command(MapOptions(**options), **values)

    with_options.__signature__ = inspect.Signature([*own, *fields])  # type: ignore[attr-defined]
    return with_options


@takes_map_options
def map_(
    options: MapOptions,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Scans, folders of them, .graph files; or maps."),
    ],
    output: Annotated[
        Path, Option("--output", "-o", help=f"Format by its suffix: {' '.join(SUFFIXES)}")
    ] = Path("map.npz"),
    *,
    select: Annotated[
        Select | None, Option(help="Voxels in points and pages.", show_default="occupied")
    ] = None,
    cut: Annotated[
        str | None,
        Option(
            "--slice", metavar="Z0,Z1", help="Height range shown in .png, .ply, .las and .html."
        ),
    ] = None,
    page: Annotated[bool, Option("--html", help="Also write a page next to the output.")] = False,
    ros_yaml: Annotated[
        bool, Option("--ros-yaml", help="Also write map_server's .yaml next to the .png.")
    ] = False,
    rate: Annotated[float, Option(min=1e-6, help="Scans per second of the sensor.")] = 10.0,
    device: shared.Device = shared.DeviceChoice.auto,
) -> None:
    """Map the space around a sensor from scans and poses; merge maps, draw and convert them."""
    files = find_clouds(paths)
    outputs = MapOutputs(output, page, ros_yaml)
    inputs = [*files, options.poses, options.trajectory, options.extrinsic]
    shared.check_outputs(inputs, {"--output": outputs.targets})
    kind, height = kind_of(files), _height(cut)
    if (cut or select) and set(MAP_SUFFIXES) >= {path.suffix.lower() for path in outputs.targets}:
        raise WrongUseError(f"{output}: a map is written whole: remove --slice and --select")
    _check(options, kind)
    read = shared.cloud_reader(files, options.layout, open_noted) if kind == "scans" else open_noted
    where, device_name = choose_device(device)
    start = time.perf_counter()
    job = MapJob(files, options, where, read)
    failed = attempt_each(files, job.add)
    if failed == len(files) or job.map is None:
        raise typer.Exit(1)
    seconds = time.perf_counter() - start
    track = np.concatenate(job.tally.path) if job.tally.path else None
    _warn_of_nothing(job.tally, options, track)
    title = files[0].name if len(files) == 1 else f"{len(files)} files"
    outputs.write(job.map, title, (select or Select.occupied).value, height, track)
    if kind == "maps":
        lines = [("merged", f"{len(files) - failed} of {len(files)} maps")]
    else:
        lines = _ray_lines(job.tally, seconds, rate, options.max_range is not None)
    lines += [*_map_lines(job.map), ("device", device_name)]
    out = console()
    for word, text in [*lines, ("wrote", ", ".join(map(str, outputs.targets)))]:
        out.print(f"{word:<10}{text}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def _height(cut: str | None) -> tuple[float, ...] | None:
    height = None if cut is None else numbers(cut, "--slice", 2)
    if height is not None and not height[0] < height[1]:
        raise WrongUseError(f"--slice must go up, got {cut}")
    return height


def _check(options: MapOptions, kind: str) -> None:
    """Raises WrongUseError for options that do not go together, or not with these files."""
    if not 0 < options.threshold < 1:
        raise WrongUseError(f"--threshold must be between 0 and 1, got {options.threshold:g}")
    names, why = {
        "maps": (POSED + MODEL, "maps have their own"),
        "graphs": (POSED, "graphs have points and poses"),
        "scans": ((), ""),
    }[kind]
    if wrong := [names_of(name)[0] for name in options.chosen(*names)]:
        raise WrongUseError(f"remove {', '.join(wrong)}: {why}")
    if kind == "scans":
        if (options.poses is None) == (options.trajectory is None):
            raise WrongUseError("scans need either --poses, one each, or --trajectory for gps_time")
        if options.relative and options.poses is None:
            raise WrongUseError("--relative needs --poses")
        if options.batch_seconds is not None and options.trajectory is None:
            raise WrongUseError("--batch-seconds needs --trajectory: with --poses a scan is a call")
    if options.memory is not None and options.capacity is not None:
        raise WrongUseError("give either --memory, of a cache, or --capacity, of the map")


def _warn_of_nothing(tally: Tally, options: MapOptions, track: np.ndarray | None) -> None:
    """A note if no ray, or no voxel of any, is in the map."""
    counts, box = tally.counts, options.point_cloud_range
    if counts.rays == 0 < counts.outside and box is None:
        near = ",".join(f"{v:.0f}" for v in tally.path[0][0])
        note(f"no ray is within reach of the map: give --origin, such as {near}")
    if box is not None and track is not None and counts.rays and not counts.visits:
        place = spans([track.min(axis=0), track.max(axis=0)])
        text = f"no voxel is mapped: the rays begin in {place}, --range is {spans(box)}"
        note(f"torchvox: warning: {text}")


def _ray_lines(tally: Tally, spent: float, rate: float, cuts: bool) -> list[tuple[str, str]]:
    counts = tally.counts
    reasons = tally.dropped + Counter(
        {
            "not finite": counts.not_finite,
            "nearer than --min-range": counts.filtered,
            "outside of --range or the reach of the map": counts.outside,
        }
    )
    points = counts.rays_given + sum(tally.dropped.values())
    dropped = [f"{n:,} {text}" for text, n in reasons.items() if n] or ["none"]
    factor = (tally.measured or tally.batches / rate) / max(tally.seconds, 1e-9)
    pace = f"{factor:,.2g}x faster" if factor >= 1 else f"{1 / max(factor, 1e-9):,.2g}x slower"
    clock = "" if tally.measured else f" ({rate:g} Hz)"
    total, mapped = (milliseconds(1e3 * seconds) for seconds in (spent, tally.seconds))
    return [
        ("rays", f"{counts.rays:,} of {points:,}, in {tally.batches:,} calls"),
        ("dropped", "; ".join(dropped)),
        *([("cut", f"{counts.truncated:,} rays at --max-range")] if cuts else []),
        ("visits", f"{counts.visits:,}"),
        ("time", f"{mapped} to map, {pace} than real time{clock}; {total} with reading"),
    ]


def _map_lines(result: OccupancyMap) -> list[tuple[str, str]]:
    observed, occupied = (int(result.extract(kind, 0).count) for kind in ("observed", "occupied"))
    voxels = f"{observed:,} voxels of {result.voxel_size:g} m observed, {occupied:,} occupied"
    regions, room = int(result.status[STATUS.slots_in_use]), f"{result.capacity:,} regions"
    memory = result.memory()
    if result.store is not None:  # which is the whole map, since extract read it
        stored = memory.pop("store") / 2**20
        regions, room = len(result.store.keys), f"{room} of {stored:,.1f} MiB in host memory"
    return [
        ("map", f"{regions:,} regions, {voxels}"),
        ("memory", f"{sum(memory.values()) / 2**20:,.1f} MiB, room for {room}"),
    ]
