# SPDX-License-Identifier: Apache-2.0
"""box_query: slots, counts and cells against a sorted mask on a lattice with exact faces."""

import pytest
import torch
from box_cases import box, random_pairs
from helpers import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

import torchvox


# 4,096 cells and fewer count in shared memory, more in the output.
@pytest.mark.parametrize("grid", [None, (2, 4, 1), (16, 16, 16), (16, 16, 32)])
def test_points_go_to_cells_of_a_lattice_by_rising_index(grid, device):
    """Coordinates are sixteenths, the sizes powers of two: every face is hit, and no sum rounds."""
    g = torch.Generator().manual_seed(5)
    points = torch.randint(-40, 41, (1, 9000, 3), generator=g) / 16
    boxes = torch.tensor([[box(l=4.0, w=2.0, h=1.0), box(x=0.5, z=-0.25, l=8.0, w=8.0, h=8.0)]])
    mask = torchvox.points_in_boxes(points, boxes, mode="mask")
    assert mask[0, 1].all()
    local = points[:, None] - boxes[..., None, :3]
    size, cells = boxes[..., None, 3:6], torch.tensor(grid or [1, 1, 1])
    cell = torch.floor((local + size / 2) / (size / cells)).clamp(min=0)
    x, y, z = torch.minimum(cell, cells - 1.0).long().unbind(-1)
    cell = (x * cells[1] + y) * cells[2] + z
    mask = mask[:, :, None] & (cell[:, :, None] == torch.arange(cells.prod())[:, None])
    order = mask.byte().argsort(dim=-1, descending=True, stable=True)[..., :5]
    index, count = torch.where(mask.gather(-1, order), order, -1).int(), mask.sum(-1).int()
    if grid is None:
        index, count = index[:, :, 0], count[:, :, 0]
    found = torchvox.box_query(points.to(device), boxes.to(device), 5, grid=grid)
    assert_same_bits((found.index.cpu(), found.count.cpu()), (index, count))


def test_points_in_the_margin_belong_to_the_outermost_cells(device):
    points = torch.tensor([[[2.05, 0, 0], [-2.05, 0, 0], [0, -1.05, 0], [0, 0, 0.75]]])
    boxes = torch.tensor([[box(), box(l=0.0)]])
    call = points.to(device), boxes.to(device), 2
    assert torchvox.box_query(*call).count.tolist() == [[1, 0]]
    found = torchvox.box_query(*call, grid=[2, 1, 2], margin=0.1)
    assert found.count.tolist() == [[[0, 1, 0, 3], [0] * 4]]
    assert found.index[0, 0].tolist() == [[-1, -1], [1, -1], [-1, -1], [0, 2]]


@given(
    n=st.integers(0, 70), boxes=st.integers(0, 3), k=st.integers(0, 9), seed=st.integers(0, 99),
    grid=st.none() | st.lists(st.integers(1, 4), min_size=3, max_size=3),
    margin=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_any_small_call(device, n, boxes, k, seed, grid, margin):
    g = torch.Generator().manual_seed(seed)
    points = torch.randint(-6, 7, (2, n, 3), generator=g) / 2
    call = {"k": k, "grid": grid, "margin": margin, "lengths": torch.tensor([n, n // 2])}
    call["boxes"] = torch.stack(random_pairs(boxes, seed, scale=1.0, sizes=(1.0, 5.0)))
    want = torchvox.reference.box_query(points, **call)
    on = {name: v.to(device) if torch.is_tensor(v) else v for name, v in call.items()}
    assert_same_bits([t.cpu() for t in torchvox.box_query(points.to(device), **on)], want)
