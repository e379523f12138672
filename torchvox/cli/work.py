# SPDX-License-Identifier: Apache-2.0
"""What the commands share: device, timing, loops over files, ops on one cloud."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

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

import torchvox
from torchvox._util.errors import TorchvoxError, printable
from torchvox.cli.notes import note
from torchvox.cli.options import DeviceChoice
from torchvox.io import PointCloud, write_npy, write_npz

T = TypeVar("T")

DROPS = {  # columns of the counts tensor of voxelize
    3: "over the points-per-voxel cap",
    4: "in voxels past the voxel cap",
    5: "out of range",
    6: "not finite",
}
TERMINATED = 143  # exit code
ENOUGH_SECONDS, MOST_RUNS = 0.25, 20  # timing stops at the first of the two


class PrintableConsole(Console):
    """A console that prints control sequences of its own only, none from files and their names."""

    def render(self, *args: Any, **options: Any) -> Iterator[Segment]:
        for text, style, control in super().render(*args, **options):
            yield Segment(text if control else printable(text, "\n\t"), style, control)


def console(stderr: bool = False) -> Console:
    """Console on the current stdout or stderr (tests replace them)."""
    return PrintableConsole(highlight=False, stderr=stderr)


def choose_device(choice: DeviceChoice) -> tuple[torch.device, str]:
    """The device, and a phrase that names it and the reason. Never falls back from cuda."""
    reason = _why_no_cuda()
    if choice is DeviceChoice.cuda and reason:
        raise TorchvoxError(f"--device cuda cannot be used: {reason}")
    if choice is DeviceChoice.cpu or reason:
        why = "requested" if choice is DeviceChoice.cpu else reason
        return torch.device("cpu"), f"cpu, {torch.get_num_threads()} threads ({why})"
    return torch.device("cuda", torch.cuda.current_device()), torch.cuda.get_device_name()


def use_device(choice: DeviceChoice) -> torch.device:
    """`choose_device`, with a note that names the device."""
    where, name = choose_device(choice)
    note(f"device: {name}")
    return where


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no usable GPU, see torchvox doctor"
    if not build_facts()["cuda"]:
        return "this torchvox is built without CUDA, see torchvox doctor"
    return ""


def build_facts() -> dict[str, str]:
    """What this torchvox was built for and with; "cuda" is empty in a CPU-only build."""
    from torchvox._build import BUILD_INFO

    return BUILD_INFO


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


def attempt_each(inputs: list[Path], work: Callable[[int], str | None]) -> int:
    """Call `work` with the number of every input, print the line that it returns if any, and
    return how many inputs failed. Many inputs have a progress bar.

    A file that fails, for whatever reason, is reported and the others go on; a single one raises.
    What is wrong for all of them must thus be refused before.
    """
    failed, out = 0, console()
    with progress_bar(len(inputs) > 1, MofNCompleteColumn()) as bar:
        task = bar.add_task("", total=len(inputs))
        for i, source in enumerate(inputs):
            bar.update(task, description=escape(source.name))
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


def write_result(
    target: Path, cloud: PointCloud, picture: Callable[[Any], Any], **arrays: np.ndarray
) -> None:
    """Write by suffix: the first array as .npy, all with origin and unit of the cloud as .npz, or
    the picture that `picture` draws; its argument is torchvox.viz."""
    suffix = target.suffix.lower()
    if suffix == ".npy":
        write_npy(target, next(iter(arrays.values())))
    elif suffix == ".npz":
        write_npz(target, **arrays, origin=cloud.origin, unit=np.array(cloud.unit))
    else:
        from torchvox import viz

        viz.save(picture(viz), target)


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


def drops(counts: torch.Tensor) -> dict[str, int]:
    """Why voxelize dropped points: reason -> how many, from row 0 of its counts, without zeros."""
    row = counts[0].tolist()
    return {reason: row[column] for column, reason in DROPS.items() if row[column]}


def pillar_counts(voxels: Any, size: tuple[int, int]) -> torch.Tensor:
    """Number of points in each pillar [ny, nx] int64, from the output of voxelize.

    size: (nx, ny) of the grid. Points over the cap count too: point_voxel has their voxel.
    """
    rows = voxels.point_voxel[voxels.point_voxel >= 0].long()
    per_voxel = torch.bincount(rows, minlength=len(voxels.indices))
    used = voxels.indices[:, 0] >= 0
    nx, ny = size
    cell = voxels.indices[used, 2].long() * nx + voxels.indices[used, 3]
    image = torch.zeros(ny * nx, dtype=torch.int64, device=cell.device)
    return image.index_add_(0, cell, per_voxel[: len(used)][used]).view(ny, nx)


def coverage(dist2: torch.Tensor, unit: str, points: int) -> str:
    """How well the samples cover the points, in words. dist2: [S], of the sampling.

    The last sample was the point furthest from those before it, so no point is further away.
    """
    if len(dist2) >= points > 0:
        return "every point is a sample"
    finite = dist2[torch.isfinite(dist2)]
    if len(finite) == 0:
        return "too few samples to say how well they cover the cloud"
    return f"every point within {float(finite[-1]) ** 0.5:.3g} {unit} of a sample"


def furthest_points(points: torch.Tensor, count: int, start: int | str = 0, seed: int = 0) -> Any:
    """furthest_point_sample of one cloud [N, C]: (idx [S], dist2 [S]) without unfilled slots."""
    generator = torch.Generator().manual_seed(seed) if start == "random" else None
    first: Any = start  # "random" or an index: two overloads
    xyz = points[None, :, :3].contiguous()
    idx, dist2 = torchvox.furthest_point_sample(xyz, count, start=first, generator=generator)
    filled = idx[0] >= 0
    return idx[0][filled], dist2[0][filled]
