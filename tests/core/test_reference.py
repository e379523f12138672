# SPDX-License-Identifier: Apache-2.0
"""Every sample of the list agrees with the written semantics, and the Python function hands all of
its arguments on; the domains' tests go further."""

import inspect

import pytest
import torch
from helpers import assert_same_bits
from samples import OPS, run, sample_inputs

import torchvox.reference


@pytest.mark.parametrize(
    ("op", "make"),
    [
        pytest.param(op, make, id=f"{op}-{name}")
        for op in OPS
        if op.public  # of a backward op the gradient is compared with differences
        for name, make in (*sample_inputs(op).items(), *op.gradcheck_inputs.items())
    ],
)
def test_the_op_its_function_and_its_reference_have_equal_bits(op, make):
    outs = run(op, make())
    assert_same_bits(outs_of(op, getattr(torchvox.reference, op.name), make()), outs, str(op))
    function, call = getattr(torchvox, op.name), make()
    if set(call) <= set(inspect.signature(function).parameters):
        assert_same_bits(outs_of(op, function, call), outs, "function")


def outs_of(op, function, call) -> tuple:
    """What a function returns, and what it wrote."""
    found = function(**call)
    written = [tensor for name in op.mutates for tensor in call[name]]
    return (*((found,) if torch.is_tensor(found) else found), *written)
