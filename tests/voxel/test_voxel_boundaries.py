# SPDX-License-Identifier: Apache-2.0
"""Points at, just below and just above the ends of the range, and on the faces of cells."""

import numpy as np
import pytest
import torch
from voxel_cases import BOUNDS, NON_FINITE, OUT_OF_RANGE, check_voxelize, cloud_on_x

import torchvox
from torchvox import reference

F32 = np.float32


def x_axis(lo: float, hi: float, size: float):
    """A grid with this axis along x and a single cell along y and z."""
    return [size, 1.0, 1.0], [lo, 0.0, 0.0, hi, 1.0, 1.0]


def cells_on_x(device, xs, axis, bounds="grid", dtype=torch.float32):
    """Cell along x of each point, None when it is out of range."""
    cloud = cloud_on_x(xs, 0.5, 0.5, dtype)
    _, indices, _, point_voxel, counts = check_voxelize(
        device, cloud, *x_axis(*axis), 1, -1, bounds=bounds
    )
    assert counts[0, NON_FINITE] == 0
    assert counts[0, OUT_OF_RANGE] == int((point_voxel < 0).sum())
    return [int(indices[row, 3]) if row >= 0 else None for row in point_voxel.tolist()]


# Floats below hi whose quotient nevertheless reaches the grid: (axis, cells, floats).
BELOW_HI_PAST_GRID = [
    ((-54.0, 54.0, 0.2), 540, [53.99999618530273]),
    ((-54.0, 54.0, 0.075), 1440, [53.99999618530273]),
    ((-5.0, 3.0, 8.0), 1, [2.999999761581421]),
    ((-3.0, 1.0, 0.1), 40, [0.9999999403953552, 0.9999998807907104]),
    ((-3.0, 1.0, 4.0), 1, [0.9999999403953552, 0.9999998807907104]),
    ((-76.8, 76.8, 0.32), 480, [76.79999542236328]),
]

# Axes without such a float: the last one below hi is in the last cell.
CLEAN_AXES = [((0.0, 70.4, 0.05), 1408), ((-51.2, 51.2, 0.1), 1024), ((-75.2, 75.2, 0.1), 1504)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(
    ("axis", "cells", "floats"), [*BELOW_HI_PAST_GRID, *((*clean, []) for clean in CLEAN_AXES)]
)
def test_both_ends_of_an_axis_and_the_floats_beside_them(device, axis, cells, floats, bounds):
    """The index is tested even below the upper end."""
    assert torchvox.grid_size(*x_axis(*axis))[0] == cells
    lo, hi = F32(axis[0]), F32(axis[1])
    assert all(F32(x) == x and F32(x) < hi for x in floats)
    last_kept = float(np.nextafter(F32(min(floats, default=hi)), F32(-1e9)))
    outside = float(np.nextafter(lo, F32(-1e9)))
    inside = float(np.nextafter(lo, F32(1e9)))
    found = cells_on_x(device, [*floats, outside, lo, inside, last_kept], axis, bounds)
    assert found == [None] * (len(floats) + 1) + [0, 0, cells - 1]
    assert not floats or cells_on_x(device, [hi], axis, bounds) == [None]


def neighbor(x: float, toward: float) -> float:
    """The float32 next to x."""
    return float(np.nextafter(F32(x), F32(toward)))


TINY = [-1e-45, 1e-45, -1e-40, 1e-40]
PAST = [70.4, 70.45, neighbor(70.5, 0), 70.5]  # of an axis that ends at 70.4, 141 cells reach 70.5
EDGES = {
    "beyond hi, grid": ((-75.2, 75.2, 0.1), [75.2, neighbor(75.2, 1e9)], "grid", [1503] * 2),
    "beyond hi, range": ((-75.2, 75.2, 0.1), [75.2, neighbor(75.2, 1e9)], "range", [None] * 2),
    "a last cell past hi": ((0.0, 70.4, 0.5), PAST, "grid", [140, 140, 140, None]),
    "a last cell cut at hi": (
        (0.0, 70.4, 0.5), [neighbor(70.4, 0), *PAST], "range", [140] + [None] * 4
    ),
    "312.5 cells are 313": (
        (0.0, 50.0, 0.16), [49.99, 50.0, 50.07, 50.09], "grid", [312, 312, 312, None]
    ),
    "zeros in the grid": ((0.0, 4.0, 0.16), [-0.0, 0.0], "grid", [0, 0]),
    "zeros in the range": ((0.0, 4.0, 0.16), [-0.0, 0.0], "range", [0, 0]),
    "denormals": ((0.0, 4.0, 0.16), TINY, "grid", [None, 0, None, 0]),
    # -1e-45 / 4 rounds to -0: cell 0. It is still below lo.
    "a quotient of -0": ((0.0, 4.0, 4.0), TINY, "grid", [0, 0, None, 0]),
    "below lo": ((0.0, 4.0, 4.0), TINY, "range", [None, 0, None, 0]),
    "0.3 / 0.1": ((0.0, 4.0, 0.1), [0.3], "grid", [3]),
}  # fmt: skip
EDGES_OF_FLOAT64 = {
    # fp32(0.1) is a little above 0.1, so 0.3 / fp32(0.1) is below 3 in float64.
    "0.3 / 0.1": ((0.0, 4.0, 0.1), [-0.0, 0.3], "grid", [0, 2]),
    # hi = 0.7 becomes 0.699999988: a float64 point between the two is out of range.
    "hi widened": ((0.0, 0.7, 0.1), [0.69999998, 0.69999999], "range", [6, None]),
}
each_edge = pytest.mark.parametrize(
    ("dtype", "axis", "xs", "bounds", "cells"),
    [
        pytest.param(dtype, *row, id=f"{name}-{dtype}")
        for dtype, rows in ((torch.float32, EDGES), (torch.float64, EDGES_OF_FLOAT64))
        for name, row in rows.items()
    ],
)


@each_edge
def test_points_at_an_edge(device, dtype, axis, xs, bounds, cells):
    assert cells_on_x(device, xs, axis, bounds, dtype) == cells


def test_sums_of_denormals_are_not_flushed(device):
    values = check_voxelize(
        device, cloud_on_x([1e-45, 3e-45, 1e-40], 0.5, 0.5), *x_axis(0.0, 4.0, 4.0), -1, 1,
        reduce="sum",
    )[0]  # fmt: skip
    assert values[0, 0].item() == F32(1e-45) + F32(3e-45) + F32(1e-40) > 0


@pytest.mark.parametrize("size", [0.05, 0.075, 0.1, 0.16, 0.2])
def test_millimeter_clouds_are_divided_not_multiplied(device, size):
    """Coordinates in whole millimeters lie on cell faces, where a reciprocal errs."""
    xs = (np.arange(-4000, 4000) / 1000).astype(F32)
    cells = np.floor((xs - F32(-4.0)) / F32(size))
    by_reciprocal = np.floor((xs - F32(-4.0)) * (F32(1) / F32(size)))
    assert (cells != by_reciprocal).any(), "the cloud must tell them apart"
    n = reference.grid_size(*x_axis(-4.0, 4.0, size))[0]
    expected = [int(c) if c < n else None for c in cells]
    assert cells_on_x(device, xs, (-4.0, 4.0, size)) == expected
