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

OF_ONE_CALL = ("test_schema", "test_faketensor")  # and no tracing
TRACED = ("plain", "empty", "strided")  # the others are traced by the slow tier


def every_call(ops):
    """Each case with all of opcheck's utilities; fast ones mostly with those of one call alone."""
    for op in ops:
        strided_case = {"strided": lambda op=op: map_tensors(op.call(40, 0), strided)}
        for name, make in {**sample_inputs(op), **strided_case}.items():
            marks = [] if name in TRACED else [pytest.mark.slow]
            yield pytest.param(op, make, DEFAULT_TEST_UTILS, marks=marks, id=f"{op}-{name}")
            if marks:
                yield pytest.param(op, make, OF_ONE_CALL, id=f"{op}-{name}-untraced")


def check(op, call, utilities) -> None:
    utilities = list(utilities)
    if "test_aot_dispatch_dynamic" in utilities and any(
        out.is_floating_point() and out.isnan().any() for out in run(op, call)
    ):
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


@pytest.mark.parametrize(("op", "make", "utilities"), every_call(OPS))
def test_opcheck_passes(op, make, utilities, device):
    check(op, on(device, make()), utilities)


@pytest.mark.parametrize(("op", "make", "utilities"), every_call(DIFFERENTIABLE))
def test_opcheck_passes_with_gradients(op, make, utilities, device):
    check(op, with_gradients(op, on(device, make())), utilities)
