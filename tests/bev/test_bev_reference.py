# SPDX-License-Identifier: Apache-2.0
"""The reference itself, against values worked out by hand."""

import math

import numpy as np
import torch

from torchvox.reference import bev as reference

RANGE, SIZE = [0.0, 0.0, -1.0, 3.0, 2.0, 3.0], [3, 2]  # cells of 1 m


def points(*rows):
    return torch.tensor(rows, dtype=torch.float32)


FOUR = points(
    (0.5, 0.5, 1.0, 0.25), (0.9, 0.1, 2.0, 0.50), (2.5, 1.5, -0.5, 0.75), (9.0, 0.5, 0.0, 1.00)
)


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
