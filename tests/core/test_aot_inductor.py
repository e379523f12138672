# SPDX-License-Identifier: Apache-2.0
"""AOTInductor packages every op and its package gives equal bits. One package holds all the ops,
since a compilation is slow. Loading it in C++ is tests/cpp's matter."""

import dataclasses

import pytest
import torch
from programs import Every
from samples import OPS

# torch 2.11 hands a dtype argument of a custom op on as another one (pytorch#169157, fixed by
# pytorch#173562), so calls that name a dtype are left to the test below.
PACKED = [op for op in OPS if not any(isinstance(v, torch.dtype) for v in op.call(50, 0).values())]

# On the GPU the loader of torch 2.11 crashes on models without any torchvox op as well, so there is
# nothing of ours to test there.


def packed(ops, path):
    """A program of the ops' plain calls, and its package."""
    every = Every(ops, 50)
    fast = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # the wrapper only calls our ops
    return every, torch._inductor.aoti_compile_and_package(
        every.exported(50, "cpu"), package_path=str(path), inductor_configs=fast
    )


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loaded_package_keeps_the_bits_of_every_op(step, tmp_path):
    every, path = packed(PACKED[::step], tmp_path / "ops.pt2")
    loaded = torch._inductor.aoti_load_package(path)
    for n in (50, 2, 77):
        every.check(loaded, n)


@pytest.mark.slow
@pytest.mark.xfail(
    torch.__version__.startswith("2.11."),
    reason="pytorch#169157: torch 2.11 packages a dtype argument as another dtype",
    strict=True,
)
def test_a_dtype_argument_survives_packaging(tmp_path):
    op = next(op for op in OPS if op.name == "voxelize")
    half = dataclasses.replace(
        op, call=lambda n, seed: {**op.call(n, seed), "out_dtype": torch.float16}
    )
    every, path = packed([half], tmp_path / "half.pt2")
    every.check(torch._inductor.aoti_load_package(path), 50)
