# SPDX-License-Identifier: Apache-2.0
"""Autocast changes nothing: coordinates are never cast and features keep their dtype."""

import pytest
import torch
from helpers import assert_same_bits
from samples import each_case, each_differentiable_op, gradients, on, run

each_dtype = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@each_dtype
@each_case
def test_autocast_keeps_every_bit_and_dtype(op, make, dtype, device):
    call = on(device, make())
    expected = run(op, call)
    with torch.autocast(device, dtype=dtype):
        assert_same_bits(run(op, call), expected, str(op))


@each_dtype
@each_differentiable_op
def test_autocast_keeps_gradients(op, dtype, device):
    call = on(device, op.call(40, 0))
    expected = gradients(op, call)
    with torch.autocast(device, dtype=dtype):
        assert_same_bits(gradients(op, call), expected, str(op))
