# SPDX-License-Identifier: Apache-2.0
"""python -m benchmarks: measures the cases on this machine and writes them to build/bench.json.

Results are in microseconds per call; docs/benchmarks.md explains every column.
"""

import argparse
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import growth, machine
from benchmarks.clouds import Clouds
from benchmarks.results import FIGURES, SCHEMA, Measurement, display, markdown, page, peer_table
from benchmarks.runner import Settings, run_case
from benchmarks.suite import PEERS, Case

NAMES = ("voxelize", "sampling", "neighbors", "grouping", "grids", "boxes", "pointnet2",
         "detectors", "filter", "occupancy", "compat", "files", "sensor", "onnx",
         "sparse", "sparse_upstream")  # fmt: skip
DOMAINS = [importlib.import_module(f"benchmarks.{name}") for name in NAMES]
PACKAGES = sorted({peer.package for peer in PEERS})
NOISY = 1.5
DATA = Path(os.environ.get("TORCHVOX_DATA", machine.ROOT.parent / "shared" / "data"))


def cases(device: str) -> list[Case]:
    """The table: every case of a device."""
    return [case for domain in DOMAINS for case in domain.cases(device)]


def chosen(device: str, only: str) -> list[Case]:
    """Cases with one of the comma-separated words in their name; without words those that do not
    wait for one."""
    words = [word.lower() for word in only.split(",") if word]
    return [
        case
        for case in cases(device)
        if any(word in case.name.lower() for word in words) or not (words or case.on_demand)
    ]


def main() -> None:
    options = _options()
    if options.markdown:
        runs = [json.loads(path.read_text()) for path in options.markdown]
        if options.peers is None:
            print(page(runs), end="")
        else:
            print("\n".join(markdown(run, [peer_table(run)]) for run in runs))
        return
    begin = time.perf_counter()
    clouds = Clouds(options.data, options.device, options.most)
    peers = [peer for peer in PEERS if peer.package in (options.peers or PACKAGES)]
    settings = Settings(options.device, options.budget, peers, others=not options.alone)
    settings.plain, settings.deadline = options.peers is None, begin + options.seconds
    measurements: list[Measurement] = []
    facts = machine.facts(options.device, PACKAGES)
    results: dict[str, Any] = {"schema": SCHEMA, "machine": facts, "measurements": measurements}
    results |= {"growth": [], "seconds": None}  # until the run is complete
    for case in chosen(options.device, options.only):
        for measurement in run_case(case, clouds, settings):
            measurements.append(measurement)
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
    noisy = sum(m.get("wall_us", 0) > NOISY * m.get("best_us", 0) for m in measurements)
    if noisy:
        rows = f"{noisy} of {len(measurements)} measurements"
        print(f"{rows} have a median above {NOISY:g} x their best time: this machine is not quiet")
    print(f"wrote {options.out} after {results['seconds']:.0f} s")


def save(results: dict[str, Any], path: Path) -> None:
    """Also after every case, so that a run that is cut short leaves what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**results, **display(results)}, indent=1) + "\n")


def line(measurement: Measurement) -> str:
    """One measurement while the suite runs."""
    keys = [key for key in (*FIGURES, "p50_us", "p99_us") if key in measurement]
    verdict = str(measurement.get("check", measurement.get("reason", "")))
    words = "  ".join(f"{key} {measurement[key]}" for key in keys) or measurement["status"]
    return f"{measurement['case']} | {measurement['implementation']} | {words} | {verdict}"


def _packages(words: str) -> list[str]:
    unknown = set(words.split(",")) - set(PACKAGES)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no adapter for {', '.join(sorted(unknown))}; there is one for {', '.join(PACKAGES)}"
        )
    return words.split(",")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"))
    add(
        "--only",
        default="",
        help="comma-separated words; run matching cases only. Cases that "
        "take minutes run only so: train PointPillars, train SECOND, compat, onnx, downsample_file",
    )
    add("--alone", action="store_true", help="torchvox only")
    add("--peers", type=_packages, nargs="?", const=[], metavar="PACKAGES", help="other libraries, "
        "all or these, without plain torch, and the cases that they do; with --markdown torchvox "
        "beside the best of them")  # fmt: skip
    add("--growth", action="store_true", help="cost by size too, with plots")
    add("--budget", type=float, help="seconds for each figure")
    add("--seconds", type=float, help="after so long only torchvox is measured")
    add("--most", type=int, help="limit of every size, to try the cases")
    add("--out", type=Path, default=machine.ROOT / "build" / "bench.json")
    add("--plots", type=Path, help="folder; default: bench beside --out")
    add("--data", type=Path, default=DATA, help="folder with lidar/*.bin")
    help = "print docs/benchmark_results.md"
    add("--markdown", type=Path, nargs="+", metavar="JSON", help=help)
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
