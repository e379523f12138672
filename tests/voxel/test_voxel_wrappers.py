# SPDX-License-Identifier: Apache-2.0
"""The Python functions over the ops: names, trimming, warnings."""

import warnings

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import FOUND, GRID, KEPT, OVER_POINTS, OVER_VOXELS, run_op, street_cloud

import torchvox

CLOUD = street_cloud(500, seed=95)


def test_voxelize_returns_named_tensors(device):
    voxels = torchvox.voxelize(CLOUD.to(device), *GRID, 3, 100)
    assert voxels._fields == ("features", "indices", "num_points", "point_voxel", "counts")
    for a, b in zip(voxels, run_op("voxelize", device, CLOUD, *GRID, 3, 100), strict=True):
        assert_same_bits(a.cpu(), b)


@pytest.mark.parametrize("max_voxels", [50, 2000, -1])
def test_trim_narrows_to_the_rows_in_use(device, max_voxels):
    points = CLOUD.to(device)
    full = torchvox.voxelize(points, *GRID, 3, max_voxels)
    voxels = torchvox.voxelize(points, *GRID, 3, max_voxels, trim=True)
    kept = int(full.counts[0, KEPT])
    for name in ("features", "indices", "num_points"):
        trimmed, whole = getattr(voxels, name), getattr(full, name)
        assert_same_bits(trimmed.cpu(), whole[:kept].cpu(), name)
    assert (voxels.indices >= 0).all()
    assert_same_bits(voxels.point_voxel.cpu(), full.point_voxel.cpu())
    assert_same_bits(voxels.counts.cpu(), full.counts.cpu())


def test_trim_of_nothing_gives_empty_tensors(device):
    voxels = torchvox.voxelize(CLOUD.to(device) + 100, *GRID, 3, 10, trim=True)
    assert voxels.features.shape == (0, 3, 4)
    assert voxels.indices.shape == (0, 4)


def test_overflow_warns_raises_or_is_ignored(device):
    points = CLOUD.to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet = torchvox.voxelize(points, *GRID, 3, 10, trim=True)
        torchvox.voxelize(points, *GRID, 3, 500, trim=True, on_overflow="warn")
        torchvox.voxelize(points, *GRID, 3, 500, trim=True, on_overflow="raise")
    assert quiet.counts[0, FOUND] > quiet.counts[0, KEPT] == 10
    found, dropped = int(quiet.counts[0, FOUND]), int(quiet.counts[0, OVER_VOXELS])
    assert dropped != quiet.counts[0, OVER_POINTS]
    words = f"kept 10 of {found} voxels, so {dropped} points were dropped: raise max_voxels"
    with pytest.warns(UserWarning, match=words):
        torchvox.voxelize(points, *GRID, 3, 10, trim=True, on_overflow="warn")
    with pytest.raises((RuntimeError, ValueError, OverflowError), match=words):
        torchvox.voxelize(points, *GRID, 3, 10, trim=True, on_overflow="raise")


def test_more_than_2_to_the_23_cells_along_an_axis_warns_in_python_only(device):
    points = torch.zeros(3, 4, device=device)
    grid = ([1.0] * 3, [0.0, 0.0, 0.0, 2.0**23 + 1, 1.0, 1.0])
    with pytest.warns(UserWarning):
        torchvox.voxelize(points, *grid, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.ops.torchvox.voxelize(points, *grid, 1, 1)
        torchvox.voxelize(points, [1.0] * 3, [0.0, 0.0, 0.0, 2.0**23, 1.0, 1.0], 1, 1)


@pytest.mark.parametrize("name", ["voxelize", "voxel_map"])
@pytest.mark.parametrize("origin", [0.0, 2.0**20])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fine_cells_of_a_small_range_warn_wherever_it_lies(name, origin, axis):
    size, lower, upper = [1.0] * 3, [origin] * 3, [origin + 4.0] * 3
    size[axis] = 4.0 / (2**23 + 1000)
    with pytest.warns(UserWarning, match="2\\^23"):
        getattr(torchvox, name)(torch.zeros(3, 4), size, lower + upper, 1, 1)


@pytest.mark.parametrize(
    "options",
    [{"order": "zyx"}, {"bounds": "range"}, {"out_dtype": torch.half}, {"center_relative": True}],
)
def test_each_option_reaches_the_operator(device, options):
    points = 8 * torch.rand(400, 4, device=device) - 4
    for call in ({}, options):
        expected = torch.ops.torchvox.voxelize(points, *GRID, 3, 500, reduce="mean", **call)
        assert_same_bits(
            torchvox.voxelize(points, *GRID, 3, 500, reduce="mean", **call), expected, str(call)
        )
