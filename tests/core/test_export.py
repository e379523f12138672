# SPDX-License-Identifier: Apache-2.0
"""torch.export takes every op with a free number of points; a saved program keeps its bits."""

import io

import pytest
import torch
from helpers import assert_same_bits
from programs import Every
from samples import MODULES, OPS, each_module


def saved_and_loaded(exported: torch.export.ExportedProgram) -> torch.nn.Module:
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file).module()


OTHERS = ((True, 1), (False, 0))


@pytest.mark.parametrize(
    ("strict", "half"),
    [(True, 0), (False, 1), *(pytest.param(*p, marks=pytest.mark.slow) for p in OTHERS)],
)
def test_exported_ops_keep_their_bits_for_any_number_of_points(strict, half, device):
    """One program of half the ops, since an export is slow."""
    ops = OPS[half::2]
    every = Every(ops, 50)
    exported = every.exported(50, device, strict=strict)
    targets = {node.target for node in exported.graph.nodes}
    assert all(op.composite or op.overload in targets for op in ops)
    loaded = saved_and_loaded(exported)
    for n in (50, 2, 77):
        every.check(loaded, n, device)


@pytest.mark.one_of("strict")
@each_module
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_an_exported_module_keeps_its_bits(name, strict, device):
    make, arguments = MODULES[name]
    module = make().to(device)
    inputs = tuple(t.to(device) for t in arguments(50))
    shapes = tuple(
        {k: torch.export.Dim.DYNAMIC for k in range(t.dim()) if t.size(k) != other.size(k)}
        for t, other in zip(inputs, arguments(77), strict=True)
    )
    exported = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict)
    loaded = saved_and_loaded(exported)
    for n in (50, 77):
        inputs = tuple(t.to(device) for t in arguments(n))
        assert_same_bits(tuple(loaded(*inputs)), tuple(module(*inputs)), f"{name} of {n}")
