# SPDX-License-Identifier: Apache-2.0
"""The same bits in every run, on every device, with any number of threads, under any load."""

import contextlib
import os
import threading

import pytest
import torch
from fresh import fresh_process
from helpers import assert_same_bits, bits, forced
from samples import (
    each_differentiable_op,
    each_pass,
    each_sample_input,
    gradients,
    on,
    run,
    with_special_values,
)

RUNS = 50
MANY = 20_000  # points: several chunks for the CPU's threads, many blocks on the GPU


@contextlib.contextmanager
def load_beside(device: str):
    """Work of changing size on another thread, and on another stream of the GPU."""
    done = threading.Event()

    def work():
        stream = torch.cuda.Stream() if device == "cuda" else contextlib.nullcontext()
        with torch.cuda.stream(stream) if device == "cuda" else stream:
            step = 0
            while not done.wait(0.001):
                step += 1
                a = torch.randn(64 + 97 * (step % 5), 128, device=device)
                (a @ a.T).sum()
        if device == "cuda":
            stream.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def deterministic_algorithms():
    """Also fills every torch.empty: a byte that an op does not write shows as another value."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@each_pass
def test_fifty_runs_beside_other_work_have_equal_bits(op, work, device):
    call = on(device, op.call(2_000, 0))
    first = work(op, call)
    with load_beside(device):
        for i in range(RUNS):
            assert_same_bits(work(op, call), first, f"{op}, run {i}")


@pytest.mark.filterwarnings("error")
@each_sample_input
def test_deterministic_mode_warns_of_nothing_and_every_byte_is_written(op, make, device):
    call = on(device, make())
    expected = run(op, call)
    with deterministic_algorithms():
        assert_same_bits(run(op, call), expected, str(op))


@pytest.mark.filterwarnings("error")
@each_differentiable_op
def test_deterministic_mode_changes_no_gradient(op, device):
    call = on(device, op.call(40, 0))
    expected = gradients(op, call)
    with deterministic_algorithms():
        assert_same_bits(gradients(op, call), expected, str(op))


@each_pass
def test_a_nan_has_the_same_bits_on_every_processor(op, work):
    for n, every in ((40, 2), (1000, 2), (1000, 10)):
        for i, out in enumerate(work(op, with_special_values(op, op.call(n, 2), every))):
            one_nan = bits(out)
            own = out.detach().contiguous().view(one_nan.dtype)
            assert torch.equal(own, one_nan), f"{op}, n = {n}, 1 value in {every}: output {i}"


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_cpu_ops_run_on_torchs_threads():
    """at::parallel_for is serial, silently, in a library that was compiled without OpenMP."""
    code = """
import os, torch, torchvox
torch.set_num_threads(4)
points = torch.rand(100_000, 4)
before = len(os.listdir("/proc/self/task"))
torch.ops.torchvox.voxelize(points, [.1] * 3, [0., 0, 0, 1, 1, 1], 5, -1)
print(len(os.listdir("/proc/self/task")) - before)
"""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    assert int(fresh_process(code)) >= 2


@each_pass
def test_the_number_of_cpu_threads_changes_no_bit(op, work, threads):
    call = op.call(MANY, 0)
    threads(1)
    expected = work(op, call)
    for count in (2, 8):
        threads(count)
        assert_same_bits(work(op, call), expected, f"{op}, {count} threads")


@pytest.mark.gpu
@each_sample_input
def test_cpu_and_cuda_have_equal_bits(op, make):
    with forced(**op.exact):
        outputs = run(op, on("cuda", make()))
    assert_same_bits(outputs, run(op, make()), str(op))


@pytest.mark.gpu
@each_pass
def test_cpu_and_cuda_have_equal_bits_on_many_points(op, work):
    call = op.call(MANY, 1)
    with forced(**op.exact):
        outputs = work(op, on("cuda", call))
    assert_same_bits(outputs, work(op, call), str(op))
