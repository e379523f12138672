# SPDX-License-Identifier: Apache-2.0
"""torchvox downsample: one point a voxel, for files of any size."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
import time
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from torchvox._bytes import number_of_bytes
from torchvox._errors import WrongUseError
from torchvox.cli import options
from torchvox.cli.options import numbers
from torchvox.cli.work import (
    TERMINATED,
    console,
    for_each,
    leave,
    milliseconds,
    note,
    use_device,
    warn_of_none,
)
from torchvox.filter import ORIGINS, FilterJob, FilterOptions
from torchvox.io import find_clouds, open_points
from torchvox.io.table import union_box
from torchvox.io.writers import POINT_SUFFIXES, point_writer, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPORT_SCHEMA = 1
GRACE = 3.0  # seconds


class Keep(str, Enum):
    """What a voxel becomes."""

    centroid = "centroid"
    middle = "center"
    first = "first"
    nearest_center = "nearest_center"
    nearest_centroid = "nearest_centroid"
    random = "random"


class Order(str, Enum):
    """Order of the voxels."""

    morton = "morton"
    zyx = "zyx"


def downsample(
    paths: options.Inputs,
    voxel: Annotated[
        str,
        typer.Option("--voxel", "--voxel-size", metavar="V | X,Y,Z", help="In the files' unit."),
    ],
    output: options.Output = options.OUTPUT_FOLDER,
    keep: Annotated[
        Keep, typer.Option(help="The mean, the center, or a point of the voxel.")
    ] = Keep.centroid,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RULE",
            help="Of a column: mean, sum, min, max, first, last, majority, unit_mean, "
            "representative, count or drop. Repeatable.",
            show_default="by its name",
        ),
    ] = None,
    adaptive: Annotated[
        str | None,
        typer.Option(
            metavar="LEVELS,MAX_POINTS",
            help="Cells of up to 2^LEVELS voxels stay whole while they hold at most MAX_POINTS.",
            show_default=False,
        ),
    ] = None,
    min_points: Annotated[int, typer.Option(min=1, help="Voxels with fewer points go.")] = 1,
    origin: Annotated[
        str, typer.Option(metavar="X,Y,Z | WORD", help=f"Of the grid; or {', '.join(ORIGINS)}.")
    ] = "0,0,0",
    order: Annotated[Order, typer.Option(help="Order of the voxels.")] = Order.morton,
    seed: Annotated[int, typer.Option(help="Of --keep random.")] = 0,
    merge: Annotated[bool, typer.Option("--merge", help="All inputs become one file.")] = False,
    bounds: Annotated[
        str | None,
        typer.Option(metavar="X0,Y0,Z0,X1,Y1,Z1", help="Take points inside.", show_default=False),
    ] = None,
    drop_withheld: Annotated[
        bool, typer.Option("--drop-withheld", help="Leave out what LAS calls withheld.")
    ] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Take what is there of LAS files that are cut short.")
    ] = False,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES", help="As 512MiB: voxels above it go to disk.", show_default="none"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Files at once, a process each.")] = 1,
    file_format: Annotated[
        str, typer.Option("--format", help="Of the files in a folder.", show_default="the input's")
    ] = "",
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Leave outputs that are there.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be done, and how much memory it takes."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Figures of every file.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="The voxel of every point.")
    ] = None,
    layout: options.Layout = None,
    device: options.Device = options.DeviceChoice.auto,
) -> None:
    """Filter point clouds by a voxel grid: one point a voxel, every attribute by its rule."""
    size = numbers(voxel, "--voxel", 1, 3)
    levels, most = _pair(adaptive)
    limit = None if memory_limit is None else number_of_bytes(memory_limit, "--memory-limit")
    given = FilterOptions(
        voxel_size=size * 3 if len(size) == 1 else size,
        origin=origin if origin in ORIGINS else numbers(origin, "--origin", 3),
        keep=keep.value,
        policy=dict(_rule(text) for text in policy or ()),
        layout=order.value,
        seed=seed,
        levels=levels,
        max_points=most,
        min_points=min_points,
        layout_of_file=layout,
        bounds=None if bounds is None else options.box(bounds, "--bounds"),
        drop_withheld=drop_withheld,
        salvage=salvage,
        memory_limit=limit,
    )
    inputs = files = find_clouds(paths)
    if merge:
        files = inputs[:1]
        targets, sources = [_merged(files[0], output)], {files[0]: inputs}
    else:
        targets = options.output_paths(files, output, "downsampled", POINT_SUFFIXES, file_format)
        sources = {path: [path] for path in files}
    options.check_outputs(inputs, {"--output": targets, "--report": report, "--trace": trace})
    if trace is not None and len(files) > 1:
        raise WrongUseError(f"--trace is one file, but there are {len(files)} inputs")
    for target in targets:
        point_writer(target)
    where = use_device(device)
    given = replace(given, device=str(where))
    facts: list[dict[str, Any]] = []

    def described(source: Path, target: Path) -> str:
        job = FilterJob(sources[source], given)
        found = job.plan() | {
            "inputs": [str(path) for path in sources[source]],
            "output": str(target),
        }
        facts.append(found)
        return (
            f"{source.name}: {found['points']:,} points, keys of {found['key_bits']} bits from "
            f"cell {found['lower']}, {found['chunks']} chunks, up to "
            f"{found['peak_bytes'] / 2**20:,.0f} MiB; would write {target}"
        )

    def work(source: Path, target: Path) -> str:
        if skip_existing and target.exists():
            return f"{source.name}: left out, {target} is there"
        try:
            done = run(source, target)
        except Exception as error:
            facts.append({"inputs": [str(path) for path in sources[source]], "error": str(error)})
            raise
        facts.append(done)
        for problem in (*done["problems"], *done.get("notes", ())):
            note(f"{source.name}: {problem}")
        if given.bounds and done["points"] and not done["voxels"]:
            boxes = [open_points(path, layout, salvage=salvage).box for path in sources[source]]
            warn_of_none(source.name, union_box(boxes), given.bounds)
        if salvage and done["problems"]:
            broken.append(source)
        return _line(done, where)

    broken: list[Path] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_write_report, report, facts)
        if dry_run:
            for_each(files, targets, described)
            return
        if jobs > 1 and len(files) > 1:
            todo = [
                (s, t)
                for s, t in zip(files, targets, strict=True)
                if not (skip_existing and t.exists())
            ]
            run = stack.enter_context(_spawned(todo, given, jobs, where))
        else:
            bar = stack.enter_context(_bar(len(files)))

            def run(source: Path, target: Path) -> dict[str, Any]:
                job = FilterJob(sources[source], given)
                return job.run(target, trace, bar(source.name, job.points))

        for_each(files, targets, work)
    if broken:
        raise typer.Exit(1)


def _line(done: dict[str, Any], where: torch.device) -> str:
    voxels, points = done["voxels"], done["points"]
    size = done["voxel_size"]
    shown = f"{size[0]:g}" if len(set(size)) == 1 else " x ".join(f"{v:g}" for v in size)
    ratio = f" ({points / voxels:.1f}x)" if voxels else ""
    names = [Path(path).name for path in done["inputs"]]
    name = names[0] if len(names) == 1 else f"{len(names)} files"
    dropped = "; ".join(f"{n:,} {why}" for why, n in done["dropped"].items()) or "none"
    if columns := done["dropped_columns"]:
        dropped += f"; columns {', '.join(columns)}"
    if columns := done["averaged_columns"]:
        dropped += f"; averaged: {', '.join(columns)}"
    if columns := done["small_columns"]:
        dropped += f"; rounded to 2^-32, as all values are below 2^-20: {', '.join(columns)}"
    threads = f", {torch.get_num_threads()} threads" if where.type == "cpu" else ""
    inexact = "" if done["exact_cells"] else "; cells of rounded coordinates"
    read, filtered, write = (
        milliseconds(done[f"{step}_ms"]) for step in ("read", "filter", "write")
    )
    return (
        f"{name}: {points:,} points -> {voxels:,} voxels of {shown} {done['unit']}{ratio}; "
        f"dropped: {dropped}; read {read}, filter {filtered} ({where.type}{threads}), write {write}"
        f"{inexact}; wrote {done['output']}"
    )


def _write_report(report: Path | None, facts: list[dict[str, Any]]) -> None:
    if report is not None:
        write_text(report, json.dumps({"schema": REPORT_SCHEMA, "files": facts}, indent=1) + "\n")


@contextlib.contextmanager
def _bar(files: int) -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """A bar over the points of a large file; many files have one over files already."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    screen = console(stderr=True)
    with Progress(
        *columns, console=screen, transient=True, disable=files > 1 or not screen.is_terminal
    ) as bar:

        def started(name: str, points: int) -> Callable[[int], None]:
            task = bar.add_task(escape(name), total=points)
            return lambda done: bar.advance(task, done)

        yield started


