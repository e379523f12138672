# SPDX-License-Identifier: Apache-2.0
"""torch.compile takes every op whole, keeps its bits, and does not recompile for every cloud."""

import pytest
import torch
from helpers import assert_same_bits
from programs import Every, Program
from samples import (
    DIFFERENTIABLE,
    MODULES,
    OPS,
    backward,
    each_pass,
    gradients,
    leaves,
    on,
    run,
    with_gradients,
)
from torch._dynamo.testing import CompileCounterWithBackend

COUNTS = (50, 64, 37)  # points
SLOW = pytest.mark.slow
FAST_MODULES = ("SetAbstraction", "Voxelize, trimmed")


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("dynamic", "backend"),
    [
        (True, "aot_eager"),
        pytest.param(None, "aot_eager", marks=SLOW),
        pytest.param(True, "inductor", marks=SLOW),
    ],
)
def test_three_point_counts_need_at_most_two_compilations(dynamic, backend, device):
    """One program of all ops, since a compilation is slow."""
    counter, every = CompileCounterWithBackend(backend), Every(OPS, COUNTS[0])
    compiled = torch.compile(every, fullgraph=True, dynamic=dynamic, backend=counter)
    for n in COUNTS:
        every.check(compiled, n, device)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=SLOW)])
def test_compiled_gradients_are_the_eager_ones(backend, device):
    counter, every = CompileCounterWithBackend(backend), Every(DIFFERENTIABLE, COUNTS[0])
    compiled = torch.compile(every, fullgraph=True, dynamic=True, backend=counter)
    for n in COUNTS:
        calls = [on(device, op.call(n, n)) for op in DIFFERENTIABLE]
        steps = [with_gradients(op, call) for op, call in zip(DIFFERENTIABLE, calls, strict=True)]
        pairs = list(zip(DIFFERENTIABLE, calls, steps, strict=True))
        outs = [out for group in compiled(*every.arguments(steps)) for out in group]
        got = backward(outs, [leaf for op, _, step in pairs for leaf in leaves(op, step)])
        expected = [g for op, call, _ in pairs for g in gradients(op, call)]
        assert_same_bits(got, expected, f"{n} points")
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST_MODULES else SLOW) for n in MODULES]
)
def test_modules_compile_whole(name, device):
    make, arguments = MODULES[name]
    module = make().to(device)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs="trimmed" in name):
        for n in COUNTS:
            inputs = tuple(t.to(device) for t in arguments(n))
            assert_same_bits(tuple(compiled(*inputs)), tuple(module(*inputs)), name)


@pytest.mark.gpu
@each_pass
def test_reduce_overhead_skips_no_cudagraph(op, work):
    from torch._dynamo.utils import counters

    counters.clear()
    program = Program(op, op.call(64, 0))
    compiled = torch.compile(program, fullgraph=True, mode="reduce-overhead")
    for seed in range(6):  # warm-up, recording, replays
        torch.compiler.cudagraph_mark_step_begin()
        call = on("cuda", op.call(64, seed))
        step = call if work is run else with_gradients(op, call)
        outs = compiled(*program.arguments(step))
        got = outs if work is run else backward(outs, leaves(op, step))
        assert_same_bits([out.clone() for out in got], work(op, call), f"{op}, call {seed}")
    assert counters["inductor"]["cudagraph_skips"] == 0
