# SPDX-License-Identifier: Apache-2.0
"""What the commands share: device, timing, loops over files, ops on one cloud."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

from torchvox._build import BUILD_INFO
from torchvox._util.errors import TorchvoxError, WrongUseError, printable
from torchvox.cli.notes import note, read_noted
from torchvox.cli.options import CloudOptions, cloud_reader
from torchvox.io import PointCloud, write_cloud, write_npy, write_npz

T = TypeVar("T")

TERMINATED = 143  # exit code
NVIDIA_DRIVER = Path("/dev/nvidiactl")
ENOUGH_SECONDS, MOST_RUNS = 0.25, 20  # timing stops at the first of the two


class PrintableConsole(Console):
    """A console that prints control sequences of its own only, none from files and their names."""

    def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
        for text, style, control in super().render(*args, **options):
            yield Segment(text if control else printable(text, "\n\t"), style, control)


def console(stderr: bool = False) -> Console:
    """Console on the current stdout or stderr (tests replace them)."""
    return PrintableConsole(highlight=False, stderr=stderr)


def table_of(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Iterable[str]],
    right: Sequence[str] = (),
) -> Table:
    """A table whose first column is bold. right: columns of numbers."""
    head: dict[str, Any] = {"title_justify": "left", "title_style": "bold"}
    table = Table(title=escape(title) or None, **head)
    for i, name in enumerate(columns):
        look: dict[str, Any] = {"style": None if i else "bold cyan", "overflow": "fold"}
        table.add_column(escape(name), justify="right" if name in right else "left", **look)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def choose_device(choice: str) -> tuple[torch.device, str]:
    """The device, and a phrase that names it and the reason. Never falls back from cuda."""
    if torch.version.cuda is None:
        reason = "this torch is built without CUDA"
    elif not torch.cuda.is_available():
        reason = "torch sees no usable GPU, see torchvox doctor"
    else:
        without = "this torchvox is built without CUDA, see torchvox doctor"
        reason = "" if BUILD_INFO["cuda"] else without
    if choice == "cuda" and reason:
        raise TorchvoxError(f"--device cuda cannot be used: {reason}")
    if choice == "cpu" or reason:
        why = "requested" if choice == "cpu" else reason
        return torch.device("cpu"), f"cpu, {torch.get_num_threads()} threads ({why})"
    return torch.device("cuda", torch.cuda.current_device()), torch.cuda.get_device_name()


def use_device(choice: str, *models: str | Path) -> torch.device:
    """`choose_device`, with a note that names the device unless only the CPU is there. models: that
    run on it; auto is the CPU for ONNX files where onnxruntime has no CUDA."""
    where, name = choose_device(choice)
    if choice == "auto" and where.type == "cuda" and any(Path(m).suffix == ".onnx" for m in models):
        from torchvox.onnx import has_cuda

        if not has_cuda():
            note("device: cpu (the installed onnxruntime has no CUDA)")
            return torch.device("cpu")
    if where.type == "cuda" or (choice == "auto" and NVIDIA_DRIVER.exists()):
        note(f"device: {name}")
    return where


def timed(work: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Result of the work and its time in ms: the median of a few runs after a warm-up, or the time
    of the first run if that takes long."""
    times: list[float] = []
    while True:
        start = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
        if sum(times) > ENOUGH_SECONDS or len(times) > MOST_RUNS:
            return result, 1e3 * statistics.median(times[1:] or times)


def milliseconds(ms: float) -> str:
    """3.14 ms, 41 us or 1.2 s: at most three digits."""
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.3g} ms" if ms >= 0.1 else f"{1000 * ms:.0f} us"


def sentence(error: object) -> str:
    """The message of an error, in one line."""
    if match := re.search(r"tried to allocate (\d+) bytes", str(error)):
        return f"{int(match[1]) / 1e9:,.3g} GB do not fit into memory"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
    if isinstance(error, (LookupError, AttributeError)):  # their messages alone say little
        text = f"{type(error).__name__}: {text} (TORCHVOX_DEBUG=1 shows where)"
    return text


def leave(*_: object) -> None:
    """Handler of SIGTERM: unlike the default, it lets temporary files be removed."""
    raise SystemExit(TERMINATED)


@contextmanager
def progress_bar(enabled: bool, *columns: ProgressColumn) -> Iterator[Progress]:
    """A bar on stderr that vanishes at the end; none unless enabled and on a terminal.
    columns: what it shows between the bar and the time left."""
    screen = console(stderr=True)
    parts = TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn()
    hidden = not (enabled and screen.is_terminal)
    with Progress(*parts, console=screen, transient=True, disable=hidden) as bar:
        yield bar


def for_each(inputs: list[Path], outputs: list[Path], work: Callable[[Path, Path], str]) -> None:
    """`attempt_each` for every pair of paths; the exit code is 1 if one failed."""
    if attempt_each(inputs, lambda i: work(inputs[i], outputs[i])):
        raise typer.Exit(1)


