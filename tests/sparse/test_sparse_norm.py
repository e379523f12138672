# SPDX-License-Identifier: Apache-2.0
"""sparse_batch_norm and sparse_max_pool: their gradients bit by bit, and those that they lack."""

import pytest
import torch
from helpers import assert_same_bits
from op_infos.op_info import run
from op_infos.sparse import conv_call
from op_infos.sparse_norm import OPS, norm_call, pool_call
from samples import sample_inputs

import torchvox.reference.sparse as reference

BACKWARD = [(op, name) for op in OPS if not op.public for name in sample_inputs(op)]


@pytest.mark.parametrize(("op", "name"), BACKWARD, ids=str)
def test_a_backward_op_has_the_bits_of_its_reference(op, name):
    call = sample_inputs(op)[name]()
    expected = getattr(reference, op.name[1:])(**call)
    assert_same_bits(run(op, call), expected if isinstance(expected, tuple) else (expected,))


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
