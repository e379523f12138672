# SPDX-License-Identifier: Apache-2.0
"""`torchvox downsample` of LAZ files of up to 50M points, beside decoding and encoding of the same
points alone.

The files are the airborne tile of the data folder, repeated at whole cells; they stay in
build/bench_files. The cases run with `--only downsample_file`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import suite
from benchmarks.clouds import Clouds
from benchmarks.machine import ROOT
from benchmarks.suite import Case, Facts, Implementation, NotApplicable, Outputs, Problem, faster
from torchvox.io import create_points, open_points

FOLDER = ROOT / "build" / "bench_files"
CELLS = 100.0  # copies stand whole multiples of it apart, in the unit of the file
VOXEL = "5"  # of which CELLS is a multiple
PARTS = "decode + encode"
# From a small process: a child begins with the peak of the one that starts it.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def make_file(tile: Path, points: int, folder: Path) -> Path:
    """A LAZ file of so many points: the tile in a square of copies."""
    path = folder / f"{tile.stem}_{points}.laz"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    reader = open_points(tile)
    (table,) = reader.chunks(max(reader.count, 1))
    copies = -(-points // len(table))
    across = int(np.ceil(np.sqrt(copies)))
    cells = np.rint(CELLS / table.scale).astype(np.int64)
    step = -(-np.ptp(table.xyz, axis=0).astype(np.int64) // cells) * cells
    with create_points(path, like=reader) as writer:
        for copy in range(copies):
            shift = np.array([copy % across, copy // across, 0]) * step
            moved = replace(table, xyz=(table.xyz + shift).astype(np.int32))
            writer.append(moved.rows(slice(0, points - copy * len(table))))
    return path


class DownsampleFile(Problem):
    """A process per call. The result is the count of voxels, and what the job took."""

    capturable = False

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def run(self) -> Outputs:
        memory_limit = self["memory_limit"]
        out, report = FOLDER / "out.laz", FOLDER / "report.json"
        command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "torchvox", "downsample"]
        command += [str(self["path"]), "-o", str(out), "--voxel", VOXEL, "--json", str(report)]
        command += ["--memory-limit", memory_limit] if memory_limit else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        (facts,) = json.loads(report.read_text())["files"]
        peak = int(done.stdout.split()[-1]) / 1024
        return [torch.tensor([facts["voxels"], facts["filter_ms"], peak], dtype=torch.float64)]

    def moved_bytes(self) -> tuple[int, int]:
        return self["path"].stat().st_size, (FOLDER / "out.laz").stat().st_size

    def facts(self) -> Facts:
        voxels, filter_ms, peak = self.outputs[0].tolist()
        job = {"voxels": int(voxels), "filter_ms": round(filter_ms, 1), "peak_mib": round(peak)}
        return {**super().facts(), **job}

    def check(self, outputs: Outputs) -> str:
        voxels = open_points(FOLDER / "out.laz").count
        same = voxels == int(outputs[0][0])
        suite.expect(same, f"{voxels} voxels in the file, another number in the report")
        return f"{voxels} voxels in the file"

    def others(self) -> Iterator[Implementation]:
        chunks = list(open_points(self["path"]).chunks())
        yield Implementation(PARTS, partial(self.parts, chunks), str)

    def parts(self, chunks: list[Any]) -> str:
        """A process starts and ends, all points are read, and others, read before, are written."""
        subprocess.run([sys.executable, "-c", "import torch, torchvox.io, laspy"], check=True)
        reader, begin = open_points(self["path"]), time.perf_counter()
        for _ in reader.chunks():
            pass
        decoded = time.perf_counter()
        with create_points(FOLDER / "again.laz", like=reader) as writer:
            for chunk in chunks:
                writer.append(chunk)
        ends = time.perf_counter()
        return f"{decoded - begin:.2f} s to decode, {ends - decoded:.2f} s to encode"


def row(points: int, memory_limit: str = "") -> Case:
    """At most 1.25 times as long as the parts."""

    def inputs(clouds: Clouds) -> dict[str, Any]:
        tile = clouds.data / "las" / "autzen_trim.laz" if clouds.data else None
        if tile is None or not tile.exists():
            raise NotApplicable("no las/autzen_trim.laz in the data folder")
        path = make_file(tile, points, FOLDER)
        return {"path": path, "count": points, "source": path.name}

    targets = [faster("best_us", PARTS, 1 / 1.25)]
    name = f"downsample_file {points:,} points" + f", {memory_limit}" * bool(memory_limit)
    options = {"memory_limit": memory_limit}
    return Case(name, "downsample_file", inputs, options, targets, DownsampleFile, on_demand=True)


def cases(device: str) -> list[Case]:
    sizes = (660_000, 10_000_000, 50_000_000) if device == "cpu" else ()
    return [row(points, limit) for points in sizes for limit in ("", "512MiB")]
