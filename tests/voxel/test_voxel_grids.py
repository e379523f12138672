# SPDX-License-Identifier: Apache-2.0
"""Grid sizes, very large grids, the limits of keys, and the warnings of the Python functions."""

import warnings

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import (
    FOUND,
    GRID,
    KEPT,
    ORDERS,
    OVER_POINTS,
    OVER_VOXELS,
    check_op,
    check_voxelize,
    street_cloud,
)

import torchvox
from torchvox import reference

NAMED_GRIDS = {
    "kitti_pillars": ([0.16, 0.16, 4], [0, -39.68, -3, 69.12, 39.68, 1], (432, 496, 1)),
    "sweep": ([0.2, 0.2, 0.2], [-54, -54, -5, 54, 54, 3], (540, 540, 40)),
    "nuscenes_voxels": ([0.075, 0.075, 0.2], [-54, -54, -5, 54, 54, 3], (1440, 1440, 40)),
    "waymo_pillars": ([0.32, 0.32, 6], [-74.88, -74.88, -2, 74.88, 74.88, 4], (468, 468, 1)),
    "halves away from zero": ([0.16, 1, 1], [0, 0, 0, 50, 0.5, 1.5], (313, 1, 2)),
    "2.5 and 140.8": ([1, 0.5, 1], [0, 0, 0, 2.5, 70.4, 1], (3, 141, 1)),
    # Adding 0.5 first would give 8388610.
    "large": ([1, 1, 1], [0, 0, 0, 2.0**24, 8388609.0, 1], (2**24, 8388609, 1)),
}


@pytest.mark.parametrize(("size", "bounds", "cells"), NAMED_GRIDS.values(), ids=NAMED_GRIDS.keys())
def test_grid_size_of_common_configurations(size, bounds, cells):
    assert tuple(torchvox.grid_size(size, bounds)) == cells
    assert reference.grid_size(size, bounds) == cells


@pytest.mark.parametrize("size", [[0.2] * 2, [0.2, 0.2, 0.0], [2e-7, 1.0, 1.0]])
def test_grid_size_refuses(size):
    with pytest.raises(ValueError, match=r"^grid_size: .+, got .+"):
        torchvox.grid_size(size, [0.0] * 3 + [4.0] * 3)


def corners_and_center(cells) -> torch.Tensor:
    """The first and last cell along every axis, the middle, and one cell outside."""
    per_axis = [torch.tensor([0.5, n // 2 + 0.5, n - 0.5], dtype=torch.float64) for n in cells]
    cloud = torch.cartesian_prod(*per_axis)
    outside = torch.tensor([[n + 0.5 for n in cells], [-0.5, 0.5, 0.5]], dtype=torch.float64)
    return torch.cat([cloud, outside, cloud])


# Unit voxels; the product of the last is 2^62.
HUGE = [
    (2**11, 2**11, 2**11),
    (2**23, 2**23, 1),
    (2**24, 2**24, 2**14),
    (2**14, 2**24, 2**24),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cells", HUGE)
def test_keys_past_32_bits(device, cells, order):
    cloud = corners_and_center(cells)
    grid = ([1.0] * 3, [0.0] * 3 + [float(n) for n in cells])
    _, indices, *_, counts = check_voxelize(device, cloud, *grid, 5, -1, order=order)
    distinct = len({tuple(p) for p in cloud[:27].tolist()})
    assert counts[0, :2].tolist() == [distinct, distinct]
    assert indices[:, 1:].amax(dim=0).tolist() == [n - 1 for n in cells[::-1]]
    check_op("voxel_map", device, cloud.float(), *grid, 5, -1, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_cells_times_samples_past_32_bits(device, order):
    """Each sample alone fits 32 bits; a 32-bit merged key would join voxels of two samples."""
    cells = (1440, 1440, 40)
    cloud = corners_and_center(cells).float()
    batch = torch.cat([cloud] * 60)
    offsets = torch.arange(61) * len(cloud)
    _, indices, *_, counts = check_voxelize(
        device, batch, [1.0] * 3, [0.0] * 3 + [float(n) for n in cells], 1, -1,
        batch_offsets=offsets, order=order,
    )  # fmt: skip
    assert counts[1:, 0].tolist() == [27] * 60
    assert_same_bits(indices[: 27 * 60, 0], torch.arange(60).int().repeat_interleave(27))


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
