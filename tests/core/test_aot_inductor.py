# SPDX-License-Identifier: Apache-2.0
"""AOTInductor packages every op and its package gives equal bits. One package holds all the ops,
since a compilation is slow. Loading it in C++ is tests/cpp's matter."""

import pytest
import torch
from helpers import assert_same_bits
from programs import Every, Program
from samples import OPS, run

# On the GPU the loader of torch 2.11 crashes on models without any torchvox op as well, so there is
# nothing of ours to test there.


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    calls = [op.call(50, 0) for op in OPS]
    every = Every([Program(op, call) for op, call in zip(OPS, calls, strict=True)])
    groups = tuple(p.arguments(c) for p, c in zip(every.programs, calls, strict=True))
    shapes = tuple(p.dynamic_shapes(op)[0] for p, op in zip(every.programs, OPS, strict=True))
    exported = torch.export.export(every, groups, dynamic_shapes=(shapes,))
    path = str(tmp_path_factory.mktemp("aoti") / "every_op.pt2")
    fast = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # the wrapper only calls our ops
    return every, torch._inductor.aoti_compile_and_package(
        exported, package_path=path, inductor_configs=fast
    )


@pytest.mark.parametrize("n", [50, 2, 77])
def test_a_loaded_package_keeps_every_ops_bits(package, n):
    every, path = package
    loaded = torch._inductor.aoti_load_package(path)
    calls = [op.call(n, n) for op in OPS]
    groups = tuple(p.arguments(c) for p, c in zip(every.programs, calls, strict=True))
    for op, call, outs in zip(OPS, calls, loaded(*groups), strict=True):
        assert_same_bits(tuple(outs), run(op, call), f"{op} of {n}")
