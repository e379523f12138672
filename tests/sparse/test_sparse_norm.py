# SPDX-License-Identifier: Apache-2.0
"""sparse_batch_norm and sparse_max_pool: what they are, and their gradients bit by bit."""

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_same_bits
from op_infos.op_info import gradients, on, run, some_gradient
from op_infos.sparse import conv_call
from op_infos.sparse_norm import OPS, in_double, norm_call, pool_call
from samples import sample_inputs

import torchvox.reference.sparse as reference

BACKWARD = [(op, name) for op in OPS if not op.public for name in sample_inputs(op)]


@pytest.mark.parametrize(("op", "name"), BACKWARD, ids=str)
def test_a_backward_op_has_the_bits_of_its_reference(op, name):
    call = sample_inputs(op)[name]()
    expected = getattr(reference, op.name[1:])(**call)
    assert_same_bits(run(op, call), expected if isinstance(expected, tuple) else (expected,))


@pytest.mark.parametrize("evaluate", [False, True])
def test_the_norm_and_its_gradients_are_those_of_torch(evaluate, device):
    call = on(device, in_double(norm_call(70, evaluate=evaluate)))
    x, weight, bias = leaves = [call[k].clone().requires_grad_() for k in OPS[0].gradients]
    given = (call.get("mean"), call.get("var"))
    out = F.batch_norm(x, *given, weight, bias, not evaluate, eps=call["eps"])
    torch.testing.assert_close(run(OPS[0], call)[0], out)
    expected = torch.autograd.grad(out, leaves, some_gradient(out))
    torch.testing.assert_close(gradients(OPS[0], call), expected)


NO_GRADIENTS = [
    ("sparse_conv", conv_call(40, inverse=None), "features", "table inverse, or submanifold"),
    ("sparse_max_pool", {**pool_call(40), "inverse": None}, "features", "needs the table inverse"),
    ("sparse_batch_norm", norm_call(40, evaluate=True), "mean", "mean have no gradient"),
    ("sparse_batch_norm", norm_call(40, evaluate=True), "var", "var have no gradient"),
]


@pytest.mark.parametrize(("op", "call", "wants", "words"), NO_GRADIENTS)
def test_gradients_that_the_ops_do_not_have_are_refused(op, call, wants, words):
    with pytest.raises(NotImplementedError, match=words):
        getattr(torch.ops.torchvox, op)(**call | {wants: call[wants].clone().requires_grad_()})
