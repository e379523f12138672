# SPDX-License-Identifier: Apache-2.0
"""Distinct cells, and one point of each."""

from typing import Optional

import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from samples import cloud

import torchvox
from torchvox import reference


def rows_of(n: int, columns: int, dtype=torch.int32, most: int = 6, seed: int = 0) -> torch.Tensor:
    """Small columns, some of them negative, some as large as their type has."""
    g = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, most, (n, columns), generator=g).to(dtype)
    cells[1::7] = -1 - cells[1::7]
    cells[2::5, -1] = torch.iinfo(dtype).max
    cells[3::11, 0] = torch.iinfo(dtype).max - 1
    return cells


@given(
    n=st.integers(0, 60),
    columns=st.integers(1, 4),
    wide=st.booleans(),
    bits=st.sampled_from([-1, 1, 2, 15, 16, 21, 31, 32, 33, 62, 63]),
    order=st.sampled_from(["first", "sorted"]),
    seed=st.integers(0, 99),
)
def test_any_rows_are_grouped_as_the_reference_does(n, columns, wide, bits, order, seed):
    cells = rows_of(n, columns, torch.int64 if wide else torch.int32, 3, seed)
    call = {"bits": bits, "order": order}
    found = torchvox.unique_cells(cells, **call)
    assert_same_bits(found, reference.unique_cells(cells, **call))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_sorted_rows_are_those_of_torch_unique(columns, dtype, device):
    cells = rows_of(20_000, columns, dtype, 40).to(device)
    found = torchvox.unique_cells(cells, order="sorted", trim=True)
    kept = (cells >= 0).all(1)
    rows, inverse, number = cells[kept].unique(dim=0, return_inverse=True, return_counts=True)
    assert_same_bits(found.indices, rows)
    assert_same_bits(found.point_voxel[kept], inverse.int())
    assert_same_bits(found.num_points, number.int())
    assert found.counts.tolist() == [len(rows), int(kept.sum())]
    feats = torch.randn(len(cells), 2, device=device)
    lists = {"offsets": found.offsets, "perm": found.perm}
    reused = torchvox.voxel_scatter(feats, found.point_voxel, len(cells), **lists)
    assert_same_bits(reused, torchvox.voxel_scatter(feats, found.point_voxel, len(cells)))


@pytest.mark.parametrize("size", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("name", "arguments"), [("grid_cells", ()), ("grid_sample", ()), ("serialize", (["z"],))]
)
def test_wrong_sizes_are_refused_by_name(name, arguments, size):
    with pytest.raises(ValueError, match=f"{name}: grid_size must be .*, got {size}"):
        getattr(torchvox, name)(torch.zeros(4, 3), *arguments, grid_size=size)


@given(
    n=st.integers(0, 60),
    clouds=st.integers(0, 3),
    seed=st.sampled_from([None, 0, -1, 2**63 - 1]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.float64]),
)
def test_one_point_of_each_cell_as_the_reference_has_it(n, clouds, seed, dtype):
    points = cloud(n).to(dtype)
    call = {"seed": seed}
    if clouds:
        call["batch_offsets"] = torch.linspace(0, n, clouds + 1).long()
        call["num_valid"] = torch.full((clouds,), 25)
    found = torchvox.grid_sample(points, 0.5, **call)
    assert_same_bits(found, reference.grid_sample(points, 0.5, **call))


def test_random_points_of_cells_are_spread_evenly(device):
    points = torch.zeros(4000, 3, device=device)
    points[:, 0] = torch.arange(4000, device=device) // 4
    slots = [torchvox.grid_sample(points, 1.0, seed=s).representative[:1000] % 4 for s in (1, 2)]
    for slot in slots:
        assert slot.bincount().min() > 200
    assert (slots[0] == slots[1]).sum() < 400


class Sampled(torch.nn.Module):
    """The functions one behind the other, without a count that the host reads."""

    def forward(self, points: torch.Tensor, offsets: Optional[torch.Tensor] = None):
        found = torchvox.grid_sample(points, 0.5, batch_offsets=offsets, seed=7)
        rows = torch.ops.torchvox.serialize(
            found.cells, ["hilbert", "z"], depth=9, batch_offsets=found.batch_offsets
        )
        groups = torchvox.unique_cells(found.cells // 2, order="sorted")
        return (found.representative, *rows, *groups)


def test_the_functions_script_and_export():
    points = cloud(50)
    scripted, expected = torch.jit.script(Sampled()), Sampled()(points)
    assert_same_bits(scripted(points), expected)
    shapes = {"points": {0: torch.export.Dim.DYNAMIC}, "offsets": None}
    exported = torch.export.export(Sampled(), (points, None), dynamic_shapes=shapes).module()
    for n in (50, 77):
        assert_same_bits(exported(cloud(n, seed=n), None), Sampled()(cloud(n, seed=n)))
