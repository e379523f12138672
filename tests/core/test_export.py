# SPDX-License-Identifier: Apache-2.0
"""torch.export takes every op with a free number of points; a saved program keeps its bits."""

import io

import pytest
import torch
from helpers import assert_same_bits
from programs import Program
from samples import MODULES, each_module, each_op, on, run


def saved_and_loaded(exported: torch.export.ExportedProgram) -> torch.nn.Module:
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.one_of("strict")
@each_op
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_an_exported_op_keeps_its_bits_for_any_number_of_points(op, strict, device):
    call = on(device, op.call(50, 0))
    program = Program(op, call)
    exported = torch.export.export(
        program,
        program.arguments(call),
        dynamic_shapes=program.dynamic_shapes(op),
        strict=strict,
    )
    assert op.composite or op.overload in [node.target for node in exported.graph.nodes]
    loaded = saved_and_loaded(exported)
    for n in (50, 2, 77):
        call = on(device, op.call(n, n))
        assert_same_bits(loaded(*program.arguments(call)), run(op, call), f"{op} of {n}")


@pytest.mark.one_of("strict")
@each_module
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_an_exported_module_keeps_its_bits(name, strict, device):
    make, arguments = MODULES[name]
    module = make().to(device)
    inputs = tuple(t.to(device) for t in arguments(50))
    dim = MODULE_DIMS.get(name, 0)
    shapes = tuple({dim: torch.export.Dim.DYNAMIC} for _ in inputs)
    exported = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict)
    loaded = saved_and_loaded(exported)
    for n in (50, 77):
        inputs = tuple(t.to(device) for t in arguments(n))
        assert_same_bits(tuple(loaded(*inputs)), tuple(module(*inputs)), f"{name} of {n}")


# The dimension of the points: of [B, N, D]; the others take [N, C].
MODULE_DIMS = {"FurthestPointSample": 1, "SetAbstraction": 1, "FeaturePropagation": 1}
