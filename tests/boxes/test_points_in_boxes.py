# SPDX-License-Identifier: Apache-2.0
"""points_in_boxes and box_query: golden counts of a KITTI frame, faces, margins, modes, slots."""

import math

import pytest
import torch
from box_cases import box, kitti_cars, random_pairs
from helpers import assert_same_bits, check_op
from hypothesis import given
from hypothesis import strategies as st

import torchvox

GOLDEN = [1325, 1900, 881, 659, 55, 162]
WITH_A_CENTIMETER = [1425, 1940, 882, 668, 55, 173]  # OpenPCDet's margin on the CPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_cars_of_a_kitti_frame_hold_the_golden_counts(dtype, device):
    points, cars = kitti_cars()
    points, cars = points[None].to(device, dtype), cars[None].to(device, dtype)
    assert torchvox.points_in_boxes(points, cars, mode="count").tolist() == [GOLDEN]
    mask = torchvox.points_in_boxes(points, cars, mode="mask")
    assert mask.sum(-1).tolist() == [GOLDEN]
    index = torchvox.points_in_boxes(points, cars)
    assert torch.bincount(index[0] + 1).tolist() == [points.size(1) - sum(GOLDEN), *GOLDEN]
    wide = torchvox.points_in_boxes(points, cars, mode="count", margin=0.01)
    assert wide.tolist() == [WITH_A_CENTIMETER]


def test_one_sample_needs_no_batch(device):
    points = 6 * torch.rand(200, 3, device=device) - 3
    boxes = torch.tensor([box(), box(x=2.0, yaw=0.5), box(y=-1.0, h=9.0)], device=device)
    for mode in ("index", "mask", "count"):
        of_batch = torchvox.points_in_boxes(points[None], boxes[None], mode=mode)
        assert_same_bits(torchvox.points_in_boxes(points, boxes, mode=mode), of_batch[0])


def test_the_sides_are_open_the_top_and_the_bottom_closed(device):
    points = [[2.0, 0, 0], [-2.0, 0, 0], [0, 1.0, 0], [0, 0, 0.75], [0, 0, -0.75], [1.99, 0.99, 0]]
    points += [[0, 0, 0.7500001], [math.nan, 0, 0], [0, 0, math.inf]]
    held = torchvox.points_in_boxes(
        torch.tensor([points], device=device), torch.tensor([[box()]], device=device)
    )
    assert held.tolist() == [[-1, -1, -1, 0, 0, 0, -1, -1, -1]]


def test_the_first_box_wins_and_boxes_without_volume_hold_nothing(device):
    boxes = [box(l=0.0), box(w=-2.0), box(yaw=math.nan), box(h=0.0), box(x=0.5), box()]
    call = {
        "points": torch.zeros(1, 1, 3, device=device),
        "boxes": torch.tensor([boxes], device=device),
        "margin": 0.1,
    }
    assert torchvox.points_in_boxes(**call).tolist() == [[4]]
    assert torchvox.points_in_boxes(**call, mode="count").tolist() == [[0, 0, 0, 0, 1, 1]]


def test_a_box_moved_and_turned_with_its_points_holds_the_same_ones():
    points = torch.rand(1, 5000, 3, dtype=torch.float64) * 4 - 2
    still = torchvox.points_in_boxes(points, torch.tensor([[box()]], dtype=torch.float64))
    for yaw in (0.3, 2.0, -7.0):
        c, s = math.cos(yaw), math.sin(yaw)
        turn = torch.tensor([[c, s, 0], [-s, c, 0], [0, 0, 1]], dtype=torch.float64)
        moved = points @ turn + torch.tensor([100.0, -50.0, 3.0], dtype=torch.float64)
        boxes = torch.tensor([[box(100.0, -50.0, yaw=yaw, z=3.0)]], dtype=torch.float64)
        assert_same_bits(torchvox.points_in_boxes(moved, boxes), still)


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
