# SPDX-License-Identifier: Apache-2.0
"""bev_max_height and its indexed twin: the highest point of each cell, and how it is coded."""

import math

import numpy as np
import pytest
import torch
from bev_cases import (
    RANGE,
    SIZE,
    assert_all_as_reference,
    assert_as_reference,
    call,
    cloud,
    polluted,
)

ONE = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def heights(*z, lo=0.0, hi=1.0):
    """Points of one cell, and the arguments of a one-cell raster over [lo, hi) in z."""
    points = torch.tensor([[0.5, 0.5, v] for v in z])
    return points, [0.0, 0.0, lo, 1.0, 1.0, hi], [1, 1]


def code(device, dtype, z, lo, hi, **options):
    points, *grid = heights(z, lo=lo, hi=hi)
    out = assert_as_reference(device, "bev_max_height", points, *grid, out_dtype=dtype, **options)
    assert out[0].dtype == dtype
    return int(out[0].int())


def test_ties_go_to_the_lowest_row(device):
    _, top, _ = call(device, "bev_max_height_with_index", *heights(0.1, 0.7, 0.7, 0.7, 0.2))
    assert top.item() == 1


def test_signed_zeros_are_equal_and_reported_positive(device):
    for z in ([-0.0, 0.0], [0.0, -0.0], [-0.0]):
        points, *grid = heights(*z, lo=-1.0)
        height, top, _ = assert_all_as_reference(device, points, *grid, fill=3.0)
        assert top.item() == 0 and math.copysign(1, height.item()) == 1 and height.item() == 0


def test_negative_heights_keep_their_order(device):
    points, *grid = heights(-0.9, -0.1, -0.5, lo=-1.0)
    height, top, _ = assert_all_as_reference(device, points, *grid)
    assert top.item() == 1 and height.item() == np.float32(-0.1)


def test_denormal_heights(device):
    points, *grid = heights(1e-45, 2.8e-45, 0.0)
    height, top, _ = assert_all_as_reference(device, points, *grid)
    assert top.item() == 1 and height.item() == 2 * float(np.float32(1e-45))


