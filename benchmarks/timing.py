# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks measure, and what they write down.

On a GPU the figure that counts is the amortised time of a CUDA-graph replay: a single replay
between two events reads up to 5 us too much. Beside it stand the eager wall time, the CPU time of
a call and the number of kernels and memory operations it launches.
"""

import json
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent


def machine() -> Dict[str, object]:
    """Where the figures come from."""
    git = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    facts: Dict[str, object] = {
        "commit": git.stdout.strip() or "unknown",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
        smi = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
        )
        facts["driver"] = smi.stdout.strip().splitlines()[0] if smi.returncode == 0 else "unknown"
    return facts


def graph_us(call: Callable[[], object], budget_s: float = 0.2) -> float:
    """Median of five amortised times of a captured call, in microseconds."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replays(n: int) -> float:
        begin.record()
        for _ in range(n):
            graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / n

    replays(3)
    n = max(3, min(500, int(budget_s / 5 * 1e6 / max(replays(3), 1.0))))
    return statistics.median(replays(n) for _ in range(5))


def wall_us(call: Callable[[], object], synchronize: bool, budget_s: float = 0.3) -> List[float]:
    """(wall time, CPU time until the call returns) per call in microseconds, medians of five."""

    def calls(n: int) -> List[float]:
        if synchronize:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(n):
            call()
        returned = time.perf_counter()
        if synchronize:
            torch.cuda.synchronize()
        return [1e6 * (time.perf_counter() - begin) / n, 1e6 * (returned - begin) / n]

    calls(2)
    n = max(1, min(300, int(budget_s / 5 * 1e6 / max(calls(1)[0], 1.0))))
    rows = [calls(n) for _ in range(5)]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def launches(call: Callable[[], object]) -> Optional[int]:
    """Kernels, copies and fills of one call."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        call()
        torch.cuda.synchronize()
    return sum(1 for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA)


def measure(name: str, call: Callable[[], object], device: str) -> Dict[str, object]:
    """One row: prints it and returns it."""
    row: Dict[str, object] = {"case": name, "device": device}
    if device == "cuda":
        row["graph_us"] = round(graph_us(call), 2)
        wall, cpu = wall_us(call, synchronize=True)
        row["eager_us"], row["cpu_us"] = round(wall, 1), round(cpu, 1)
        row["launches"] = launches(call)
    else:
        row["wall_us"] = round(wall_us(call, synchronize=False)[0], 1)
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def scan(data: Path, name: str, columns: int) -> Optional[torch.Tensor]:
    """A real scan [N, columns], or None when it is not there."""
    path = data / name
    if not path.exists():
        print(f"skipped, no {path}")
        return None
    return torch.from_numpy(np.fromfile(path, dtype=np.float32).reshape(-1, columns))


def save(rows: List[Dict[str, object]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"wrote {path}")