def attempt_each(
    inputs: list[Path], work: Callable[[int], str | None], title: str | None = None
) -> int:
    """Call `work` with the number of every input, print the line that it returns if any, and
    return how many inputs failed. Many inputs have a progress bar, with a title or their names.

    A file that fails, for whatever reason, is reported and the others go on; a single one raises.
    What is wrong for all of them must thus be refused before.
    """
    failed, out = 0, console()
    with progress_bar(len(inputs) > 1, MofNCompleteColumn()) as bar:
        task = bar.add_task("", total=len(inputs))
        for i, source in enumerate(inputs):
            bar.update(task, description=title or escape(source.name))
            try:
                line = work(i)
            except Exception as error:
                if len(inputs) == 1:
                    raise
                failed += 1
                words = sentence(error)
                note(f"torchvox: {words if source.name in words else f'{source}: {words}'}")
            else:
                if line is not None:
                    out.print(line, soft_wrap=True, markup=False)
            bar.advance(task)
    if failed:
        note(f"torchvox: {failed} of {len(inputs)} files failed")
    return failed


class Output(NamedTuple):
    """What a command makes of a cloud."""

    line: str  # what it did, in words
    arrays: dict[str, np.ndarray]  # a .npz holds them and origin and unit, a .npy the first
    draw: str  # function of torchvox.viz that makes a .png
    look: Callable[[], Mapping[str, Any]]  # gives its arguments
    points: PointCloud | None = None  # in the place of the first array of a .npy
    beside: Callable[[Path], object] | None = None  # writes other files beside the output


class Clock:
    """Runs ops on a device; a patient one runs them again and again, for `ms`, their time."""

    def __init__(self, device: torch.device, patient: bool = False) -> None:
        self.device, self.patient, self.ms = device, patient, 0.0

    def __call__(self, op: Callable[[], T]) -> T:
        if not self.patient:
            return op()
        result, self.ms = timed(op, self.device)
        return result


def run_on_each(
    args: CloudOptions,
    kind: str,
    formats: tuple[str, ...],
    work: Callable[[PointCloud, Clock], Output],
    read: Callable[..., PointCloud] = read_noted,
    drawable: bool = True,
) -> None:
    """Write what `work` makes of each input. kind, formats: of the outputs, see `output_paths`.
    drawable: whether it can be a picture."""
    files, targets = args.files(kind, formats, args.file_format)
    if not drawable and any(target.suffix.lower() == ".png" for target in targets):
        raise WrongUseError("a .png shows one channel: choose one, or --format npz")
    read = cloud_reader(files, args.layout, read)
    clock = Clock(use_device(args.device))

    def run(source: Path, target: Path) -> str:
        cloud: PointCloud = read(source)
        output = work(cloud, clock)
        suffix = target.suffix.lower()
        if suffix == ".npz":
            write_npz(target, **output.arrays, origin=cloud.origin, unit=np.array(cloud.unit))
        elif suffix == ".png":
            from torchvox import viz

            viz.save(getattr(viz, output.draw)(**output.look()), target)
        elif output.points is not None:
            write_cloud(target, output.points)
        else:
            write_npy(target, next(iter(output.arrays.values())))
        if output.beside is not None:
            output.beside(target)
        return f"{source.name}: {output.line}; wrote {target}"

    for_each(files, targets, run)


def warn_if_none(kept: int, cloud: PointCloud, bounds: Sequence[float]) -> None:
    """A note on stderr if a range keeps no point of a cloud; both are in its own coordinates."""
    if kept or not len(cloud):
        return
    finite = cloud.points[cloud.finite(), :3] + cloud.origin
    box = np.stack([finite.min(axis=0), finite.max(axis=0)]) if len(finite) else None
    warn_of_none(cloud_title(cloud), box, np.array(bounds) + np.tile(cloud.base, 2))


def warn_of_none(name: str, box: np.ndarray | None, bounds: Sequence[float] | np.ndarray) -> None:
    """A note on stderr. box: [2, 3] of the finite points, None without any; bounds: the range that
    keeps none."""
    extent = "none is finite" if box is None else f"they span {spans(box)}"
    note(f"torchvox: warning: {name}: no point is kept: {extent}, the grid {spans(bounds)}")


def cloud_title(cloud: PointCloud) -> str:
    """The file name, or what a cloud without a file is."""
    return cloud.path.name if cloud.path else "generated scan"


def amounts(numbers: dict[str, int]) -> str:
    """Numbers and what they count: 3 out of range; 7 not finite. Without any: none."""
    return "; ".join(f"{n:,} {name}" for name, n in numbers.items() if n) or "none"


def spans(corners: Sequence[Any] | np.ndarray) -> str:
    """x 0..10, y 0..10, z 0..2"""
    axes = zip("xyz", *np.reshape(corners, (2, 3)), strict=True)
    return ", ".join(f"{axis} {low:.7g}..{high:.7g}" for axis, low, high in axes)