@pytest.mark.parametrize("fill", [0.0, -5.0, float("nan"), float("inf"), 1e30, 0.1])
def test_empty_cells_hold_the_fill(device, fill):
    height, top, _ = assert_all_as_reference(device, polluted(300), fill=fill)
    empty = height[top < 0]
    expected = torch.full_like(empty, fill)
    assert len(empty) and torch.equal(empty.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("column", [2, 3])
def test_the_index_fetches_any_attribute_of_the_top_point(device, column):
    points = cloud(3000)
    height, top, _ = call(device, "bev_max_height_with_index", points, RANGE, SIZE)
    image, _ = call(device, "bev_rasterize", points, RANGE, SIZE, ["height_max", "intensity_top"])
    filled = top >= 0
    fetched = points[top[filled].long(), column]
    assert torch.equal(fetched, image[:, column - 2][filled])
    assert column == 3 or torch.equal(fetched, height[filled])


def test_every_filled_cell_holds_the_largest_height(device):
    points = cloud(3000)
    height, _ = call(device, "bev_max_height", points, RANGE, SIZE, fill=-100.0)
    expected = np.full((20, 32), -100.0, np.float32)
    for x, y, z, _ in points.numpy():
        if all(RANGE[k] <= v < RANGE[k + 3] for k, v in enumerate((x, y, z))):
            cell = int((y + 6) // np.float32(0.6)), int((x + 8) // np.float32(0.5))
            expected[cell] = max(expected[cell], z)
    assert (height[0].numpy() == expected).mean() > 0.99  # // may round a face the other way


@pytest.mark.parametrize("dtype", [torch.float32, None])
def test_float32_is_the_default(device, dtype):
    height, _ = call(device, "bev_max_height", polluted(), RANGE, SIZE, out_dtype=dtype)
    assert height.dtype == torch.float32


@pytest.mark.parametrize("lowest_code", [0, 1, 2, 100, 254])
def test_uint8_codes(device, lowest_code):
    options = {"out_dtype": torch.uint8, "lowest_code": lowest_code}
    for name in ("bev_max_height", "bev_max_height_with_index"):
        codes, *_ = assert_as_reference(device, name, polluted(), RANGE, SIZE, **options)
        assert codes[codes > 0].min() >= lowest_code


def test_uint8_tells_ground_from_empty_unless_asked_not_to(device):
    assert code(device, torch.uint8, -3.0, -3.0, 1.0) == 1
    assert code(device, torch.uint8, -3.0, -3.0, 1.0, lowest_code=0) == 0
    assert code(device, torch.uint8, -3.0, -3.0, 1.0, lowest_code=254) == 254


def test_uint8_reaches_255_only_by_rounding(device):
    below = float(np.nextafter(np.float32(1), np.float32(0)))
    assert code(device, torch.uint8, below, 0.0, 1.0) == 254
    assert code(device, torch.uint8, below, 0.0, 1.0, lowest_code=0) == 254
    # z - z0 rounds up to z1 - z0, so t is 1.
    assert code(device, torch.uint8, below, -1e6, 1.0) == 255


def test_uint16_counts_millimeters_and_saturates(device):
    assert code(device, torch.uint16, 0.0, 0.0, 200.0) == 1
    assert code(device, torch.uint16, 0.25, 0.0, 200.0) == 251
    assert code(device, torch.uint16, 65.5, 0.0, 200.0) == 65501
    assert code(device, torch.uint16, 65.5335, 0.0, 200.0) == 65534
    assert code(device, torch.uint16, 65.5345, 0.0, 200.0) == 65535
    assert code(device, torch.uint16, 65.6, 0.0, 200.0) == 65535
    assert code(device, torch.uint16, 1e30, 0.0, 2e30) == 65535
    assert code(device, torch.uint16, -3.0, -3.0, 1.0) == 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_integer_outputs_ignore_the_fill(device, dtype):
    for fill in (0.0, 7.0, float("nan")):
        height, top, _ = assert_as_reference(
            device,
            "bev_max_height_with_index",
            polluted(300),
            RANGE,
            SIZE,
            out_dtype=dtype,
            fill=fill,
        )
        assert (height.int()[top < 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_equal_codes_do_not_move_the_index(device, dtype):
    points, *grid = heights(0.50001, 0.50002, lo=0.0, hi=30.0)
    _, top, _ = assert_as_reference(
        device, "bev_max_height_with_index", points, *grid, out_dtype=dtype
    )
    assert top.item() == 1  # the higher point, though both have one code


def test_float64_heights_are_rounded_before_they_are_compared(device):
    points, *grid = heights(0.5, 0.5)
    points = points.double()
    points[1, 2] += 1e-12
    height, top, _ = assert_all_as_reference(device, points, *grid)
    assert top.item() == 0 and height.item() == 0.5


def test_a_float64_height_may_round_to_the_upper_bound(device):
    points, *grid = heights(1 - 1e-12)
    points = points.double()
    points[0, 2] = 1 - 1e-12
    height, _, counts = assert_all_as_reference(device, points, *grid)
    assert height.item() == 1.0 and counts[0, 1] == 1
    codes, *_ = assert_as_reference(device, "bev_max_height", points, *grid, out_dtype=torch.uint8)
    assert codes.item() == 255


def test_one_cell_with_all_points(device):
    rng = np.random.default_rng(0)
    z = np.round(rng.random(50_000), 2).astype(np.float32)
    points = torch.full((50_000, 4), 0.5)
    points[:, 2] = torch.from_numpy(z)
    _, top, counts = assert_all_as_reference(device, points, ONE, [1, 1])
    assert top.item() == np.flatnonzero(z == z[z < 1].max())[0]
    assert counts[0].tolist() == [1, (z < 1).sum(), (z >= 1).sum(), 0]
    assert_all_as_reference(device, points, ONE, [64, 64])


def test_nothing_in_range(device):
    height, top, counts = assert_all_as_reference(device, cloud(100) + 1000, fill=2.0)
    assert (height == 2).all() and (top == -1).all() and counts.tolist() == [[0, 0, 100, 0]] * 2


def test_no_points(device):
    height, top, counts = assert_all_as_reference(device, torch.zeros(0, 4))
    assert height.shape == (1, 20, 32) and (top == -1).all() and (counts == 0).all()


def test_only_nan(device):
    _, top, counts = assert_all_as_reference(device, torch.full((9, 4), float("nan")))
    assert (top == -1).all() and counts.tolist() == [[0, 0, 0, 9]] * 2


@pytest.mark.parametrize("f", [3, 4, 5, 16])
def test_any_number_of_columns(device, f):
    assert_all_as_reference(device, cloud(500, f=f))


@pytest.mark.slow
@pytest.mark.parametrize("orientation", ["grid", "image", "north_up"])
def test_a_large_raster(device, orientation):
    points = cloud(60_000, seed=4)
    assert_all_as_reference(device, points, size=[1024, 750], orientation=orientation)
