# SPDX-License-Identifier: Apache-2.0
"""torchvox downsample: one point per voxel, for files of any size."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import typer
from rich.markup import escape
from rich.progress import TaskProgressColumn

from torchvox._util.byte_sizes import number_of_bytes
from torchvox._util.errors import WrongUseError, short
from torchvox.cli import options
from torchvox.cli.commands import write_json
from torchvox.cli.options import numbers, option, option_class
from torchvox.cli.selection import SelectionOptions, check_some, warn_that_none_is_kept
from torchvox.cli.work import (
    TERMINATED,
    amounts,
    for_each,
    leave,
    milliseconds,
    note,
    progress_bar,
    use_device,
)
from torchvox.filter import ORIGINS, FilterJob, FilterOptions
from torchvox.filter.policy import rules_of
from torchvox.filter.selection import Selection
from torchvox.io import PointReader, open_points
from torchvox.io.roles import names_classes

REPORT_SCHEMA = 1
GRACE = 3.0  # seconds
Run = Callable[[Path, Path], dict[str, Any]]  # source, target -> facts of FilterJob


def _voxel(text: str, option: str) -> tuple[float, ...]:
    size = numbers(text, option, 1, 3)
    return size * 3 if len(size) == 1 else size


def _origin(text: str, option: str) -> str | tuple[float, ...]:
    return text if text in ORIGINS else numbers(text, option, 3)


def _adaptive(text: str, option: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+),(\d+)", text)
    if not match:
        raise WrongUseError(f"{option} takes LEVELS,MAX_POINTS, e.g. 4,100, got {text!r}")
    return int(match[1]), int(match[2])


@option_class
class DownsampleOptions(SelectionOptions):
    voxel: tuple[float, ...] = option(
        ...,
        "Voxel size, in file units.",
        "--voxel",
        metavar="V | X,Y,Z",
        parse=_voxel,
    )
    keep: Literal["centroid", "center", "first", "nearest_center", "nearest_centroid", "random"] = (
        option("centroid", "Position per voxel: the mean, the center, or one of its points.")
    )
    policy: list[str] | None = option(
        None,
        "Rule for a column: mean, sum, min, max, first, last, majority, unit_mean, "
        "representative, count or drop. Repeatable.",
        metavar="NAME=RULE",
        show_default="by its name",
    )
    adaptive: tuple[int, int] | None = option(
        None,
        "Keep cells of up to 2^LEVELS voxels whole while they hold at most MAX_POINTS.",
        metavar="LEVELS,MAX_POINTS",
        parse=_adaptive,
    )
    min_points: int = option(1, "Drop voxels with fewer points.", min=1)
    origin: str | tuple[float, ...] = option(
        "0,0,0",
        f"Origin of the grid, or {', '.join(ORIGINS)}.",
        metavar="X,Y,Z | WORD",
        parse=_origin,
    )
    order: Literal["morton", "zyx"] = option("morton", "Order of the voxels.")
    seed: int = option(0, "Random seed for --keep random.")
    drop_withheld: bool = option(False, "Drop points that LAS marks as withheld.")
    salvage: bool = option(False, "Read what can be recovered from truncated LAS files.")
    memory_limit: int | None = option(
        None,
        "E.g. 512MiB; beyond this, voxels spill to disk.",
        metavar="BYTES",
        show_default="none",
        parse=number_of_bytes,
    )
    jobs: int = option(1, "Files processed in parallel.", min=1)
    skip_existing: bool = option(False, "Skip inputs whose output exists.")
    dry_run: bool = option(False, "Print what would be done, and the memory it needs.")
    json: options.Json = None
    trace: Path | None = option(
        None, "Write the index of the output point of every input point.", metavar="FILE.npz"
    )
    device: options.Device = "auto"

    def filter_options(self) -> FilterOptions:
        """What the library needs of these options, for the CPU. Raises WrongUseError."""
        levels, most = self.adaptive or (0, 1)
        return FilterOptions(
            voxel_size=self.voxel,
            origin=self.origin,
            keep=self.keep,
            policy=dict(
                options.name_and_value(text, "--policy", "NAME=RULE, e.g. gps_time=max")
                for text in self.policy or ()
            ),
            layout=self.order,
            seed=self.seed,
            levels=levels,
            max_points=most,
            min_points=self.min_points,
            layout_of_file=self.layout,
            bounds=self.bounds,
            where=self.where,
            drop_withheld=self.drop_withheld,
            salvage=self.salvage,
            memory_limit=self.memory_limit,
        )


@options.command
def downsample(args: DownsampleOptions) -> None:
    """Filter point clouds by a voxel grid: one point per voxel, every attribute by its rule.

    Examples:
        torchvox downsample tile.laz --voxel 0.5 -o small.laz
        torchvox downsample tiles/ --merge --voxel 0.5 --memory-limit 2GiB -o all.laz
        torchvox downsample scans/ --layout kitti --voxel 0.2 --jobs 8 -o small/
    """
    job_options = args.filter_options()
    sources, targets = args.outputs("points" if args.merge else "downsampled")
    files, inputs = list(sources), [path for paths in sources.values() for path in paths]
    outputs = {"--output": targets, "--json": args.json, "--trace": args.trace}
    options.check_outputs(inputs, outputs)
    if args.trace is not None and len(files) > 1:
        raise WrongUseError(f"--trace is one file, but there are {len(files)} inputs")
    _check_columns(args, job_options, files)
    device = use_device(args.device)
    job_options = replace(job_options, device=str(device))
    facts: list[dict[str, Any]] = []
    damaged: list[Path] = []

    def work(source: Path, target: Path) -> str:
        if args.skip_existing and target.exists():
            return f"{source.name}: skipped, {target} exists"
        try:
            done = run(source, target)
        except Exception as error:
            facts.append({"inputs": [str(path) for path in sources[source]], "error": str(error)})
            raise
        facts.append(done)
        _note_problems(done, sources[source], job_options)
        if args.salvage and done["problems"]:
            damaged.append(source)
        return _line(done, device)

    with ExitStack() as stack:
        stack.callback(_write_report, args.json, facts)
        if args.dry_run:
            plan = partial(_plan, sources, job_options, facts)
            return for_each(files, targets, plan)
        todo = [
            (source, target)
            for source, target in zip(files, targets, strict=True)
            if not (args.skip_existing and target.exists())
        ]
        if args.jobs > 1 and len(files) > 1:
            run = stack.enter_context(_in_processes(todo, job_options, args.jobs))
        else:
            run = stack.enter_context(_in_turn(sources, job_options, args.trace))
        for_each(files, targets, work)
    if damaged:
        raise typer.Exit(1)


def _check_columns(args: DownsampleOptions, job_options: FilterOptions, files: list[Path]) -> None:
    """A warning for averages of codes. Raises WrongUseError for columns that no file has."""
    for name, rule in job_options.policy.items():
        if rule in ("mean", "unit_mean") and names_classes(name):
            rest = "majority keeps the most frequent code of a voxel"
            note(f"torchvox: warning: --policy {short(name)}={rule} averages codes: {rest}")
    selection = Selection(job_options.bounds, job_options.where, job_options.drop_withheld)

    def check(reader: PointReader) -> None:
        rules_of(reader.columns, job_options.keep, job_options.policy)
        selection.columns(reader.schema)

    if job_options.policy or job_options.where:
        check_some(files, lambda path: open_points(path, job_options.layout_of_file), check)


def _plan(
    sources: dict[Path, list[Path]],
    job_options: FilterOptions,
    facts: list[dict[str, Any]],
    source: Path,
    target: Path,
) -> str:
    """The line of a dry run; adds its facts."""
    plan = FilterJob(sources[source], job_options).plan()
    facts.append(plan | {"inputs": list(map(str, sources[source])), "output": str(target)})
    return (
        f"{source.name}: {plan['points']:,} points, keys of {plan['key_bits']} bits from cell "
        f"{plan['lower']}, {plan['chunks']} chunks, up to {plan['peak_bytes'] / 2**20:,.0f} MiB; "
        f"would write {target}"
    )


def _note_problems(done: dict[str, Any], sources: list[Path], job_options: FilterOptions) -> None:
    name = sources[0].name
    for problem in (*done["problems"], *done.get("notes", ())):
        note(f"{name}: {problem}")
    if done["points"] and not done["voxels"]:
        layout, salvage = job_options.layout_of_file, job_options.salvage
        readers = (open_points(path, layout, salvage=salvage) for path in sources)
        warn_that_none_is_kept(name, Selection(job_options.bounds, job_options.where), readers)


def _line(done: dict[str, Any], device: torch.device) -> str:
    voxels, points = done["voxels"], done["points"]
    size = done["voxel_size"]
    sides = f"{size[0]:g}" if len(set(size)) == 1 else " x ".join(f"{v:g}" for v in size)
    ratio = f" ({points / voxels:.1f}x)" if voxels else ""
    names = [Path(path).name for path in done["inputs"]]
    name = names[0] if len(names) == 1 else f"{len(names)} files"
    dropped = amounts(done["dropped"])
    for words, columns in (
        ("columns ", done["dropped_columns"]),
        ("averaged: ", done["averaged_columns"]),
        ("rounded to 2^-32, as all values are below 2^-20: ", done["small_columns"]),
    ):
        if columns:
            dropped += f"; {words}{', '.join(columns)}"
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    inexact = "" if done["exact_cells"] else "; cells of rounded coordinates"
    read, filtered, write = (
        milliseconds(done[f"{step}_ms"]) for step in ("read", "filter", "write")
    )
    return (
        f"{name}: {points:,} points -> {voxels:,} voxels of {sides} {done['unit']}{ratio}; dropped:"
        f" {dropped}; read {read}, filter {filtered} ({device.type}{threads}), write {write}"
        f"{inexact}; wrote {done['output']}"
    )


def _write_report(where: Path | None, facts: list[dict[str, Any]]) -> None:
    write_json(where, {"schema": REPORT_SCHEMA, "files": facts})


@contextmanager
def _in_turn(
    sources: dict[Path, list[Path]], job_options: FilterOptions, trace: Path | None
) -> Iterator[Run]:
    """Runs jobs in this process. A single one has a bar over its points, many one over files."""
    with progress_bar(len(sources) == 1, TaskProgressColumn()) as bar:

        def run(source: Path, target: Path) -> dict[str, Any]:
            job = FilterJob(sources[source], job_options)
            task = bar.add_task(escape(source.name), total=job.points)
            return job.run(target, trace, lambda points: bar.advance(task, points))

        yield run


# ---- processes ----------------------------------------------------------------------------------


@contextmanager
def _in_processes(
    todo: list[tuple[Path, Path]], job_options: FilterOptions, jobs: int
) -> Iterator[Run]:
    """Starts all jobs; what it yields waits for one of them."""
    devices = [job_options.device]
    if torch.device(job_options.device).type == "cuda":
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    jobs = max(1, min(jobs, len(todo)))
    threads = max(1, torch.get_num_threads() // jobs)
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(jobs, context, _worker, (threads,))
    try:
        futures = {
            source: pool.submit(
                _job, source, target, replace(job_options, device=devices[i % len(devices)])
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
    """End this process when its parent is gone, even killed, so that temporary files vanish."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)  # a call into C++ handles no signal before it ends
        os._exit(TERMINATED)


def _job(source: Path, target: Path, job_options: FilterOptions) -> dict[str, Any]:
    try:
        return FilterJob([source], job_options).run(target)
    except SystemExit:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(TERMINATED)  # else the pool goes on to the next file
        raise
