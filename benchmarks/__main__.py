# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks: measures the cases on this machine and writes them to build/bench.json.

Results are in microseconds per call; docs/benchmarks.md explains every column.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    bev,
    boxes,
    cells,
    detection,
    filter,
    grouping,
    growth,
    machine,
    models,
    neighbor_lists,
    neighbors,
    neighbors_group_mlp,
    neighbors_knn,
    occupancy,
    pillars,
    pointpillars,
    sampling,
    segments,
    targets,
    upstream,
    voxel,
)
from benchmarks.clouds import Clouds
from benchmarks.peers import peer_table
from benchmarks.suite import CaseSpec, Measurement, Settings, run_case
from torchvox.cli.bench_table import SCHEMA, markdown

NOISY = 1.5
HEAD = """# Benchmark results

The output of `python -m benchmarks --markdown FILE...`; [benchmarks](benchmarks.md) says what every
column means and how it is measured.
"""
DATA = Path(os.environ.get("TORCHVOX_DATA", machine.ROOT.parent / "shared" / "data"))


def cases(device: str) -> list[CaseSpec]:
    found = []
    domains = (
        *(voxel, sampling, neighbors, neighbors_knn, neighbor_lists, grouping),
        *(segments, neighbors_group_mlp),
        *(bev, pillars, boxes, detection, targets, models, pointpillars, filter, occupancy),
        cells,
    )
    for domain in domains:
        found += domain.gpu_cases() if device == "cuda" else domain.cpu_cases()
    return found


def main() -> None:
    options = _options()
    if options.markdown:
        read = [json.loads(path.read_text()) for path in options.markdown]
        if options.peers is not None:
            print("\n".join(markdown(one, [peer_table(one)]) for one in read))
        else:
            print(page(read), end="")
        return
    begin = time.perf_counter()
    clouds = Clouds(options.data, options.device)
    settings = Settings(
        options.device,
        budget_s=options.budget,
        upstream=[u for u in upstream.ALL if u.package in (options.peers or upstream.PACKAGES)],
        others=not options.alone,
        baselines=options.peers is None,
        deadline=begin + options.seconds,
    )
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "machine": machine.facts(options.device, upstream.PACKAGES),
        "measurements": [],
        "growth": [],
        "seconds": None,  # until the run is complete
    }
    for spec in cases(options.device):
        if any(word.lower() in spec.name.lower() for word in options.only.split(",")):
            for measurement in run_case(spec, clouds, settings):
                results["measurements"].append(measurement)
                print(f"{time.perf_counter() - begin:5.1f} s | {line(measurement)}", flush=True)
            save(results, options.out)
            if options.device == "cuda":
                torch.cuda.empty_cache()
    if options.growth:
        results["growth"] = growth.run(clouds, settings)
        save(results, options.out)
        growth.draw(results, options.plots)
    results["seconds"] = round(time.perf_counter() - begin, 1)
    save(results, options.out)
    remark_on_noise(results["measurements"])
    print(f"wrote {options.out} after {results['seconds']:.0f} s")


def page(runs: Sequence[dict[str, Any]]) -> str:
    """docs/benchmark_results.md: one part for each run."""
    parts = [HEAD]
    for results in runs:
        facts = results["machine"]
        for measurement in results["measurements"]:
            measurement["op"] = "measurements"  # one table of all
        where = f"{facts['cpu']}, {facts['threads']} threads"
        parts.append(f"## {facts['gpu'] if facts['device'] == 'cuda' else where}\n")
        parts.append(markdown(results))
    return "\n".join(parts)


def save(results: dict[str, Any], path: Path) -> None:
    """Also after every case, so that a run that is cut short leaves what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def remark_on_noise(measurements: list[Measurement]) -> None:
    noisy = [m for m in measurements if m.get("wall_us", 0) > NOISY * m.get("best_us", 0)]
    if noisy:
        print(
            f"{len(noisy)} of {len(measurements)} measurements have a median above {NOISY:g} x "
            "their best time: this machine is not quiet"
        )


def line(measurement: Measurement) -> str:
    """One measurement while the suite runs."""
    figures = [f"{key} {measurement[key]}" for key in FIGURES if key in measurement]
    verdict = str(measurement.get("check", measurement.get("reason", "")))
    said = "  ".join(figures) or measurement["status"]
    return f"{measurement['case']} | {measurement['implementation']} | {said} | {verdict}"


FIGURES = (
    "graph_us",
    "p50_us",
    "p99_us",
    "eager_us",
    "cpu_us",
    "best_us",
    "wall_us",
    "launches",
    "times_floor",
    "mrays_per_s",
    "mvisits_per_s",
)


def _packages(words: str) -> list[str]:
    unknown = set(words.split(",")) - set(upstream.PACKAGES)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no adapter for {', '.join(sorted(unknown))}; there is one for "
            f"{', '.join(upstream.PACKAGES)}"
        )
    return words.split(",")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--only", default="", help="words, with commas between; cases with one run")
    parser.add_argument("--alone", action="store_true", help="no baselines, no other libraries")
    parser.add_argument(
        "--peers",
        type=_packages,
        nargs="?",
        const=[],
        metavar="PACKAGES",
        help="other libraries alone, all or these, and the cases that they do; with --markdown "
        "torchvox beside the best of them",
    )
    parser.add_argument("--growth", action="store_true", help="cost growth too, with plots")
    parser.add_argument("--budget", type=float, help="seconds for each figure")
    parser.add_argument(
        "--seconds", type=float, help="others than torchvox are left out after so long"
    )
    parser.add_argument("--out", type=Path, default=machine.ROOT / "build" / "bench.json")
    parser.add_argument("--plots", type=Path, help="folder; build/bench without it")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with lidar/*.bin")
    parser.add_argument(
        "--markdown", type=Path, nargs="+", metavar="JSON", help="print docs/benchmark_results.md"
    )
    options = parser.parse_args()
    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    elif options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("benchmarks: torch sees no GPU for --device cuda")
    options.budget = options.budget or (0.15 if options.device == "cuda" else 0.5)
    most = 360 if options.peers is not None else 70 if options.device == "cuda" else 200
    options.seconds = options.seconds or most
    options.plots = options.plots or options.out.parent / "bench"
    return options


if __name__ == "__main__":
    main()
