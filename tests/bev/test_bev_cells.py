# SPDX-License-Identifier: Apache-2.0
"""Which points count, and in which cell they land: ends of axes, orientations, samples, padding."""

import numpy as np
import pytest
import torch
from bev_cases import ORIENTATIONS, RANGE, SIZE, assert_all_as_reference, call, polluted
from hypothesis import given, settings
from hypothesis import strategies as st

# (lower, upper, cells, the float below the upper bound divides to the number of cells)
AXES = [
    (-50.0, 50.0, 1024, True),
    (-25.0, 25.0, 608, True),
    (0.0, 70.4, 704, False),
    (0.0, 100.0, 1024, False),
]


NON_FINITE = [float("nan"), float("inf"), -float("inf")]


def edge_values(lo, hi):
    lo, hi = np.float32(lo), np.float32(hi)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    values = [lo, hi, np.nextafter(lo, up), np.nextafter(lo, down), np.nextafter(hi, up)]
    values += [np.nextafter(hi, down), np.nextafter(np.nextafter(hi, down), down)]
    return np.array([*values, -0.0, 0.0, 1e-45, -1e-45, 1e30, -1e30], np.float32)


def on_axis(axis, values, others):
    points = torch.tensor([others] * len(values), dtype=torch.float32)
    points[:, axis] = torch.from_numpy(values)
    return points


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("lo", "hi", "n", "escapes"), AXES)
def test_both_ends_and_their_neighbors(device, lo, hi, n, escapes, axis):
    bounds, size = [0.0, 0.0, -1.0, 1.0, 1.0, 1.0], [1, 1]
    bounds[axis], bounds[axis + 3], size[axis] = lo, hi, n
    points = on_axis(axis, edge_values(lo, hi), [0.5, 0.5, 0.0])
    points[:, 2] = torch.arange(len(points)) * 0.01
    below = np.float32([np.nextafter(np.float32(hi), np.float32(0))])
    below = on_axis(axis, below, [0.5, 0.5, 0.0])
    for orientation in ORIENTATIONS:
        assert_all_as_reference(device, points, bounds, size, orientation=orientation)
        _, _, counts = assert_all_as_reference(device, below, bounds, size, orientation=orientation)
        assert counts[0].tolist() == ([0, 0, 1, 0] if escapes else [1, 1, 0, 0])


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        *((k, RANGE[k], [1, 1, 0, 0]) for k in range(3)),
        *((k, RANGE[k + 3], [0, 0, 1, 0]) for k in range(3)),
        *((k, np.nextafter(np.float32(RANGE[k]), np.float32(-9)), [0, 0, 1, 0]) for k in range(3)),
        (0, 1e30, [0, 0, 1, 0]),
        *((k, value, [0, 0, 0, 1]) for k in range(3) for value in NON_FINITE),
    ],
)
def test_where_one_point_is_counted(device, axis, value, expected):
    points = on_axis(axis, np.float32([value]), [0.1, 0.1, 0.1])
    assert call(device, "bev_max_height", points, RANGE, SIZE)[1][0].tolist() == expected
    points[0, (axis + 1) % 3] = float("nan")  # counts as that alone, out of range or not
    assert call(device, "bev_max_height", points, RANGE, SIZE)[1][0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("corner", [(0, 0), (0, 19), (31, 0), (31, 19)])
def test_the_corner_cells(device, corner, orientation):
    ix, iy = corner
    points = torch.tensor([[-8 + 0.5 * ix + 0.1, -6 + 0.6 * iy + 0.1, 1.5]])
    height, _ = call(device, "bev_max_height", points, RANGE, SIZE, orientation=orientation)
    row, col = {"grid": (iy, ix), "image": (31 - ix, 19 - iy), "north_up": (19 - iy, ix)}[
        orientation
    ]
    assert height[0].nonzero().tolist() == [[row, col]]
    assert height.shape == ((1, 32, 20) if orientation == "image" else (1, 20, 32))


@pytest.mark.parametrize("shift", [0.0, 1e4, -3e5])
def test_float64_points_use_the_float32_grid_widened(device, shift):
    bounds = [v + shift for v in RANGE]
    points = polluted().double()
    points[:, :3] += shift + 1e-9
    _, _, counts = assert_all_as_reference(device, points, bounds)
    assert counts[0, 1] > 500


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_small_cloud_in_any_grid(device, data):
    finite = st.floats(-1e6, 1e6, width=32)
    bounds = [sorted(data.draw(st.tuples(finite, finite), "bounds")) for _ in range(3)]
    bounds = [(lo, hi if hi - lo > 1e-3 else lo + 1.0) for lo, hi in bounds]
    lo, hi = [b[0] for b in bounds], [b[1] for b in bounds]
    size = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)), "size")
    values = st.floats(width=32) | st.sampled_from([*lo, *hi, 0.0, -0.0])
    rows = data.draw(st.lists(st.tuples(*[values] * 4), max_size=12), "rows")
    points = torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)
    assert_all_as_reference(device, points, [*lo, *hi], list(size), orientation="image")
