# SPDX-License-Identifier: Apache-2.0
"""Codes of cells along curves, and the rows in their order."""

import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from op_infos.cells import CURVES, cells_of

import torchvox
from torchvox import reference

each_curve = pytest.mark.parametrize("curve", CURVES)


def cube(depth: int) -> torch.Tensor:
    """Every cell, [8^depth, 3]."""
    side = torch.arange(1 << depth, dtype=torch.int32)
    return torch.cartesian_prod(side, side, side)


# What Pointcept's `encode` gives: cell, depth, then the code along each curve.
PUBLISHED = [
    ((1, 0, 0), 1, (4, 2, 7, 3)),
    ((5, 6, 3), 3, (413, 427, 294, 304)),
    ((1, 2, 3), 16, (29, 43, 36, 20)),
    ((40000, 123, 65535), 16, (181261733574235, 110736223165037, 236315697704310, 75473467286646)),
]


@pytest.mark.parametrize(("cell", "depth", "codes"), PUBLISHED)
def test_codes_are_the_published_ones(cell, depth, codes, device):
    found = torchvox.serialize(torch.tensor([cell], device=device), CURVES, depth=depth)
    assert found.codes.flatten().tolist() == list(codes)
    index = torch.tensor([3], device=device)
    found = torchvox.serialize(
        torch.tensor([cell], device=device), CURVES, depth=depth, batch_index=index
    )
    assert found.codes.flatten().tolist() == [3 << 3 * depth | code for code in codes]


@each_curve
def test_a_curve_visits_every_cell_once_and_a_hilbert_curve_goes_to_neighbors(curve, device):
    cells = cube(3).to(device)
    codes, order, inverse = torchvox.serialize(cells, [curve], depth=3)
    assert codes[0].sort().values.tolist() == list(range(8**3))
    assert_same_bits(inverse, codes)
    steps = cells[order[0]].diff(dim=0).abs().sum(1)
    assert steps.max() == 1 if curve.startswith("hilbert") else steps.max() > 1


@given(
    n=st.integers(0, 60),
    depth=st.integers(1, 19),
    clouds=st.integers(0, 40),
    names=st.lists(st.sampled_from(CURVES), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_call_is_the_reference(n, depth, clouds, names, seed):
    cells = cells_of(n, seed, depth)
    offsets = torch.randint(-2, n + 3, (clouds + 1,), generator=torch.Generator().manual_seed(seed))
    call = {"depth": depth, "batch_offsets": offsets.sort().values}
    found = torchvox.serialize(cells, names, **call)
    assert_same_bits(found, reference.serialize(cells, names, **call))


@pytest.mark.parametrize("depth", [1, 2, 5, 10, 16, 21])
@pytest.mark.parametrize(("n", "side"), [(4095, 1 << 21), (4096, 4), (4097, 64), (70_000, 1 << 21)])
def test_large_clouds_are_sorted_stably(n, side, depth, device):
    """Digits of one value, of few and of many; many tiles; rows and codes of more than 64 bits."""
    generator = torch.Generator().manual_seed(n)
    cells = torch.randint(-1, min(1 << depth, side), (n, 3), generator=generator).to(device)
    cells[:, 2] %= 2
    names = CURVES if n < 5000 else CURVES[1:3]
    codes, order, inverse = torchvox.serialize(cells, names, depth=depth)
    valid = (codes >= 0).sum(1)
    assert_same_bits(valid, (cells >= 0).all(1).sum().expand_as(valid))
    last = torch.where(codes < 0, torch.iinfo(torch.int64).max, codes)
    assert_same_bits(order, last.sort(dim=1, stable=True).indices)
    places = torch.arange(n, device=device).expand_as(order)
    assert_same_bits(inverse, torch.empty_like(order).scatter_(1, order, places))


@pytest.mark.parametrize("depth", [8, 10, 21])  # 24 and 30 bits end with a digit of the sorts
def test_the_last_cell_comes_before_rows_without_a_code(depth, device):
    most = 2**depth - 1
    cells = torch.tensor([[-1, 0, 0], [most] * 3, [0, 0, 1 << depth], [0, 0, 0]], device=device)
    codes, order, inverse = torchvox.serialize(cells, ["z"], depth=depth)
    assert codes.tolist() == [[-1, 2 ** (3 * depth) - 1, -1, 0]]
    assert order.tolist() == [[3, 1, 0, 2]] and inverse.tolist() == [[2, 1, 3, 0]]


def test_points_are_serialized_by_their_cells(device):
    points, offsets = torch.randn(50, 4), torch.tensor([0, 20, 50])
    call = {"batch_offsets": offsets, "num_valid": torch.tensor([20, 25])}
    call = {k: v.to(device) for k, v in call.items()}
    found = torchvox.serialize(points.to(device), CURVES, depth=9, grid_size=0.05, **call)
    cells = torchvox.grid_cells(points.to(device), 0.05, **call)
    assert_same_bits(found, torchvox.serialize(cells, CURVES, depth=9, **call))
    with pytest.raises(ValueError, match="batch_index must be None with grid_size"):
        torchvox.serialize(points, ["z"], grid_size=0.1, batch_index=torch.zeros(50).int())
