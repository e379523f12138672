# SPDX-License-Identifier: Apache-2.0
"""Every op is registered for every key, and torch's own checks of a custom op pass."""

import pytest
import torch
from layouts import strided
from samples import (
    DIFFERENTIABLE,
    OPS,
    each_op,
    map_tensors,
    on,
    run,
    sample_inputs,
    with_gradients,
)
from torch.library import opcheck
from torch.testing._internal.optests.generate_tests import DEFAULT_TEST_UTILS


def every_call(ops):
    return [
        pytest.param(op, make, id=f"{op}-{name}")
        for op in ops
        for name, make in {
            **sample_inputs(op),
            "strided": lambda op=op: map_tensors(op.call(40, 0), strided),
        }.items()
    ]


def check(op, call) -> None:
    utilities = list(DEFAULT_TEST_UTILS)
    if any(out.is_floating_point() and out.isnan().any() for out in run(op, call)):
        utilities.remove("test_aot_dispatch_dynamic")  # it compares NaN with NaN as unequal
    opcheck(op.overload, (), call, test_utils=utilities)


def has_kernel(op, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.overload.name(), key)


@each_op
# In a build without CUDA the CUDA kernel is the one that says so. Without an Autograd kernel
# torch's fallback would make every float output require a gradient.
@pytest.mark.parametrize("key", ["CPU", "CUDA", "Meta", "Autograd"])
def test_every_op_has_a_kernel_for(op, key):
    assert op.composite or has_kernel(op, key)


@pytest.mark.parametrize(("op", "make"), every_call(OPS))
def test_opcheck_passes(op, make, device):
    check(op, on(device, make()))


@pytest.mark.parametrize(("op", "make"), every_call(DIFFERENTIABLE))
def test_opcheck_passes_with_gradients(op, make, device):
    check(op, with_gradients(op, on(device, make())))
