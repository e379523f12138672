# SPDX-License-Identifier: Apache-2.0
"""GPU kernels and memsets per call are fixed: one more shows here before any benchmark."""

import pytest
import torch
from samples import each_differentiable_op, each_op, fresh, leaves, on, run, with_gradients
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.gpu

POINTS = 1_000


def work_on_the_gpu(call) -> list[str]:
    """Names of the kernels, memsets and copies of one call."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        call()
        torch.cuda.synchronize()
    return [e.name for e in record.events() if e.device_type == DeviceType.CUDA]


@each_op
def test_a_call_takes_its_fixed_number_of_kernels(op):
    call = on("cuda", op.call(POINTS, 0))
    call = fresh(op, call)  # once: a copy is no work of the op
    seen = work_on_the_gpu(lambda: op.overload(**call))
    assert len(seen) == op.kernels, f"{len(seen)} kernels and memsets: {seen}"


@each_differentiable_op
def test_a_backward_takes_its_fixed_number_of_kernels(op):
    call = with_gradients(op, on("cuda", op.call(POINTS, 0)))
    outs = [out for out in run(op, call) if out.requires_grad]
    seeds = [torch.ones_like(out) for out in outs]

    def step():
        torch.autograd.grad(outs, leaves(op, call), seeds, retain_graph=True)

    seen = work_on_the_gpu(step)
    assert len(seen) == op.backward_kernels, f"{len(seen)} kernels and memsets: {seen}"
