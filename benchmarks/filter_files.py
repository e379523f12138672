# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.filter_files FOLDER: `torchvox downsample` of LAZ files, beside decoding and
encoding of the same points alone.

The files are the airborne tile of the data folder, repeated at whole cells; they stay in the
folder. Prints a table in Markdown; times are the least of three runs, of one for long jobs.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from benchmarks.__main__ import DATA
from benchmarks.filter_gpu_cpu import table
from torchvox.io import PointTable, create_points, open_points
from torchvox.io.table import CHUNK

CELLS = 100.0  # copies stand whole multiples of it apart, in the unit of the file
MOST_RATIO, MOST_SHARE, MOST_LIMITED = 1.25, 0.10, 1.5
MIB = 1 << 20
LONG_S = 20.0  # after it nothing is run again
IDLE = "import torch, torchvox.io, laspy"
# From a small process: a child begins with the peak of the one that starts it.
MEASURE = """
import resource, subprocess, sys, time
begin = time.perf_counter()
code = subprocess.call(sys.argv[1:])
seconds = time.perf_counter() - begin
print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


class Job(NamedTuple):
    seconds: float
    peak: int  # bytes
    line: str  # what it printed


def make_file(tile: Path, points: int, folder: Path) -> Path:
    """A LAZ file of so many points: the tile in a square of copies."""
    path = folder / f"{tile.stem}_{points}.laz"
    if path.exists():
        return path
    reader = open_points(tile)
    (table_,) = reader.chunks(max(reader.count, 1))
    copies = -(-points // len(table_))
    across = int(np.ceil(np.sqrt(copies)))
    cells = np.rint(CELLS / table_.scale).astype(np.int64)
    step = -(-np.ptp(table_.xyz, axis=0).astype(np.int64) // cells) * cells
    with create_points(path, like=reader) as writer:
        for copy in range(copies):
            shift = np.array([copy % across, copy // across, 0]) * step
            moved = replace(table_, xyz=(table_.xyz + shift).astype(np.int32))
            writer.append(moved.rows(slice(0, points - copy * len(table_))))
    return path


def decode(path: Path) -> float:
    """Seconds to read all points, in chunks."""
    begin = time.perf_counter()
    for _ in open_points(path).chunks():
        pass
    return time.perf_counter() - begin


def encode(path: Path, target: Path) -> float:
    """Seconds to write the points of a file, which are read before."""
    reader = open_points(path)
    chunks = list(reader.chunks())
    begin = time.perf_counter()
    with create_points(target, like=reader) as writer:
        for chunk in chunks:
            writer.append(chunk)
    seconds = time.perf_counter() - begin
    target.unlink()
    return seconds


def run(command: list[str]) -> Job:
    """A child process, with the most memory that it held. Raises RuntimeError when it fails."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *command], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} gave exit code {done.returncode}")
    *line, figures = done.stdout.splitlines()
    seconds, kibibytes = figures.split()
    return Job(float(seconds), 1024 * int(kibibytes), "\n".join(line))


def least(call: Callable[[], Any]) -> Any:
    """The least of three results; of fewer when they take long."""
    begin, found = time.perf_counter(), [call()]
    while len(found) < 3 and time.perf_counter() - begin < LONG_S:
        found.append(call())
    return min(found)


def filter_seconds(line: str) -> float | None:
    """From `..., filter 1.1 ms (cpu, 2 threads), ...`."""
    found = re.search(r"\bfilter ([\d.,]+) (us|ms|s)\b", line)
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    return float(found[1].replace(",", "")) * units[found[2]] if found else None


def chunk_bytes(path: Path) -> int:
    schema: PointTable = open_points(path).schema
    each = 3 * schema.xyz.itemsize + sum(type_.itemsize for type_ in schema.columns.values())
    return CHUNK * each


def verdict(value: float, most: float) -> str:
    return f"{value:,.2f} (<= {most:g}: {'met' if value <= most else 'MISSED'})"


def rows_of(path: Path, points: int, options: argparse.Namespace, idle: Job) -> list[list[str]]:
    """Without a limit, and with it. idle: a process that imports and ends; what it takes is not the
    job's."""
    out = options.folder / "out.laz"
    jobs = {}
    for limit in ("", options.memory_limit):
        command = [*shlex.split(options.command), str(path), "-o", str(out)]
        command += ["--voxel", options.voxel, *(["--memory-limit", limit] if limit else [])]
        job = least(partial(run, command))
        jobs[limit] = Job(job.seconds - idle.seconds, job.peak - idle.peak, job.line)
    again = options.folder / "again.laz"
    alone = least(partial(decode, path)), least(partial(encode, out, again))
    voxels = open_points(out).count
    out.unlink()
    free, rows = jobs[""].seconds, []
    bound = mebibytes(options.memory_limit) * MIB + 2 * chunk_bytes(path)
    for limit, job in jobs.items():
        filter_s = filter_seconds(job.line)
        row = [f"{points:,}", f"{voxels:,}", limit or "none", f"{job.seconds:.2f}"]
        row += [f"{seconds:.2f}" for seconds in alone]
        row += [verdict(job.seconds / sum(alone), MOST_RATIO)]
        row += ["" if filter_s is None else verdict(filter_s / job.seconds, MOST_SHARE)]
        row += [verdict(job.seconds / free, MOST_LIMITED) if limit else ""]
        row += [verdict(job.peak / MIB, bound // MIB) if limit else f"{job.peak / MIB:,.0f}"]
        rows.append(row)
    return rows


def mebibytes(text: str) -> int:
    """512MiB, 2GiB."""
    found = re.fullmatch(r"(\d+)(MiB|GiB)", text)
    if not found:
        sys.exit(f"benchmarks.filter_files: --memory-limit must be like 512MiB, got {text}")
    return int(found[1]) * (1 if found[2] == "MiB" else 1024)


HEADER = [
    *("points", "voxels", "limit", "job s", "decode s", "encode s", "job / (decode + encode)"),
    *("filter / job", "job / job without limit", "peak MiB"),
]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filter_files", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the files, which are made once")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with las/autzen_trim.laz")
    parser.add_argument("--points", default="660000,10000000,50000000", help="with commas between")
    parser.add_argument("--voxel", default="5", help=f"in the file's unit; {CELLS:g} is a multiple")
    parser.add_argument("--memory-limit", default="512MiB")
    parser.add_argument("--command", default=f"{sys.executable} -m torchvox downsample")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    mebibytes(options.memory_limit)
    idle = least(partial(run, [sys.executable, "-c", IDLE]))
    rows = []
    for points in map(int, options.points.split(",")):
        path = make_file(options.data / "las" / "autzen_trim.laz", points, options.folder)
        rows += rows_of(path, points, options, idle)
        print(f"{points:,} points are done", file=sys.stderr, flush=True)
    print(f"Above a process that only imports: {idle.seconds:.2f} s, {idle.peak / MIB:,.0f} MiB.\n")
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
