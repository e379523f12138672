# SPDX-License-Identifier: Apache-2.0
"""The reference itself, against values worked out by hand."""

import math

import numpy as np
import pytest
import torch

from torchvox.reference import bev as reference

RANGE, SIZE = [0.0, 0.0, -1.0, 3.0, 2.0, 3.0], [3, 2]  # cells of 1 m


def points(*rows):
    return torch.tensor(rows, dtype=torch.float32)


FOUR = points(
    (0.5, 0.5, 1.0, 0.25), (0.9, 0.1, 2.0, 0.50), (2.5, 1.5, -0.5, 0.75), (9.0, 0.5, 0.0, 1.00)
)


@pytest.mark.parametrize(
    ("orientation", "expected", "rows"),
    [
        ("grid", [[2, 7, 7], [7, 7, -0.5]], [[1, -1, -1], [-1, -1, 2]]),  # row = y, column = x
        ("north_up", [[7, 7, -0.5], [2, 7, 7]], [[-1, -1, 2], [1, -1, -1]]),  # y up
        ("image", [[-0.5, 7], [7, 7], [7, 2]], [[2, -1], [-1, -1], [-1, 1]]),  # x up, y to the left
    ],
)
def test_where_a_cell_lands(orientation, expected, rows):
    options = {"orientation": orientation, "fill": 7.0}
    height, top, counts = reference.bev_max_height_with_index(FOUR, RANGE, SIZE, **options)
    assert height.tolist() == [expected]
    assert top.tolist() == [rows] and top.dtype == torch.int32
    assert counts.tolist() == [[2, 3, 1, 0]] * 2


def test_codes():
    # t = (2 + 1) / 4 = 0.75 and (-0.5 + 1) / 4 = 0.125
    def codes(dtype, **options):
        return reference.bev_max_height(FOUR, RANGE, SIZE, out_dtype=dtype, **options)[0]

    assert codes(torch.uint8)[0, 0].tolist() == [1 + math.floor(0.75 * 254), 0, 0]
    assert codes(torch.uint8)[0, 1].tolist() == [0, 0, 1 + math.floor(0.125 * 254)]
    assert codes(torch.uint8, lowest_code=0)[0, 0].tolist() == [191, 0, 0]
    assert codes(torch.uint16).int().tolist() == [[[3001, 0, 0], [0, 0, 501]]]


def test_every_channel_of_one_cell():
    cell = points((0.5, 0.5, 1.0, 0.25), (0.9, 0.1, 2.0, 0.5), (0.2, 0.3, 2.0, 3.0))
    channels = [
        "height_max", "height_min", "height_mean", "height_range", "height_norm", "intensity_top",
        "intensity_mean", "intensity_max", "count", "density", "occupancy:4", "slices:2",
    ]  # fmt: skip
    image, counts = reference.bev_rasterize(cell, RANGE, SIZE, channels, fill=-9.0)
    assert image.shape == (1, 16, 2, 3) and image.dtype == torch.float32
    f32 = np.float32
    mean = f32(3.75) / f32(3)
    density = f32(math.log(4) / math.log(64))
    expected = [2, 1, float(f32(5 / 3)), 1, 0.75, 0.5, mean, 3, 3, density, 0, 0, 1, 1, -9, 2]
    assert image[0, :, 0, 0].tolist() == [float(v) for v in expected]
    empty = [-9.0] * 8 + [0.0] * 6 + [-9.0] * 2
    assert image[0, :, 1, 2].tolist() == empty
    assert counts.tolist() == [[1, 3, 0, 0]] * 2


def test_the_height_mean_has_the_stated_steps():
    # The range is 4 m = 2^2, below 2^3: steps of 2^-28 m.
    z = 0.1
    q = round((float(np.float32(z)) + 1) * 2**28)
    expected = np.float32(-1 + q / 2**28)
    image, _ = reference.bev_rasterize(points((0.5, 0.5, z)), RANGE, SIZE, ["height_mean"])
    assert image[0, 0, 0, 0].item() == expected
    tiny = [0.0, 0.0, 0.0, 3.0, 2.0, 1e-40]
    image, _ = reference.bev_rasterize(points((0.5, 0.5, 5e-41)), tiny, SIZE, ["height_mean"])
    assert image[0, 0, 0, 0].item() == float(np.float32(5e-41))
    huge = [0.0, 0.0, -1e38, 3.0, 2.0, 1e38]
    two = points((0.5, 0.5, 9e37), (0.5, 0.5, 5e37))
    image, _ = reference.bev_rasterize(two, huge, SIZE, ["height_mean"])
    assert image[0, 0, 0, 0].item() == pytest.approx(7e37, rel=1e-6)


def test_gradients_by_hand():
    grad = torch.ones(1, 5, 2, 3)
    channels = ["height_max", "height_norm", "height_mean", "intensity_top", "intensity_mean"]
    to_points, to_features = reference.bev_rasterize_backward(grad, FOUR, RANGE, SIZE, channels)
    assert to_features is None
    assert to_points.tolist() == [
        [0, 0, 0.5, 0.5],  # a quarter meter below: only the means
        [0, 0, 1 + 0.25 + 0.5, 1 + 0.5],
        [0, 0, 1 + 0.25 + 1, 1 + 1],
        [0, 0, 0, 0],  # out of range
    ]


def test_samples_and_padding():
    # Rows 0 and 5 are padding, sample 0 is rows 1-2, sample 1 is empty, sample 2 is row 3 of 3-4.
    rows = [(0.5, 0.5, float(k)) for k in range(6)]
    height, top, counts = reference.bev_max_height_with_index(
        points(*rows),
        [0.0, 0.0, 0.0, 1.0, 1.0, 9.0],
        [1, 1],
        batch_offsets=torch.tensor([1, 3, 3, 5]),
        num_valid=torch.tensor([9, 2, 1]),
    )
    assert height.flatten().tolist() == [2, 0, 3] and top.flatten().tolist() == [2, -1, 3]
    assert counts.tolist() == [[2, 3, 0, 0], [1, 2, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]
