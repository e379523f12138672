# SPDX-License-Identifier: Apache-2.0
"""The same bits in every run, on every device, with any number of threads, under any load."""

import contextlib
import os
import threading
from itertools import product

import pytest
import torch
from fresh import fresh_process
from helpers import assert_same_bits
from samples import (
    each_differentiable_op,
    each_op,
    each_pass,
    each_sample_input,
    gradients,
    on,
    outputs_and_gradients,
    run,
    sample_inputs,
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


QUIET_NAN = {
    torch.float16: (torch.int16, 0x7E00),
    torch.bfloat16: (torch.int16, 0x7FC0),
    torch.float32: (torch.int32, 0x7FC00000),
    torch.float64: (torch.int64, 0x7FF8000000000000),
}


@each_op
def test_a_nan_has_the_same_bits_on_every_processor(op):
    calls = {name: make() for name, make in sample_inputs(op).items()} | {"300": op.call(300, 2)}
    for (name, call), every in product(calls.items(), (2, 10)):
        outs, grads = outputs_and_gradients(op, with_special_values(op, call, every))
        for i, out in enumerate((*outs, *grads)):
            if out is not None and out.is_floating_point():
                integer, quiet = QUIET_NAN[out.dtype]
                nans = out.detach().contiguous().view(integer)[out.isnan()]
                assert (nans == quiet).all(), f"{op}, {name}, 1 in {every}: output {i}"


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
    assert_same_bits(run(op, on("cuda", make())), run(op, make()), str(op))


@pytest.mark.gpu
@each_pass
def test_cpu_and_cuda_have_equal_bits_on_many_points(op, work):
    call = op.call(MANY, 1)
    assert_same_bits(work(op, on("cuda", call)), work(op, call), str(op))
