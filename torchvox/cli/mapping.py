# SPDX-License-Identifier: Apache-2.0
"""torchvox map: occupancy maps of scans, and what can be made of them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import typer

from torchvox._util.errors import WrongUseError
from torchvox._util.extras import require
from torchvox.cli import options
from torchvox.cli.notes import noted_warnings, open_noted
from torchvox.cli.options import argument, declare, numbers, option, option_class
from torchvox.cli.work import attempt_each, choose_device, console, milliseconds, note, spans
from torchvox.io.writers import write_whole
from torchvox.mapping import MapVoxels, OccupancyMap
from torchvox.mapping.counts import STATUS
from torchvox.mapping.files import MAP_SUFFIXES, VOXEL_SUFFIXES
from torchvox.mapping.job import MapJob, MapOptions, Tally, kind_of
from torchvox.mapping.options import RayOptions
from torchvox.mapping.recorded import recorded
from torchvox.ops.annotations import Select
from torchvox.viz.map_page import map_page
from torchvox.viz.plan import plan_image, write_gray_png, write_ros_yaml

SUFFIXES = (*MAP_SUFFIXES, *VOXEL_SUFFIXES, ".png", ".html")
Height = tuple[float, ...] | None  # lowest, highest
RECORDED = ("odom", "no_deskew", "time_field")
POSED = ("poses", "times", "trajectory", "extrinsic", "relative", "layout", "batch_seconds",
         *RECORDED)  # fmt: skip
MODEL = ("voxel_size", "origin", "point_cloud_range", "min_range", "max_range", "preset", "layers",
         "ndt")  # fmt: skip
BOX = "X0,Y0,Z0,X1,Y1,Z1"


def _origin(text: str, option: str) -> tuple[float, ...]:
    return numbers(text, option, 3)


def _layers(text: str, option: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _height(text: str, option: str) -> tuple[float, ...]:
    height = numbers(text, option, 2)
    if not height[0] < height[1]:
        raise WrongUseError(f"{option} must go up, got {text}")
    return height


RAYS = {
    **dict.fromkeys(("poses", "extrinsic"), declare(metavar="FILE")),
    "times": declare(metavar="FILE | names"),
    "max_gap": declare(min=0),
    "origin": declare(metavar="X,Y,Z", show_default="0,0,0", parse=_origin),
    "memory": declare("--memory-limit", metavar="BYTES"),
}  # of `RayOptions`


@option_class
class MapCommand(options.ScanOptions, MapOptions):
    paths: list[Path] = argument(
        ..., "Scans, folders or recordings of them, .graph files; or maps.", metavar="PATH..."
    )
    output: Path = option(
        Path("map.npz"), f"Format by its suffix: {' '.join(SUFFIXES)}", "--output", "-o"
    )
    select: Literal["occupied", "free", "observed"] | None = option(
        None, "Voxels in points and pages.", show_default="occupied"
    )
    height: Height = option(
        None,
        "Height range shown in .png, .ply, .las and .html.",
        "--slice",
        metavar="Z0,Z1",
        parse=_height,
    )
    page: bool = option(False, "Also write a page next to the output.", "--html")
    ros_yaml: bool = option(False, "Also write map_server's .yaml next to the .png.")
    rate: float = option(10.0, "Scans per second of the sensor.", min=1e-6)
    device: options.Device = "auto"

    DECLARED: ClassVar = {
        **RAYS,
        "trajectory": declare(metavar="FILE"),
        "batch_seconds": declare(min=1e-6),
        "voxel_size": declare("--voxel", show_default="0.1"),
        "point_cloud_range": declare("--bounds", metavar=BOX, parse=options.box),
        "preset": declare(show_default="ohm"),
        "layers": declare(show_default="logodds", parse=_layers),
        "capacity": declare(metavar="REGIONS | BYTES"),
    }


@options.command
def map_(args: MapCommand) -> None:
    """Map the space around a sensor from scans and poses; merge maps, draw and convert them.

    Examples:
        torchvox map scans/ --layout kitti --poses poses.txt -o map.npz --html
        torchvox map scans/ --layout kitti --poses tum.txt --times names -o map.bt
        torchvox map drive.mcap -o map.npz
        torchvox map map.npz -o map.png --slice 0.2,1.8 --ros-yaml
    """
    files = args.clouds(args.paths, setups=True)
    outputs = MapOutputs(args.output, args.page, args.ros_yaml)
    inputs = [*files, *args.pose_files, args.trajectory]
    options.check_outputs(inputs, {"--output": outputs.targets})
    whole = set(MAP_SUFFIXES) >= {path.suffix.lower() for path in outputs.targets}
    if (args.height or args.select) and whole:
        raise WrongUseError(f"{args.output}: a map is written whole: remove --slice and --select")
    kind = kind_of(files)
    _check(args, kind, files)
    read = options.cloud_reader(files, args.layout, open_noted) if kind == "scans" else open_noted
    where, device_name = choose_device(args.device)
    start = time.perf_counter()
    with noted_warnings():
        job = MapJob(files, args, where, read)
    failed = attempt_each(files, job.add)
    if failed == len(files) or job.map is None:
        raise typer.Exit(1)
    seconds = time.perf_counter() - start
    track = np.concatenate(job.tally.path) if job.tally.path else None
    _warn_of_nothing(job.tally, args, track)
    title = files[0].name if len(files) == 1 else f"{len(files)} files"
    outputs.write(job.map, title, args.select or "occupied", args.height, track)
    if kind == "maps":
        many = ("merged", f"{len(files) - failed} of {len(files)} maps")
        lines = [many if len(files) > 1 else ("read", title)]
    else:
        lines = _ray_lines(job.tally, seconds, args.rate, args.max_range is not None)
    lines += [*_map_lines(job.map), ("device", device_name)]
    out = console()
    for word, text in [*lines, ("wrote", ", ".join(map(str, outputs.targets)))]:
        out.print(f"{word:<10}{text}", soft_wrap=True, markup=False)
    if failed:
        raise typer.Exit(1)


def _check(args: MapOptions, kind: str, files: list[Path]) -> None:
    """Raises WrongUseError for options that do not go together, or not with these files."""
    if not 0 < args.threshold < 1:
        raise WrongUseError(f"--threshold must be between 0 and 1, got {args.threshold:g}")
    names, why = {
        "maps": (POSED + MODEL, "maps have their own"),
        "graphs": (POSED, "graphs have points and poses"),
        "scans": ((), ""),
    }[kind]
    spelled = {"voxel_size": "--voxel", "point_cloud_range": "--bounds"}
    wrong = [spelled.get(n, f"--{n.replace('_', '-')}") for n in args.chosen(*names)]
    if wrong:
        words = ", ".join(wrong)
        raise WrongUseError(f"remove {words}: {why}")
    own = kind == "scans" and recorded(files) is not None
    if own and args.trajectory is not None:
        raise WrongUseError("recordings take --poses, or their own: remove --trajectory")
    check_poses(args, own)
    if kind == "scans":
        if not own and (args.poses is None) == (args.trajectory is None):
            raise WrongUseError("scans need either --poses, one each, or --trajectory for gps_time")
        if args.batch_seconds is not None and args.trajectory is None:
            raise WrongUseError("--batch-seconds needs --trajectory: with --poses a scan is a call")
    if args.memory is not None and args.capacity is not None:
        raise WrongUseError("give either --memory-limit, of a cache, or --capacity, of the map")


def check_poses(args: RayOptions, own: bool) -> None:
    """Raises WrongUseError for options of poses that do not go together. own: of recordings."""
    given = RECORDED if not own else RECORDED[:1] if args.poses else ()
    for name in args.chosen(*given):
        option = name.replace("_", "-")
        raise WrongUseError(f"--{option} is for recordings{' without --poses' * own}")
    if (alone := [*args.chosen("relative", "times")]) and args.poses is None:
        raise WrongUseError(f"--{alone[0]} needs --poses")


def _warn_of_nothing(tally: Tally, args: MapOptions, track: np.ndarray | None) -> None:
    """A note if no ray, or no voxel of any, is in the map."""
    counts, box = tally.counts, args.point_cloud_range
    if counts.rays == 0 < counts.outside and box is None:
        near = ",".join(f"{v:.0f}" for v in tally.path[0][0])
        note(f"no ray is within reach of the map: give --origin, such as {near}")
    if box is not None and track is not None and counts.rays and not counts.visits:
        place = spans([track.min(axis=0), track.max(axis=0)])
        text = f"no voxel is mapped: the rays begin in {place}, --bounds is {spans(box)}"
        note(f"torchvox: warning: {text}")


def _ray_lines(tally: Tally, spent: float, rate: float, cuts: bool) -> list[tuple[str, str]]:
    counts = tally.counts
    reasons = tally.dropped + Counter(
        {
            "not finite": counts.not_finite,
            "nearer than --min-range": counts.filtered,
            "outside of --bounds or the reach of the map": counts.outside,
        }
    )
    points = counts.rays_given + sum(tally.dropped.values())
    dropped = [f"{n:,} {text}" for text, n in reasons.items() if n] or ["none"]
    factor = (tally.measured or tally.batches / rate) / max(tally.seconds, 1e-9)
    times = max(factor, 1 / max(factor, 1e-9))
    pace = f"{times:,.{int(times < 10)}f}x {'faster' if factor >= 1 else 'slower'}"
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


# ---- outputs -------------------------------------------------------------------------------------


class MapOutputs:
    """The files of a map. page: also an .html; ros_yaml: also a .yaml for a .png.
    Raises WrongUseError for suffixes that do not fit."""

    def __init__(self, output: Path, page: bool, ros_yaml: bool) -> None:
        suffix = output.suffix.lower()
        if suffix not in SUFFIXES:
            raise WrongUseError(f"{output}: maps are written as {', '.join(SUFFIXES)}")
        if ros_yaml and suffix != ".png":
            raise WrongUseError(f"--ros-yaml needs a .png as --output, got {output}")
        if ros_yaml and output.name.encode(errors="replace").decode() != output.name:
            raise WrongUseError(f"--ros-yaml needs a name in UTF-8, got {output!r}")
        if suffix in (".las", ".laz"):
            require("laspy", "to write LAS files")
        self.targets = [output]
        if page and suffix != ".html":
            self.targets.append(output.with_suffix(".html"))
        self.yaml = output.with_suffix(".yaml") if ros_yaml else None
        self.targets += [self.yaml] if self.yaml else []

    def write(
        self,
        map_: OccupancyMap,
        title: str,
        select: Select,
        height: Height,
        path: np.ndarray | None,
    ) -> None:
        """Write a map to all files. title, path of the sensor: of a page; height: of voxels."""
        for target in self.targets:
            suffix = target.suffix.lower()
            if suffix in MAP_SUFFIXES:
                map_.save(target)
            elif suffix == ".png":
                self._draw(map_, target, height)
            elif suffix in VOXEL_SUFFIXES:
                map_.save_voxels(target, _voxels(map_, select, height))
            elif suffix == ".html":
                indices, logodds = _indices(_voxels(map_, select, height))
                page = map_page(indices, logodds, *map_.grid, title, kind=select, path=path)
                write_whole(target, lambda buffer: buffer.write(page))  # noqa: B023, at once

    def _draw(self, map_: OccupancyMap, target: Path, height: Height) -> None:
        indices, logodds = _indices(_voxels(map_, "observed", height))
        image = plan_image(indices, logodds.astype(np.float64) >= map_.threshold)
        write_gray_png(target, image.pixels)
        if self.yaml is not None:
            x, y = (map_.origin[i] + int(image.low[i]) * map_.voxel_size for i in range(2))
            write_ros_yaml(self.yaml, target.name, map_.voxel_size, (round(x, 9), round(y, 9)))


def _voxels(map_: OccupancyMap, select: Select, height: Height) -> MapVoxels:
    """Voxels of a map whose centers are in [Z0, Z1)."""
    voxels = map_.extract(select)
    if height is None:
        return voxels
    z = (voxels.indices[:, 1] + 0.5) * map_.voxel_size + map_.origin[2]
    inside = (z >= height[0]) & (z < height[1])
    return MapVoxels._make([*[column[inside] for column in voxels[:-1]], voxels.count])


def _indices(voxels: MapVoxels) -> tuple[np.ndarray, np.ndarray]:
    """Indices [n, 3] int32, x, y, z, and log-odds [n]."""
    indices = voxels.indices[:, [3, 2, 1]].contiguous()
    return indices.cpu().numpy(), voxels.logodds.cpu().numpy()
