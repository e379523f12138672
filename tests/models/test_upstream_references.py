# SPDX-License-Identifier: Apache-2.0
"""What the re-implemented detectors are made of, against counts and areas known by other means."""

import math

import pytest
import torch
from upstream.boxes import anchors as anchor_table
from upstream.boxes import (
    both_ends,
    cell_centers,
    circled,
    limit_period,
    overlaps,
    rectangles,
    suppressed,
)
from upstream.pillars import decorated, encoded, pillar_layers, pillars_of
from upstream_nets import CAR, CYCLIST, GRID, KITTI, PEDESTRIAN, small_points


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([0.0, 0.0, 4.0, 2.0, 0.3], 1.0),
        ([0.0, 0.0, 4.0, 2.0, 0.3 + math.pi], 1.0),
        ([0.0, 0.0, 2.0, 1.0, 0.3], 0.25),
        ([0.0, 0.0, 2.0, 4.0, 0.3], 4 / 12),
        ([30.0, 0.0, 4.0, 2.0, 0.3], 0.0),
        ([4 * math.cos(0.3), 4 * math.sin(0.3), 4.0, 2.0, 0.3], 0.0),
        ([2 * math.cos(0.3), 2 * math.sin(0.3), 4.0, 2.0, 0.3], 4 / 12),
    ],
)
@pytest.mark.parametrize("far", [0.0, 1e5])
def test_overlaps_are_those_of_the_areas(other, expected, far):
    one = torch.tensor([0.0, 0.0, 4.0, 2.0, 0.3], dtype=torch.float64)
    others = torch.tensor([other], dtype=torch.float64)
    one[:2] += far
    others[:, :2] += far
    # Coordinates of 1e5 m are exact to 1e-11 m.
    assert float(overlaps(one, others)) == pytest.approx(expected, abs=1e-9)


def test_squares_turned_by_45_degrees_share_an_octagon():
    one = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    turned = torch.tensor([[0.0, 0.0, 1.0, 1.0, math.pi / 4]], dtype=torch.float64)
    octagon = 2 * (math.sqrt(2) - 1)
    assert float(overlaps(one, turned)) == pytest.approx(octagon / (2 - octagon), abs=1e-12)


def test_overlaps_are_symmetric_over_random_rectangles():
    generator = torch.Generator().manual_seed(0)
    table = torch.rand(60, 5, generator=generator, dtype=torch.float64)
    table[:, 2:4] += 0.1
    table[:, 4] *= 7
    square = torch.stack([overlaps(row, table) for row in table])
    assert torch.allclose(square, square.T, atol=1e-12)
    assert square.diagonal().sub(1).abs().max() < 1e-12
    assert square.min() >= 0 and square.max() <= 1 + 1e-12


def test_suppression_is_greedy_and_ties_go_to_the_lower_row():
    boxes = torch.tensor([[0.0, 0, 0, 4, 2, 1, 0], [0.1, 0, 0, 4, 2, 1, 0], [9, 0, 0, 4, 2, 1, 0]])
    flat = rectangles(boxes, clockwise=False)
    assert suppressed(flat, torch.tensor([0.5, 0.5, 0.4]), 0.3) == [0, 2]
    assert suppressed(flat, torch.tensor([0.4, 0.5, 0.6]), 0.3) == [2, 1]
    assert suppressed(flat[:0], torch.zeros(0), 0.3) == []
    assert circled(flat[:, :2], torch.tensor([0.4, 0.5, 0.4]), 0.02) == [1, 2]


def test_a_clockwise_turn_mirrors_the_angle():
    box = torch.tensor([[1.0, 2, 3, 4, 5, 6, 0.25]])
    assert rectangles(box, clockwise=True).tolist() == [[1, 2, 4, 5, -0.25]]


def test_kitti_has_321408_anchors_from_end_to_end_or_at_cell_centers():
    x, y = both_ends(0.0, 69.12, 216), both_ends(-39.68, 39.68, 248)
    table = anchor_table(x, y, (CAR, PEDESTRIAN, CYCLIST), (0.0, 1.57))
    assert table[..., 0].numel() == 321_408
    assert x[-1] == pytest.approx(69.12) and y[0] == pytest.approx(-39.68)
    assert table[0, 0, :, 1].tolist()[0] == pytest.approx([0, -39.68, -1.78, 3.9, 1.6, 1.56, 1.57])
    centers = cell_centers(0.0, 69.12, 216)
    assert centers[0] == pytest.approx(0.16) and centers[-1] == pytest.approx(68.96)


@pytest.mark.parametrize(("offset", "low"), [(0.0, 0.0), (1.0, -math.pi), (0.5, -math.pi / 2)])
def test_limited_angles_lie_in_one_period(offset, low):
    values = torch.linspace(-20, 20, 999, dtype=torch.float64)
    limited = limit_period(values, offset, math.pi)
    assert limited.min() >= low and limited.max() < low + math.pi
    assert torch.allclose(torch.sin(2 * limited), torch.sin(2 * values))


def test_pillars_keep_what_comes_first():
    points = small_points(4)
    pillars = pillars_of(points, GRID)
    assert len(pillars.cells) == GRID.max_pillars
    assert int(pillars.counts().max()) == GRID.max_points
    assert pillars.rows.isfinite().all()
    everything = pillars_of(points, KITTI)
    assert GRID.shape == (32, 32) and KITTI.shape == (496, 432)
    # Slots count the points of a pillar in their order.
    first = everything.slot == 0
    assert int(first.sum()) == len(everything.cells)


def test_a_padded_pillar_also_has_the_maximum_of_rows_of_zeros():
    torch.manual_seed(0)
    layers = pillar_layers(10, (8,)).eval()
    layers[0].norm.bias.data += 1.0
    pillars = pillars_of(torch.tensor([[1.1, 1.2, -1.0, 0.5], [1.3, 1.1, -1.0, 0.1]]), GRID)
    rows = decorated(pillars, GRID)
    plain, padded = (encoded(layers, pillars, rows, n) for n in (0, GRID.max_points))
    with torch.no_grad():
        zeros = layers[0].norm(torch.zeros(1, 8)).relu()
    assert torch.equal(padded, torch.maximum(plain, zeros))
    assert not torch.equal(padded, plain)


def test_legacy_rows_have_offsets_in_place_of_coordinates():
    pillars = pillars_of(small_points(4), GRID)
    legacy, now = (decorated(pillars, GRID, 2, flag) for flag in (True, False))
    assert torch.equal(legacy[:, :2], now[:, -2:])
    assert torch.equal(legacy[:, 2:], now[:, 2:])
    assert now.size(1) == 9
    assert float(now[:, -2:].abs().max()) <= 0.25 + 1e-5
