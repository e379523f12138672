# SPDX-License-Identifier: Apache-2.0
"""How many voxels a size gives, beside a plain set of cells."""

import math

import numpy as np
import pytest
import torch

from torchvox.filter import suggest_voxel_size, voxels_by_level


def cells(points, size):
    actual = {
        tuple(math.floor(v / size) for v in p) for p in points.tolist() if np.isfinite(p).all()
    }
    return len(actual)


@pytest.mark.parametrize("shift", [(0, 0, 0), (637000.5, -848400.25, -3), (-0.3, 0.2, 5)])
def test_every_level_counts_the_cells_of_its_size(shift):
    points = np.random.default_rng(0).normal(0, 5, (700, 3)) + shift
    points[:3] = [[np.nan, 0, 0], [0, np.inf, 0], shift]
    actual = voxels_by_level(torch.from_numpy(points), 0.3, 9)
    assert actual == [cells(points, 0.3 * 2**level) for level in range(9)]


def test_no_point_has_no_voxel():
    assert voxels_by_level(torch.full((2, 4), math.nan), 1.0, 3) == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_the_suggested_size_is_nearest_the_target(dtype):
    points = (torch.randn(3000, 3, generator=torch.Generator().manual_seed(0)) * 400).to(dtype)
    size = suggest_voxel_size(points, 0.1)
    here, less, more = (cells(points.double(), s) for s in (size, 0.98 * size, 1.02 * size))
    assert abs(here - 300) <= min(abs(less - 300), abs(more - 300)) and abs(here - 300) < 15
    assert size == float(f"{size:.3g}")


def test_copies_of_points_never_reach_a_target_above_them():
    points = torch.tensor([[0.0, 0, 0], [8, 8, 8]]).repeat(50, 1)
    assert voxels_by_level(points, suggest_voxel_size(points, 0.5), 1) == [2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p: voxels_by_level(p, 0.0, 1), "must be positive, got 0.0"),
        (lambda p: voxels_by_level(p, math.nan, 1), "must be positive, got nan"),
        (lambda p: voxels_by_level(p, 1.0, 22), "levels must be 1 to 21, got 22"),
        (lambda p: voxels_by_level(p, 1e-6, 1), "needs 23 bits on an axis, a key has 21"),
        (lambda p: suggest_voxel_size(p, 0.0), "target must be above 0"),
        (lambda p: suggest_voxel_size(p[:1]), "must differ by a finite extent, got 0.0"),
        (lambda p: suggest_voxel_size(p[:0]), "must differ by a finite extent, got 0.0"),
    ],
)
def test_wrong_arguments_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.tensor([[0.0, 0, 0], [8, 8, 8]]))


def test_the_size_of_the_refusal_works():
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) * 8 + 3
    with pytest.raises(ValueError) as raised:
        voxels_by_level(points, 1e-6, 4)
    size = float(str(raised.value).split(">= ")[1])
    assert voxels_by_level(points, size, 4)[0] == 50
