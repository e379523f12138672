# SPDX-License-Identifier: Apache-2.0
"""Ops that write their arguments tell autograd so, and write nothing that has a gradient."""

import contextlib

import pytest
import torch
from helpers import assert_same_bits
from samples import OPS, fresh, is_tensor_list, on, run

each_mutating_op = pytest.mark.parametrize("op", [op for op in OPS if op.mutates], ids=str)
each_mode = pytest.mark.parametrize(
    "mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode]
)


def tensors_of(value) -> list[torch.Tensor]:
    return value if is_tensor_list(value) else [value] if torch.is_tensor(value) else []


@each_mutating_op
def test_the_schema_says_what_an_op_writes(op):
    arguments = op.overload._schema.arguments
    assert op.mutates == tuple(a.name for a in arguments if a.alias_info)
    assert all(is_tensor_list(op.call(40, 0)[name]) for name in op.mutates)


@each_mode
@each_mutating_op
def test_backward_refuses_an_index_that_an_op_changed_after_it_was_saved(op, mode, device):
    """Without a count of the writes the gradient would be wrong, and nothing would say so."""
    call = fresh(op, on(device, op.call(40, 0)))
    for written in [t for name in op.mutates for t in call[name] if t.dtype == torch.int64]:
        index = written.clamp_(0, 9)
        out = torch.ones(10, device=device, requires_grad=True)[index].sum()
        with mode():
            op.overload(**call)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


@each_mode
@each_mutating_op
def test_writes_are_counted_once_and_those_of_arguments_alone(op, mode, device):
    call = fresh(op, on(device, op.call(40, 0)))
    before = {k: [t._version for t in tensors_of(v)] for k, v in call.items()}
    with mode():
        op.overload(**call)
    for name, value in call.items():
        added = [t._version - b for t, b in zip(tensors_of(value), before[name], strict=True)]
        assert set(added) <= {int(name in op.mutates)}, name


@each_mutating_op
def test_tensors_of_inference_mode_are_written_too(op, device):
    expected = run(op, on(device, op.call(40, 0)))
    with torch.inference_mode():
        assert_same_bits(run(op, on(device, op.call(40, 0))), expected, str(op))
        inputs = fresh(op, on(device, op.call(40, 0)))
    assert_same_bits(run(op, inputs), expected, str(op))


@each_mutating_op
def test_a_written_tensor_that_requires_a_gradient_is_refused(op):
    for name in op.mutates:
        for i in range(len(op.call(40, 0)[name])):
            call = op.call(40, 0)
            call[name][i] = call[name][i].float().requires_grad_()
            for mode in (contextlib.nullcontext, torch.no_grad):
                with mode(), pytest.raises(NotImplementedError, match=f"{op}: {name} is written"):
                    op.overload(**call)


@pytest.mark.gpu
def test_a_compiled_step_of_two_writes_and_reads_between_takes_no_second_state():
    import torchvox

    state = torchvox.occupancy_state(1 << 18, device="cuda")  # 256 MiB of log-odds
    points, origins = torch.rand(50, 3, device="cuda") * 9, torch.zeros(1, 3, device="cuda")
    frame = (0.1, [0.0, 0.0, 0.0])

    def step(state: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros((), device="cuda")
        for _ in range(2):
            torch.ops.torchvox.occupancy_integrate_(
                state, points, origins, *frame, [2.2, -0.2, -2.0, 3.5], 1000
            )
            total = total + torch.ops.torchvox.occupancy_query(state, points, *frame)[0].nansum()
        return total

    compiled = torch.compile(step, fullgraph=True)
    compiled(state)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled(state)
    assert torch.cuda.max_memory_allocated() - before < 64 << 20
