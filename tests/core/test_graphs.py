# SPDX-License-Identifier: Apache-2.0
"""A captured op replays with new points and new numbers of valid points, and never synchronizes."""

import pytest
import torch
from gpu import captured, copy_in_place
from helpers import assert_same_bits
from samples import (
    MODULES,
    SPARSE,
    each_differentiable_op,
    each_pass,
    each_sample_input,
    leaves,
    map_tensors,
    on,
    run,
    with_gradients,
)

pytestmark = pytest.mark.gpu

REPLAYS = 100
POINTS = 500


def fresh_call(op, replay: int):
    """Other points in each replay, and another number of valid ones: none, all, something."""
    call = op.call(POINTS, replay)
    for name in ("num_valid", "lengths"):
        if name in call:
            valid = [0, POINTS, 1, 37 * replay % POINTS][replay % 4]
            call[name] = torch.full_like(call[name], valid)
    return on("cuda", call)


@each_pass
def test_a_hundred_replays_with_new_points_equal_eager(op, work):
    static = map_tensors(fresh_call(op, 1), torch.clone)
    graph, outs = captured(lambda: work(op, static))
    for replay in range(REPLAYS):
        call = fresh_call(op, replay)
        copy_in_place(static, call)
        graph.replay()
        assert_same_bits(outs, work(op, call), f"{op}, replay {replay}")


@each_sample_input
def test_every_case_can_be_captured(op, make):
    static = on("cuda", make())
    expected = run(op, static)
    graph, outs = captured(lambda: run(op, static))
    graph.replay()
    assert_same_bits(outs, expected, str(op))


@pytest.mark.parametrize("name", SPARSE)
def test_layers_of_sparse_tensors_replay_with_other_rows(name):
    make, arguments = MODULES[name]
    module, static = make().cuda(), [t.cuda() for t in arguments(60)]
    with torch.no_grad():
        graph, out = captured(lambda: module(*static))
        for n in (70, 80):
            fresh = [t[:60].cuda() for t in arguments(n)]
            for to, tensor in zip(static, fresh, strict=True):
                to.copy_(tensor)
            graph.replay()
            assert_same_bits(out, module(*fresh), f"{name} of {n}")


@pytest.fixture
def forbid_syncs():
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


# The debug mode does not see a raw cudaMemcpy; the capture tests above do.
@each_sample_input
def test_no_op_synchronizes(op, make, forbid_syncs):
    call = on("cuda", make())
    forbid_syncs()
    run(op, call)


@each_differentiable_op
def test_no_gradient_synchronizes(op, forbid_syncs):
    call = with_gradients(op, on("cuda", op.call(POINTS, 0)))
    seeds = [torch.ones_like(out) for out in run(op, call) if out.requires_grad]
    forbid_syncs()
    outs = [out for out in run(op, call) if out.requires_grad]
    torch.autograd.grad(outs, leaves(op, call), seeds)
