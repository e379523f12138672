# SPDX-License-Identifier: Apache-2.0
"""How long a call takes: amortized graph replays, eager calls, CPU calls; and what a graph holds.

Times are in microseconds per call. docs/benchmarks.md says what each figure means and why it is
measured like this.
"""

import ctypes
import statistics
import time
from functools import partial
from itertools import pairwise
from typing import Any, Callable

import torch

Call = Callable[[], object]
ROUNDS = 5
MOST_CALLS = 500
QUEUE = 40  # calls in flight while the CPU time of a call is taken: the GPU's queue never fills


def median_of_rounds(run: Callable[[int], float], budget_s: float, most: int = MOST_CALLS) -> float:
    """run(n) makes n calls and gives the time of one. A call that fills the budget is made once."""
    first = run(1)
    if 1e-6 * first > budget_s:
        return first
    n = max(1, min(most, int(1e6 * budget_s / ROUNDS / first)))
    return statistics.median(run(n) for _ in range(ROUNDS))


def capture(call: Call) -> torch.cuda.CUDAGraph:
    """A graph of one call. It keeps its nodes, for count_launches(). Where the capture fails, the
    current stream stays what it was."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        call()
    graph.instantiate()
    return graph


def count_launches(graph: torch.cuda.CUDAGraph) -> int:
    """Kernels, copies and fills of a captured graph."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t()
    if driver.cuGraphGetNodes(handle, None, ctypes.byref(count)) != 0:
        raise RuntimeError("cuGraphGetNodes failed")
    nodes = (ctypes.c_void_p * count.value)()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kinds = []
    for node in nodes:
        kind = ctypes.c_int()
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds.append(kind.value)
    return sum(kind in (0, 1, 2) for kind in kinds)  # CU_GRAPH_NODE_TYPE_KERNEL, _MEMCPY, _MEMSET


def replay_us(replay: Call, budget_s: float) -> float:
    """One replay among many: a single one between two events reads up to 5 us too much."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(n: int) -> float:
        begin.record()
        for _ in range(n):
            replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / n

    return median_of_rounds(run, budget_s)


def replay_percentiles(graph: torch.cuda.CUDAGraph, replays: int = 1000) -> tuple[float, float]:
    """(p50, p99) of single replays, between events of their own, which read a little too much."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times = sorted(1e3 * a.elapsed_time(b) for a, b in pairwise(events))
    return times[replays // 2], times[replays * 99 // 100]


def graph_time(call: Call, budget_s: float) -> tuple[float, int]:
    """The time of one replay, and its kernels, copies and fills."""
    graph = capture(call)
    return replay_us(graph.replay, budget_s), count_launches(graph)


def kernel_time(call: Call) -> tuple[float, int]:
    """What the GPU spends in the kernels, copies and fills of a call, by the profiler, without the
    gaps between them; and how many they are."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        _calls_us(call, True, QUEUE)
    gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spans = [e.time_range.elapsed_us() for e in gpu if not e.is_user_annotation]
    return sum(spans) / QUEUE, round(len(spans) / QUEUE)


def eager_us(call: Call, budget_s: float) -> float:
    """Wall time of a call among many, one synchronization after the last."""
    return median_of_rounds(partial(_calls_us, call, True), budget_s)


def cpu_us(call: Call, budget_s: float, wall_us: float) -> float:
    """Time until a call returns, without waiting for the GPU, which takes wall_us for it."""
    most = max(1, min(QUEUE, int(1e6 * budget_s / ROUNDS / wall_us)))
    return median_of_rounds(partial(_calls_us, call, False), budget_s, most)


def _calls_us(call: Call, wait: bool, n: int) -> float:
    synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        call()
    if wait:
        synchronize()
    return 1e6 * (time.perf_counter() - begin) / n


def interleaved_us(calls: dict[str, Call], budget_s: float) -> dict[str, tuple[float, float]]:
    """(median, least) time of each CPU call, each with its own budget.

    The calls take turns, ROUNDS times, so that a slow spell of the machine falls on all of them. A
    turn begins with a call that does not count, unless it fills half the budget; then it is all of
    the turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name, call in calls.items():
            taken = seconds[name]
            if turn > 0 and sum(taken) > budget_s:
                continue
            first = timed(call)
            if first > budget_s / 2:
                taken.append(first)
                continue
            share = budget_s / ROUNDS
            n = max(1, min(MOST_CALLS, int(share / max(first, 1e-7))))
            taken += [timed(call) for _ in range(n)]
    return {n: (1e6 * statistics.median(t), 1e6 * min(t)) for n, t in seconds.items()}


def timed(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def once(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call until the GPU is done, and its result."""
    synchronize()
    begin = time.perf_counter()
    result = call()
    synchronize()
    return time.perf_counter() - begin, result


def fastest(calls: dict[str, Call]) -> str:
    """Which of several settings of one library is best, by the least of three calls."""
    return min(calls, key=lambda name: min(once(calls[name])[0] for _ in range(3)))
