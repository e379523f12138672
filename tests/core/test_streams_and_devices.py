# SPDX-License-Identifier: Apache-2.0
"""Ops run on the caller's stream and on the tensors' device, and touch no other."""

import pytest
import torch
from gpu import copy_in_place, keep_busy
from helpers import assert_same_bits
from samples import each_pass, map_tensors, on, run

POINTS = 2_000


@pytest.mark.gpu
@each_pass
def test_the_op_waits_for_its_input_on_the_callers_stream(op, work):
    """The input is written behind a long kernel; an op on another stream would read the old one."""
    old, new = on("cuda", op.call(POINTS, 1)), on("cuda", op.call(POINTS, 2))
    static = map_tensors(old, torch.clone)
    work(op, static)  # first-use set-up is not what is tested
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        keep_busy()
        copy_in_place(static, new)
        outs = work(op, static)
        busy = not side.query()
        others_idle = torch.cuda.default_stream().query()
    side.synchronize()
    if work is run:
        assert busy, "the op returned only after the stream was done: it waited on the host"
        assert others_idle
    assert_same_bits(outs, work(op, new), str(op))


@pytest.mark.multigpu
@each_pass
def test_results_lie_on_the_tensors_device_and_the_current_one_stays(op, work):
    torch.cuda.set_device(0)
    call = op.call(POINTS, 1)
    expected = work(op, call)
    outs = work(op, on("cuda:1", call))
    assert torch.cuda.current_device() == 0
    assert all(out.device == torch.device("cuda:1") for out in outs)
    assert_same_bits(outs, expected, str(op))
    with torch.cuda.stream(torch.cuda.Stream(device=1)):  # makes device 1 current as well
        static = map_tensors(on("cuda:1", op.call(POINTS, 2)), torch.clone)
        keep_busy()
        copy_in_place(static, on("cuda:1", call))
        outs = work(op, static)
        torch.cuda.current_stream().synchronize()
    assert torch.cuda.current_device() == 0
    assert_same_bits(outs, expected, str(op))
