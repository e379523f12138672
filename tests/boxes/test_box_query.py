# SPDX-License-Identifier: Apache-2.0
"""box_query: slots, counts and cells against a sorted mask on a lattice with exact faces."""

import pytest
import torch
from box_cases import box, random_pairs
from helpers import check_op
from hypothesis import given
from hypothesis import strategies as st

import torchvox


# 4,096 cells and fewer count in shared memory, more in the output.
@pytest.mark.parametrize("grid", [None, (2, 4, 1), (16, 16, 16), (16, 16, 32)])
def test_points_go_to_cells_of_a_lattice_by_rising_index(grid, device):
    """Coordinates are sixteenths, the sizes powers of two: every face is hit, and no sum rounds."""
    g = torch.Generator().manual_seed(5)
    points = torch.randint(-40, 41, (1, 3000, 3), generator=g) / 16
    boxes = torch.tensor([[box(l=4.0, w=2.0, h=1.0), box(x=0.5, z=-0.25, l=8.0, w=8.0, h=8.0)]])
    index, count = check_op("box_query", device, points, boxes, 5, grid=grid)
    assert count[0, 1].sum() == 3000  # the second box holds all points
    used = torch.where(index < 0, 3000, index)
    assert (used.diff(dim=-1) >= 0).all() and ((index >= 0).sum(-1) == count.clamp(max=5)).all()


def test_points_in_the_margin_belong_to_the_outermost_cells(device):
    points = torch.tensor([[[2.05, 0, 0], [-2.05, 0, 0], [0, -1.05, 0], [0, 0, 0.75]]])
    boxes = torch.tensor([[box(), box(l=0.0)]])
    call = points.to(device), boxes.to(device), 2
    assert torchvox.box_query(*call).count.tolist() == [[1, 0]]
    index, count = torchvox.box_query(*call, grid=[2, 1, 2], margin=0.1)
    assert count.tolist() == [[[0, 1, 0, 3], [0] * 4]]
    assert index[0, 0].tolist() == [[-1, -1], [1, -1], [-1, -1], [0, 2]]


@given(
    n=st.integers(0, 70), boxes=st.integers(0, 3), k=st.integers(0, 9), seed=st.integers(0, 99),
    grid=st.none() | st.lists(st.integers(1, 4), min_size=3, max_size=3),
    margin=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_any_small_call(device, n, boxes, k, seed, grid, margin):
    g = torch.Generator().manual_seed(seed)
    points = torch.randint(-6, 7, (2, n, 3), generator=g) / 2
    options = {"grid": grid, "margin": margin, "lengths": torch.tensor([n, n // 2])}
    rows = torch.stack(random_pairs(boxes, seed, scale=1.0, sizes=(1.0, 5.0)))
    check_op("box_query", device, points, rows, k, **options)
