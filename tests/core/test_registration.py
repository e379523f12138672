# SPDX-License-Identifier: Apache-2.0
"""Every op is registered for every key, and torch's own checks of a custom op pass."""

import ctypes

import pytest
import torch
from layouts import strided
from samples import OPS, each_op, fresh, laid_out, on, run, sample_inputs, with_gradients
from torch.library import opcheck
from torch.testing._internal.optests.generate_tests import DEFAULT_TEST_UTILS

OF_ONE_CALL = ("test_schema", "test_faketensor")  # and no tracing
TRACED = ("plain", "empty")  # the others are traced by the slow tier


def every_call():
    """Each case with all of opcheck's utilities, and with those of one call where that is slow. An
    op that has gradients is traced with them."""
    for op in OPS:
        cases = {
            **sample_inputs(op),
            "strided": lambda op=op: laid_out(op, op.call(40, 0), strided),
        }
        for name, make in cases.items():
            for gradients in (False, True) if op.gradients else (False,):
                fast = name in TRACED and gradients == bool(op.gradients)
                case = f"{op}-{name}{'-gradients' * gradients}"
                marks = [] if fast else [pytest.mark.slow]
                yield pytest.param(op, make, gradients, DEFAULT_TEST_UTILS, marks=marks, id=case)
                if not fast and not gradients:
                    yield pytest.param(op, make, False, OF_ONE_CALL, id=f"{case}-untraced")


def check(op, call, utilities) -> None:
    utilities = list(utilities)
    if "test_aot_dispatch_dynamic" in utilities and any(
        out.is_floating_point() and out.isnan().any() for out in run(op, call)
    ):
        utilities.remove("test_aot_dispatch_dynamic")  # it compares NaN with NaN as unequal
    opcheck(op.overload, (), fresh(op, call), test_utils=utilities)


def has_kernel(op, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.overload.name(), key)


@each_op
# In a build without CUDA the CUDA kernel is the one that says so. Without an Autograd kernel
# torch's fallback would make every float output require a gradient.
@pytest.mark.parametrize("key", ["CPU", "CUDA", "Meta", "Autograd"])
def test_every_op_has_a_kernel_for(op, key):
    assert op.composite or has_kernel(op, key)


@pytest.mark.parametrize(("op", "make", "gradients", "utilities"), list(every_call()))
def test_opcheck_passes(op, make, gradients, utilities, device):
    call = on(device, make())
    check(op, with_gradients(op, call) if gradients else call, utilities)


def test_the_cpp_functions_have_the_signatures_of_the_kernels():
    [library] = [path for path in torch.ops.loaded_libraries if path.endswith("libtorchvox.so")]
    assert ctypes.CDLL(library).torchvox_check_cpp_signatures() == 0
