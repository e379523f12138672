# SPDX-License-Identifier: Apache-2.0
"""Failed allocations, many calls and many threads harm nothing."""

import ctypes
import gc
import itertools
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gpu import WARM_UPS
from helpers import assert_same_bits
from samples import each_differentiable_op, each_op, each_pass, gradients, on, run

CALLS = 1_000
ROUNDS = 5
THREADS = 8


@each_op
def test_an_allocation_that_fails_on_the_cpu_raises_and_the_op_stays_usable(op):
    if not op.huge:
        pytest.skip("no argument makes the outputs of this op larger than any memory")
    call = op.call(40, 0)
    expected = run(op, call)
    with pytest.raises(RuntimeError, match=r"allocate|overflow"):
        run(op, {**call, **op.huge})
    assert_same_bits(run(op, call), expected, str(op))


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc, over all arenas."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks")),
        *((name, ctypes.c_size_t) for name in ("fordblks", "keepcost")),
    ]


def bytes_in_use() -> int:
    """What malloc has handed out and not got back. Resident memory would hide a leak in what
    earlier tests freed, and grow with arenas."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("mallinfo2 needs glibc 2.33")
    mallinfo.restype = MallocInfo
    info = mallinfo()
    return info.uordblks + info.hblkhd


def growths(work, rounds: int = ROUNDS) -> list[int]:
    """By how many bytes each round of `work` grows the process: a leak grows in most."""
    gc.freeze()  # a collection looks at what comes now, not at all that earlier tests left
    try:
        sizes = [bytes_in_use()]
        for _ in range(rounds):
            work()
            gc.collect()
            sizes.append(bytes_in_use())
    finally:
        gc.unfreeze()
    return [after - before for before, after in itertools.pairwise(sizes)]


@each_pass
def test_a_thousand_calls_keep_the_memory_of_the_process_flat(op, work):
    call = op.call(500 if work is run else 100, 0)

    def calls():
        for _ in range(CALLS // (ROUNDS if work is run else 25)):
            work(op, call)

    calls()
    found = growths(calls)
    # One output a call would be ten times that.
    assert statistics.median(found) < 16 << 10, found


@pytest.mark.gpu
@each_differentiable_op
def test_a_thousand_gradients_on_the_gpu_keep_the_memory_of_the_process_flat(op):
    """malloc's figure rises and falls by some 200 kB there within 200 calls of any op, so that a
    leak must be half a kilobyte a call to show."""
    call = on("cuda", op.call(100, 0))

    def work():
        for _ in range(CALLS):
            gradients(op, call)
        torch.cuda.synchronize()

    work()
    [found] = growths(work, 1)
    assert found < CALLS << 9


@pytest.mark.gpu
@each_pass
def test_thousands_of_calls_keep_gpu_memory_flat(op, work):
    call = on("cuda", op.call(500, 0))
    for _ in range(WARM_UPS):
        work(op, call)
    torch.cuda.synchronize()
    gc.collect()  # of what earlier tests left in cycles
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for _ in range(CALLS * (10 if work is run else 1)):
        work(op, call)
    torch.cuda.synchronize()
    gc.collect()
    # The thread that ran a backward pass gives its last gradient back a moment after the call.
    deadline = time.monotonic() + 1
    while torch.cuda.memory_allocated() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert torch.cuda.memory_allocated() <= before
    if work is run:
        assert torch.cuda.memory_reserved() <= reserved


@each_pass
def test_eight_python_threads_give_equal_results(op, work, device):
    calls = [on(device, op.call(1_000, i)) for i in range(THREADS)]
    expected = [work(op, call) for call in calls]
    if device == "cuda":
        torch.cuda.synchronize()
    start = threading.Barrier(THREADS)

    def five_runs(i: int) -> list[tuple]:
        start.wait()
        if device == "cpu":
            return [work(op, calls[i]) for _ in range(5)]
        stream = torch.cuda.Stream()  # each thread its own
        with torch.cuda.stream(stream):
            results = [work(op, calls[i]) for _ in range(5)]
        stream.synchronize()
        return results

    with ThreadPoolExecutor(THREADS) as pool:
        for i, results in enumerate(pool.map(five_runs, range(THREADS))):
            for outs in results:
                assert_same_bits(outs, expected[i], f"{op}, thread {i}")
