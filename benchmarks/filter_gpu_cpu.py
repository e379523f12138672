# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks.filter_gpu_cpu: prints docs/filter_gpu_cpu.md, measured on this machine."""

import argparse
import math
import statistics
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

import torch
from torch import Tensor

import torchvox
from benchmarks import machine, timing
from benchmarks.__main__ import DATA
from benchmarks.clouds import Clouds
from benchmarks.filter import SIZES, SURVEY, colored, street
from torchvox.cli.bench_table import machine_line

RUNS, LEAST_RUNS = 100, 5
POINTS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
SIZE = 0.25
MOST_SPREAD = 1.6
TOP = """# The filter on a GPU and on a CPU

`voxel_downsample` of x, y, z, colors and intensity (float32) in voxels of {size:g} m; the points
are {source}. This page is the output of
`python -m benchmarks.filter_gpu_cpu`; [benchmarks.md](benchmarks.md) says how other implementations
do.

{machine}

Three clocks, which are never mixed. **Graph**: one replay of a CUDA graph of the call, between two
events, which read up to 5 us too much. **Eager**: wall time of the call from Python, with points on
the device, until it is done. **Host to host**: the same with the points copied from ordinary
memory, the rows in use taken and their means copied back. The **CPU** has one clock, wall time of
the call from Python, with {threads} threads.

Minimum / median / 95th percentile of {runs} single runs, in us; slow rows have fewer, {least} at
least, in brackets. The result of the GPU is that of the CPU, bit for bit, before it is timed.
Reading and writing of files is not in these figures: `python -m benchmarks.filter_files` has it.
"""


class Times(NamedTuple):
    """In microseconds."""

    least: float
    median: float
    p95: float
    runs: int

    def __str__(self) -> str:
        shown = " / ".join(f"{us:,.{0 if us >= 100 else 1}f}" for us in self[:3])
        return shown if self.runs == RUNS else f"{shown} ({self.runs})"


def times(run: Callable[[], float], budget_s: float) -> Times:
    """run() makes one call and gives its seconds. The first ones do not count."""
    first = min(run() for _ in range(2))
    runs = max(LEAST_RUNS, min(RUNS, int(budget_s / max(first, 1e-7))))
    us = sorted(1e6 * run() for _ in range(runs))
    return Times(us[0], statistics.median(us), us[min(runs - 1, math.ceil(0.95 * runs) - 1)], runs)


def replayed(call: timing.Call, budget_s: float) -> Times:
    graph = timing.capture(call)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    return times(run, budget_s)


def wall(call: timing.Call, budget_s: float, wait: bool) -> Times:
    def run() -> float:
        return timing.timed(lambda: (call(), torch.cuda.synchronize()) if wait else call())

    return times(run, budget_s)


def filtered(points: Tensor, order: str, size: float = SIZE) -> tuple[Tensor, ...]:
    return torchvox.voxel_downsample(points, [size] * 3, order=order)


def host_to_host(points: Tensor, order: str) -> Tensor:
    found = torchvox.voxel_downsample(points.cuda(), [SIZE] * 3, order=order, trim=True)
    return found.out.cpu()


def clocks(points: Tensor, order: str, budget_s: float, gpu: bool) -> dict[str, Times]:
    """Of points [N, C] on the CPU; those of a GPU where there is one."""
    found = {}
    if gpu:
        there = points.cuda()
        for mine, host in zip(filtered(there, order), filtered(points, order), strict=True):
            if not torch.equal(mine.cpu(), host):
                raise RuntimeError("the GPU has not the bits of the CPU")
        found["graph"] = replayed(partial(filtered, there, order), budget_s)
        found["eager"] = wall(partial(filtered, there, order), budget_s, True)
        found["host to host"] = wall(partial(host_to_host, points, order), budget_s, True)
    found["CPU"] = wall(partial(filtered, points, order), budget_s, False)
    return found


