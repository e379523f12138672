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
    each_differentiable_op,
    each_module,
    each_op,
    gradients,
    leaves,
    on,
    run,
    with_gradients,
)
from torch._dynamo.testing import CompileCounterWithBackend

COUNTS = (50, 64, 37)  # points


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.one_of("dynamic")
@each_op
@pytest.mark.parametrize("dynamic", [None, True])
def test_three_point_counts_need_at_most_two_compilations(op, dynamic, device):
    counter = CompileCounterWithBackend("aot_eager")
    program = Program(op, op.call(COUNTS[0], 0))
    compiled = torch.compile(program, fullgraph=True, dynamic=dynamic, backend=counter)
    for n in COUNTS:
        call = on(device, op.call(n, n))
        assert_same_bits(compiled(*program.arguments(call)), run(op, call), f"{op} of {n}")
    assert counter.frame_count <= 2


@each_differentiable_op
def test_compiled_gradients_are_the_eager_ones(op, device):
    counter = CompileCounterWithBackend("aot_eager")
    program = Program(op, op.call(COUNTS[0], 0))
    compiled = torch.compile(program, fullgraph=True, dynamic=True, backend=counter)
    for n in COUNTS:
        call = on(device, op.call(n, n))
        step = with_gradients(op, call)
        got = backward(compiled(*program.arguments(step)), leaves(op, step))
        assert_same_bits(got, gradients(op, call), f"{op} of {n}")
    assert counter.frame_count <= 2


def test_inductor_compiles_every_op_with_equal_bits(device):
    """One program of all ops, since a compilation is slow."""
    every = Every([Program(op, op.call(COUNTS[0], 0)) for op in OPS])
    compiled = torch.compile(every, fullgraph=True, dynamic=True, backend="inductor")
    for n in COUNTS[:2]:
        calls = [on(device, op.call(n, n)) for op in OPS]
        groups = [p.arguments(c) for p, c in zip(every.programs, calls, strict=True)]
        for op, call, outs in zip(OPS, calls, compiled(*groups), strict=True):
            assert_same_bits(outs, run(op, call), f"{op} of {n}")


@pytest.mark.slow
def test_inductor_compiles_every_gradient_with_equal_bits(device):
    every = Every([Program(op, op.call(COUNTS[0], 0)) for op in DIFFERENTIABLE])
    compiled = torch.compile(every, fullgraph=True, dynamic=True, backend="inductor")
    for n in COUNTS[:2]:
        calls = [on(device, op.call(n, n)) for op in DIFFERENTIABLE]
        steps = [with_gradients(op, c) for op, c in zip(DIFFERENTIABLE, calls, strict=True)]
        groups = [p.arguments(c) for p, c in zip(every.programs, steps, strict=True)]
        outs = [out for group in compiled(*groups) for out in group]
        pairs = list(zip(DIFFERENTIABLE, calls, steps, strict=True))
        got = backward(outs, [leaf for op, _, step in pairs for leaf in leaves(op, step)])
        expected = tuple(g for op, call, _ in pairs for g in gradients(op, call))
        assert_same_bits(got, expected, f"{n} points")


@each_module
def test_modules_compile_whole(name, device):
    make, arguments = MODULES[name]
    module = make().to(device)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in COUNTS:
        inputs = tuple(t.to(device) for t in arguments(n))
        assert_same_bits(compiled(*inputs), module(*inputs), name)


@pytest.mark.gpu
@each_op
def test_reduce_overhead_skips_no_cudagraph(op):
    from torch._dynamo.utils import counters

    counters.clear()
    program = Program(op, op.call(64, 0))
    compiled = torch.compile(program, fullgraph=True, mode="reduce-overhead")
    for seed in range(6):  # warm-up, recording, replays
        torch.compiler.cudagraph_mark_step_begin()
        call = on("cuda", op.call(64, seed))
        outs = [out.clone() for out in compiled(*program.arguments(call))]
        assert_same_bits(outs, run(op, call), f"{op}, call {seed}")
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.gpu
@each_differentiable_op
def test_reduce_overhead_skips_no_cudagraph_of_a_training_step(op):
    from torch._dynamo.utils import counters

    counters.clear()
    program = Program(op, op.call(64, 0))
    compiled = torch.compile(program, fullgraph=True, mode="reduce-overhead")
    for seed in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        call = on("cuda", op.call(64, seed))
        step = with_gradients(op, call)
        got = backward(compiled(*program.arguments(step)), leaves(op, step))
        got = tuple(g.clone() for g in got)
        assert_same_bits(got, gradients(op, call), f"{op}, call {seed}")
    assert counters["inductor"]["cudagraph_skips"] == 0
