# SPDX-License-Identifier: Apache-2.0
"""max_points and max_voxels: what is kept, what is counted, where the rows lie."""

import pytest
import torch
from voxel_cases import (
    FOUND,
    GRID,
    KEPT,
    ORDERS,
    REDUCTIONS,
    check_op,
    check_voxelize,
    street_cloud,
)


def cloud_with_a_hot_voxel() -> torch.Tensor:
    """1200 points of a street and 400 points of one voxel, shuffled."""
    generator = torch.Generator().manual_seed(1)
    hot = torch.rand(400, 4, generator=generator) * 0.19
    street = street_cloud(1200, seed=11)
    return torch.cat([street, hot])[torch.randperm(1600, generator=generator)]


HOT = cloud_with_a_hot_voxel()
TOTAL = 847  # voxels of HOT


@pytest.mark.one_of("order", "reduce")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("max_points", [0, 1, 5, 33, 1000])
@pytest.mark.parametrize("max_voxels", [0, 1, 20, TOTAL - 1, TOTAL, TOTAL + 1, -1])
def test_every_pair_of_caps(device, max_voxels, max_points, reduce, order):
    check_op("voxel_map", device, HOT, *GRID, max_points, max_voxels, order=order)
    if max_points == 1000 and max_voxels == -1:
        max_voxels = TOTAL + 3  # a capacity of N rows of 1000 slots is too much for a test
    features, *_, counts = check_voxelize(
        device, HOT, *GRID, max_points, max_voxels, order=order, reduce=reduce
    )
    assert counts[0, FOUND] == TOTAL
    assert counts[0, KEPT] == (TOTAL if max_voxels < 0 else min(TOTAL, max_voxels))
    assert counts[0, 2:7].sum() == len(HOT)
    if max_points == 0:  # voxels without features
        assert (features == 0).all() and counts[0, 2] == 0
