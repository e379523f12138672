# SPDX-License-Identifier: Apache-2.0
"""Trimming voxels to the rows in use: the one place that reads a count on the host."""

import io

import pytest
import torch
from helpers import assert_same_bits
from op_infos.voxel import GRID, voxelize_call
from samples import cloud, on

import torchvox

ROWS_LAST = ("features", "indices", "num_points")  # the outputs with one row per voxel


def module(trim: bool) -> torchvox.nn.Voxelize:
    return torchvox.nn.Voxelize(**GRID, max_points=3, max_voxels=-1, reduce="mean", trim=trim)


def expected(points):
    """The untrimmed outputs, narrowed by hand."""
    out = module(False)(points)
    rows = int(out.counts[0, 0])
    return tuple(
        value[:rows] if name in ROWS_LAST else value
        for name, value in zip(out._fields, out, strict=True)
    )


def test_trimmed_rows_are_the_prefix_in_use(device):
    call = on(device, voxelize_call(60))
    full = torchvox.voxelize(**call)
    trimmed = torchvox.voxelize(**call, trim=True)
    rows = int(full.counts[0, 0])
    assert 0 < rows < len(full.indices)
    for name, value in trimmed._asdict().items():
        whole = getattr(full, name)
        assert_same_bits(value, whole[:rows] if name in ROWS_LAST else whole, name)
    assert_same_bits(tuple(module(True)(cloud(60).to(device))), expected(cloud(60).to(device)))


def test_a_trimmed_module_compiles_whole_with_scalar_outputs(device):
    torch._dynamo.reset()
    compiled = torch.compile(module(True), fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in (50, 77, 64):
            points = cloud(n, seed=n).to(device)
            assert_same_bits(tuple(compiled(points)), expected(points), f"{n} points")


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
def test_a_trimmed_module_exports_with_a_bounded_free_row_count(strict, device):
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    example = (cloud(50).to(device),)
    exported = torch.export.export(module(True), example, dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (50, 77):
        points = cloud(n, seed=n).to(device)
        assert_same_bits(tuple(loaded(points)), expected(points), f"{n} points")


def test_a_trimmed_module_scripts_and_survives_saving(tmp_path, device):
    torch.jit.save(torch.jit.script(module(True)), str(tmp_path / "trimmed.pt"))
    loaded = torch.jit.load(str(tmp_path / "trimmed.pt"))
    for n in (50, 0, 77):
        points = cloud(n, seed=n).to(device)
        assert_same_bits(tuple(loaded(points)), expected(points), f"{n} points")


def test_gradients_flow_through_trimmed_rows(device):
    points = cloud(60).to(device).requires_grad_()
    trimmed = torch.autograd.grad(module(True)(points).features.square().sum(), points)
    whole = torch.autograd.grad(module(False)(points).features.square().sum(), points)
    assert_same_bits(trimmed, whole)
