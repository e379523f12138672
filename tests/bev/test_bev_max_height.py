# SPDX-License-Identifier: Apache-2.0
"""bev_max_height and its indexed twin: the highest point of each cell, and how it is coded."""

import math

import numpy as np
import pytest
import torch
from bev_cases import RANGE, SIZE, assert_all_as_reference, polluted
from helpers import check_op


def heights(*z, lo=0.0, hi=1.0, dtype=torch.float32):
    """Points of one cell, and the arguments of a one-cell raster over [lo, hi) in z."""
    points = torch.tensor([[0.5, 0.5, v] for v in z], dtype=dtype)
    return points, [0.0, 0.0, lo, 1.0, 1.0, hi], [1, 1]


def code(device, dtype, z, lo, hi, **options):
    points, *grid = heights(z, lo=lo, hi=hi, dtype=options.pop("points", torch.float32))
    out = check_op("bev_max_height", device, points, *grid, out_dtype=dtype, **options)
    assert out[0].dtype == dtype
    return int(out[0].int())


@pytest.mark.parametrize(
    ("z", "lo", "top", "height"),
    [
        *((z, -1.0, 0, 0.0) for z in ([-0.0, 0.0], [0.0, -0.0], [-0.0])),  # +0 is reported
        ([0.1, 0.7, 0.7, 0.7, 0.2], 0.0, 1, 0.7),  # of ties the lowest row
        ([-0.9, -0.1, -0.5], -1.0, 1, -0.1),
        ([1e-45, 2.8e-45, 0.0], 0.0, 1, 2.8e-45),
        ([0.5, 0.5 + 1e-12], 0.0, 0, 0.5),  # rounded before they are compared
        ([1 - 1e-12], 0.0, 0, 1.0),  # may round to the upper bound
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_top_of_one_cell(device, z, lo, top, height, dtype):
    if dtype == torch.float32 and np.float32(max(z)) == 1:
        z, height = [0.75], 0.75
    points, *grid = heights(*z, lo=lo, dtype=dtype)
    found, index, counts = assert_all_as_reference(device, points, *grid, fill=3.0)
    assert index.item() == top and found.item() == np.float32(height) and counts[0, 1] == len(z)
    assert math.copysign(1, found.item()) == math.copysign(1, height)


@pytest.mark.parametrize("fill", [0.0, -5.0, float("nan"), float("inf"), 1e30, 0.1])
def test_empty_cells_hold_the_fill_and_integers_0(device, fill):
    height, top, _ = assert_all_as_reference(device, polluted(300), fill=fill)
    empty = height[top < 0]
    expected = torch.full_like(empty, fill)
    assert len(empty) and torch.equal(empty.nan_to_num(7.0), expected.nan_to_num(7.0))
    for dtype in (torch.uint8, torch.uint16):
        call = (polluted(300), RANGE, SIZE)
        for name in ("bev_max_height", "bev_max_height_with_index"):
            codes, *_ = check_op(name, device, *call, out_dtype=dtype, fill=fill)
            assert (codes.int()[top < 0] == 0).all()


BELOW = float(np.nextafter(np.float32(1), np.float32(0)))


@pytest.mark.parametrize(
    ("dtype", "z", "lo", "hi", "options", "expected"),
    [
        (torch.uint8, -3.0, -3.0, 1.0, {}, 1),  # tells ground from empty unless asked not to
        (torch.uint8, -3.0, -3.0, 1.0, {"lowest_code": 0}, 0),
        (torch.uint8, -3.0, -3.0, 1.0, {"lowest_code": 254}, 254),
        (torch.uint8, BELOW, 0.0, 1.0, {}, 254),  # reaches 255 only by rounding
        (torch.uint8, BELOW, 0.0, 1.0, {"lowest_code": 0}, 254),
        (torch.uint8, BELOW, -1e6, 1.0, {}, 255),  # z - z0 rounds up to z1 - z0, so t is 1
        (torch.uint8, 1 - 1e-12, 0.0, 1.0, {"points": torch.float64}, 255),
        (torch.uint16, 0.0, 0.0, 200.0, {}, 1),  # millimeters
        (torch.uint16, 0.25, 0.0, 200.0, {}, 251),
        (torch.uint16, 65.5, 0.0, 200.0, {}, 65501),
        (torch.uint16, 65.5335, 0.0, 200.0, {}, 65534),
        (torch.uint16, 65.5345, 0.0, 200.0, {}, 65535),  # saturates
        (torch.uint16, 65.6, 0.0, 200.0, {}, 65535),
        (torch.uint16, 1e30, 0.0, 2e30, {}, 65535),
        (torch.uint16, -3.0, -3.0, 1.0, {}, 1),
    ],
)
def test_codes(device, dtype, z, lo, hi, options, expected):
    assert code(device, dtype, z, lo, hi, **options) == expected


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_equal_codes_do_not_move_the_index(device, dtype):
    points, *grid = heights(0.50001, 0.50002, lo=0.0, hi=30.0)
    _, top, _ = check_op("bev_max_height_with_index", device, points, *grid, out_dtype=dtype)
    assert top.item() == 1  # the higher point, though both have one code
