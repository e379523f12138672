# SPDX-License-Identifier: Apache-2.0
"""AOTInductor packages every op and its package gives equal bits. One package holds all the ops,
since a compilation is slow. Loading it in C++ is tests/cpp's matter."""

import dataclasses

import pytest
import torch
from helpers import assert_same_bits
from programs import Every, Program
from samples import OPS, run

# torch 2.11 hands a dtype argument of a custom op on as another one (pytorch#169157, mended by
# pytorch#173562), so calls that name a dtype are left to the test below.
PACKED = [op for op in OPS if not any(isinstance(v, torch.dtype) for v in op.call(50, 0).values())]

# On the GPU the loader of torch 2.11 crashes on models without any torchvox op as well, so there is
# nothing of ours to test there.


def packed(ops, path):
    """A program of the ops' plain calls, and its package."""
    calls = [op.call(50, 0) for op in ops]
    every = Every([Program(op, call) for op, call in zip(ops, calls, strict=True)])
    groups = tuple(p.arguments(c) for p, c in zip(every.programs, calls, strict=True))
    shapes = tuple(p.dynamic_shapes(op)[0] for p, op in zip(every.programs, ops, strict=True))
    exported = torch.export.export(every, groups, dynamic_shapes=(shapes,))
    fast = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # the wrapper only calls our ops
    return every, torch._inductor.aoti_compile_and_package(
        exported, package_path=str(path), inductor_configs=fast
    )


def check(ops, every, path, n):
    loaded = torch._inductor.aoti_load_package(path)
    calls = [op.call(n, n) for op in ops]
    groups = tuple(p.arguments(c) for p, c in zip(every.programs, calls, strict=True))
    for op, call, outs in zip(ops, calls, loaded(*groups), strict=True):
        assert_same_bits(tuple(outs), run(op, call), f"{op} of {n}")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return packed(PACKED, tmp_path_factory.mktemp("aoti") / "every_op.pt2")


@pytest.mark.parametrize("n", [50, 2, 77])
def test_a_loaded_package_keeps_every_ops_bits(package, n):
    check(PACKED, *package, n)


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
    check([half], *packed([half], tmp_path / "half.pt2"), 50)