# ---- processes ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _spawned(
    todo: list[tuple[Path, Path]], given: FilterOptions, jobs: int, where: torch.device
) -> Iterator[Callable[[Path, Path], dict[str, Any]]]:
    """What waits for the job of a file; all are under way."""
    devices = [given.device]
    if where.type == "cuda":
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    jobs = max(1, min(jobs, len(todo)))
    threads = max(1, torch.get_num_threads() // jobs)
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _worker, (threads,))
    try:
        futures = {
            source: pool.submit(
                _job, source, target, replace(given, device=devices[i % len(devices)])
            )
            for i, (source, target) in enumerate(todo)
        }
        yield lambda source, _: futures[source].result()
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _worker(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, leave)  # last: the pool reports what is raised in here


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, killed too, so that temporary files vanish."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)  # a call into C++ takes no signal before its end
        os._exit(TERMINATED)


def _job(source: Path, target: Path, given: FilterOptions) -> dict[str, Any]:
    try:
        return FilterJob([source], given).run(target)
    except SystemExit:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(TERMINATED)  # else the pool goes on to the next file
        raise


# ---- options ------------------------------------------------------------------------------------


def _pair(adaptive: str | None) -> tuple[int, int]:
    if adaptive is None:
        return 0, 1
    found = re.fullmatch(r"(\d+),(\d+)", adaptive)
    if not found:
        raise WrongUseError(f"--adaptive takes LEVELS,MAX_POINTS, as 4,100, got {adaptive!r}")
    return int(found[1]), int(found[2])


def _rule(text: str) -> tuple[str, str]:
    name, equals, rule = text.rpartition("=")
    if not (name and equals):
        raise WrongUseError(f"--policy takes NAME=RULE, as gps_time=max, got {text!r}")
    return name, rule


def _merged(first: Path, output: Path) -> Path:
    if output.suffix == "" or output.is_dir():
        raise WrongUseError(f"--merge makes one file: --output must name it, got {output}")
    return options.output_paths([first], output, "points", POINT_SUFFIXES, "")[0]
