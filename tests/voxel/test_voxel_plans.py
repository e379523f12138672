# SPDX-License-Identifier: Apache-2.0
"""Tables of voxels with few and many keys, and partitions of the points with runs of one key."""

import pytest
import torch
from helpers import forced
from voxel_cases import GRID, ORDERS, check_op, check_voxelize, street_cloud

TABLES = ("dense", "hash", "hash_wide")
CLOUD = street_cloud(3000, seed=51)

each_order = pytest.mark.parametrize("order", ORDERS)
each_table = pytest.mark.parametrize(  # plans of CUDA: the CPU has one table
    ("device", "table"),
    [("cpu", "hash"), *(pytest.param("cuda", table, marks=pytest.mark.gpu) for table in TABLES)],
)


def every_point_its_own_voxel(n: int = 4096) -> torch.Tensor:
    """Neighbors in x: the longest probe chains of a hash."""
    cloud = torch.full((n, 3), 0.5)
    cloud[:, 0] += torch.randperm(n, generator=torch.Generator().manual_seed(1))
    return cloud


@each_order
@each_table
def test_every_table_with_few_points_one_key_or_many(device, table, order):
    with forced(voxel_table=table):
        for n in (0, 1, 2, 500):
            for cloud in (CLOUD[:n], torch.zeros(n, 4), torch.full((n, 4), torch.nan)):
                check_voxelize(device, cloud, *GRID, 2, -1, reduce="mean", order=order)
        wide = ([1.0] * 3, [0.0, 0.0, 0.0, 4096, 1.0, 1.0])
        check_voxelize(device, every_point_its_own_voxel(), *wide, 1, -1, order=order)
        for max_voxels in (0, 3, -1):
            check_op("voxel_map", device, CLOUD, *GRID, 2, max_voxels, order=order)


@pytest.mark.parametrize("n", [1023, 1024, 1025, 16_383, 16_384, 16_385])
def test_runs_and_chunks_of_points_on_the_cpu(n):
    """Points of one voxel in runs of every length, around the chunks that the CPU works in."""
    length = torch.randint(1, 90, (n,), generator=torch.Generator().manual_seed(n))
    voxel = torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(n + 1))
    x = voxel.repeat_interleave(length)[:n].float() + 0.5
    x[::97] = torch.nan
    half = torch.full((n,), 0.5)
    cloud = torch.stack([x, half, half, torch.linspace(-1, 1, n) / 3], dim=1)
    grid = ([1.0] * 3, [0.0, 0.0, 0.0, 38.0, 1.0, 1.0])
    for parts in (1, 2, 5):
        with forced(voxel_partitions=parts):
            check_voxelize("cpu", cloud, *grid, -1, -1, reduce="mean")
            check_voxelize("cpu", cloud, *grid, 70, 30, reduce="sum")
