# SPDX-License-Identifier: Apache-2.0
"""What the Python functions add to the ops: warnings, and errors where voxels overflow."""

import warnings

import pytest
import torch
from voxel_cases import FOUND, GRID, KEPT, OVER_POINTS, OVER_VOXELS, street_cloud

import torchvox


def test_overflow_warns_raises_or_is_ignored(device):
    points = street_cloud(500, seed=95).to(device)
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


@pytest.mark.parametrize("name", ["voxelize", "voxel_map", "Voxelize"])
@pytest.mark.parametrize("origin", [0.0, 2.0**20])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_more_than_2_to_the_23_cells_along_an_axis_warn_in_python_only(name, origin, axis):
    size, lower, upper = [1.0] * 3, [origin] * 3, [origin + 4.0] * 3
    size[axis] = 4.0 / (2**23 + 1000)
    with pytest.warns(UserWarning, match="2\\^23"):
        if name == "Voxelize":
            torchvox.nn.Voxelize(size, lower + upper)
        else:
            getattr(torchvox, name)(torch.zeros(3, 4), size, lower + upper, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.ops.torchvox.voxelize(torch.zeros(3, 4), size, lower + upper, 1, 1)
        torchvox.voxelize(torch.zeros(3, 4), [1.0] * 3, [0.0, 0.0, 0.0, 2.0**23, 1.0, 1.0], 1, 1)
