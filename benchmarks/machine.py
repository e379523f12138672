# SPDX-License-Identifier: Apache-2.0
"""Where the figures come from, and what this machine can do at best: the floor of a call."""

import datetime
import functools
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from pathlib import Path

import torch

import torchvox
from benchmarks import timing

ROOT = Path(__file__).resolve().parent.parent
COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}


def facts(device: str, packages: list[str]) -> dict[str, object]:
    """Hardware, versions and commit, for the head of the results."""
    from torchvox._build import BUILD_INFO

    facts: dict[str, object] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": device,
        "commit": BUILD_INFO["commit"],  # of the library that is measured
        "dirty": _differs_from(BUILD_INFO["commit"]),
        "torchvox": torchvox.__version__,
        "build": dict(BUILD_INFO),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "upstream": {name: version(name) for name in packages},
        "copy_gb_per_s": round(copy_bandwidth(device) / 1e9, 1),
    }
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts |= {
            "gpu": torch.cuda.get_device_properties(0).name,
            "driver": _run(query)[1].partition("\n")[0] or "unknown",
            "empty_kernel_us": round((empty_graph_us(9) - empty_graph_us(1)) / 8, 3),
            "empty_graph_us": round(empty_graph_us(1), 3),
        }
    return facts


@functools.cache
def version(package: str) -> str | None:
    """Installed version of a package, by its import name; None when it is not installed."""
    if importlib.util.find_spec(package) is None:
        return None
    distributions = importlib.metadata.packages_distributions().get(package)
    return importlib.metadata.version(distributions[0]) if distributions else "unknown"


def floor_us(device: str, moved_bytes: int, launches: int) -> float:
    """Least time of a call: its bytes at copy speed, and a graph of as many empty kernels."""
    floor = 1e6 * moved_bytes / copy_bandwidth(device)
    return floor + (empty_graph_us(launches) if device == "cuda" and launches else 0.0)


@functools.cache
def copy_bandwidth(device: str) -> float:
    """Bytes read plus bytes written per second by a large copy."""
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    if device == "cuda":  # the copy engine is not always the faster way
        ways = (lambda: target.copy_(source), lambda: torch.neg(source, out=target))
        us = min(timing.graph_time(way, 0.1)[0] for way in ways)
    else:
        us = timing.interleaved_us({"copy": lambda: target.copy_(source)}, 0.5)["copy"][1]
    return 2e6 * COPY_BYTES[device] / us


@functools.cache
def empty_graph_us(kernels: int) -> float:
    """Amortized replay of a graph of kernels that do nothing."""

    def call() -> None:
        for _ in range(kernels):
            torch.cuda._sleep(0)

    return timing.graph_time(call, 0.05)[0]


def _differs_from(commit: str) -> bool | None:
    """Whether the tree differs from a commit; None where git cannot say."""
    return {0: False, 1: True}.get(_run(["git", "diff", "--quiet", commit])[0])


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status and output; -1 where the command cannot run."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return -1, ""
    return done.returncode, done.stdout


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