def break_even(points: list[int], gpu: list[float], cpu: list[float]) -> str:
    """The points from which the GPU is faster at every larger size, between those measured by a
    line in logarithms."""
    wins = [math.log(g / c) for g, c in zip(gpu, cpu, strict=True)]
    behind = [i for i, win in enumerate(wins) if win >= 0]
    if not behind:
        return f"below {points[0]:,} points"
    last = behind[-1]
    if last == len(points) - 1:
        return f"not up to {points[-1]:,} points"
    share = wins[last] / (wins[last] - wins[last + 1])
    at = points[last] * (points[last + 1] / points[last]) ** share
    return f"about {round(at, 1 - int(math.log10(at))):,.0f} points"


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def sizes_section(clouds: Clouds, points: list[int], budget_s: float, gpu: bool) -> Iterator[str]:
    clock = "GPU, graph" if gpu else "CPU"
    yield f"## Voxel size\n\nMedian of single runs in us, order `first`: {clock}.\n"
    rows = []
    for count in points:
        cloud = colored(street(count))(clouds).points
        cloud = cloud.cuda() if gpu else cloud
        line = []
        for size in SIZES:
            call = partial(filtered, cloud, "first", size)
            line.append((replayed(call, budget_s) if gpu else wall(call, budget_s, False)).median)
        spread = max(line) / min(line)
        verdict = f"{spread:.2f}x"
        if gpu:
            verdict += f" (<= {MOST_SPREAD:g}: {'met' if spread <= MOST_SPREAD else 'MISSED'})"
        rows.append([f"{count:,}", *(f"{us:,.1f}" for us in line), verdict])
    header = ["points", *(f"{size:g} m" for size in SIZES), "slowest / fastest"]
    yield table(header, rows) + "\n"


def page(data: Path | None, points: list[int], budget_s: float) -> Iterator[str]:
    gpu = torch.cuda.is_available()
    device, clouds = "cuda" if gpu else "cpu", Clouds(data, "cpu")
    facts = machine_line({"machine": machine.facts(device, [])}) + "."
    source = f"{clouds.sweep().source}, thinned or in jittered copies"
    yield TOP.format(
        size=SIZE,
        source=source,
        machine=facts,
        threads=torch.get_num_threads(),
        runs=RUNS,
        least=LEAST_RUNS,
    )
    for order in ("first", "key"):
        measured, rows = {}, []
        for count in points:
            cloud = colored(street(count))(clouds).points
            measured[count] = found = clocks(cloud, order, budget_s, gpu)
            cpu = found["CPU"].median
            line = [f"{count:,}", f"{int(filtered(cloud, order)[5][0, 0]):,}"]
            line += [str(each) for each in found.values()]
            line += [f"{cpu / found[name].median:.1f}x" for name in list(found)[1:-1]]
            rows.append(line)
        names = list(found)
        header = ["points", "voxels", *names, *(f"CPU / {name}" for name in names[1:-1])]
        yield f"## Rows in the order `{order}`\n\n{table(header, rows)}\n"
        cpu_us = [each["CPU"].median for each in measured.values()]
        for name in names[1:-1]:
            mine = [each[name].median for each in measured.values()]
            copies = "with copies (host to host)" if name != "eager" else "without copies (eager)"
            yield f"Break-even {copies}: {break_even(points, mine, cpu_us)}.\n"
    yield from sizes_section(clouds, [n for n in (111_000, SURVEY) if n <= points[-1]], 0.1, gpu)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.filter_gpu_cpu", description=__doc__
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder with lidar/*.bin")
    parser.add_argument("--points", default=",".join(map(str, POINTS)), help="with commas between")
    parser.add_argument("--budget", type=float, default=1.5, help="seconds for each figure")
    options = parser.parse_args(arguments)
    points = sorted(int(count) for count in options.points.split(","))
    print("\n".join(page(options.data, points, options.budget)), flush=True)


if __name__ == "__main__":
    main()
