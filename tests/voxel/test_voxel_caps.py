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
    UNIT_GRID,
    check_op,
    check_voxelize,
    cloud_at,
    run_op,
    street_cloud,
)

CLOUD = street_cloud(1200, seed=11)


def cloud_with_a_hot_voxel() -> torch.Tensor:
    """CLOUD and 400 points of one voxel, shuffled."""
    generator = torch.Generator().manual_seed(1)
    hot = torch.rand(400, 4, generator=generator) * 0.19
    return torch.cat([CLOUD, hot])[torch.randperm(1600, generator=generator)]


HOT = cloud_with_a_hot_voxel()


def found_voxels(cloud) -> int:
    return int(run_op("voxel_map", "cpu", cloud, *GRID, -1, -1)[4][0, FOUND])


@pytest.mark.one_of("order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_points", [0, 1, 5, 32, 33, 1000])
@pytest.mark.parametrize("max_voxels", [0, 1, "M-1", "M", "M+1", -1])
def test_every_pair_of_caps(device, max_voxels, max_points, order):
    total = found_voxels(HOT)
    if isinstance(max_voxels, str):
        max_voxels = total + {"M-1": -1, "M": 0, "M+1": 1}[max_voxels]
    if max_points == 1000 and max_voxels == -1:
        max_voxels = total + 3  # a capacity of N rows of 1000 slots is too much for a test
    *_, counts = check_voxelize(device, HOT, *GRID, max_points, max_voxels, order=order)
    assert counts[0, FOUND] == total
    assert counts[0, KEPT] == (total if max_voxels < 0 else min(total, max_voxels))
    assert counts[0, 2:7].sum() == len(HOT)


@pytest.mark.one_of("reduce")
@pytest.mark.parametrize("reduce", ["mean", "max", "min", "sum"])
@pytest.mark.parametrize("max_points", [0, 1, 5, 32, 33, 1000, -1])
@pytest.mark.parametrize("max_voxels", [0, 20, -1])
def test_reductions_under_caps(device, max_voxels, max_points, reduce):
    features, _, num_points, *_ = check_voxelize(
        device, HOT, *GRID, max_points, max_voxels, reduce=reduce
    )
    if max_points == 0:
        assert (features == 0).all() and (num_points == 0).all()


@pytest.mark.parametrize("max_points", [0, 1, 5, -1])
@pytest.mark.parametrize("max_voxels", [0, 20, -1])
def test_map_under_caps(device, max_voxels, max_points):
    _, num_points, point_voxel, point_slot, _ = check_op(
        "voxel_map", device, HOT, *GRID, max_points, max_voxels
    )
    assert int(num_points.sum()) == int((point_slot >= 0).sum())
    assert (point_slot[point_voxel < 0] == -1).all()


def test_full_voxel_table_still_fills_old_voxels(device):
    cloud = cloud_at((0.5, 0, 0), (1.5, 0, 0), (2.5, 0, 0), (0.6, 0, 0), (3.5, 0, 0), (1.6, 0, 0))
    _, indices, num_points, point_voxel, counts = check_voxelize(device, cloud, *UNIT_GRID, 2, 2)
    assert indices[:, 3].tolist() == [0, 1]
    assert num_points.tolist() == [2, 2]
    assert point_voxel.tolist() == [0, 1, -1, 0, -1, 1]
    assert counts[0].tolist() == [2, 4, 4, 0, 2, 0, 0, 0]


@pytest.mark.parametrize(("order", "kept"), [("zyx", [[0, 0, 0, 1]]), ("xyz", [[0, 1, 0, 0]])])
def test_sorted_orders_keep_the_lowest_keys(device, order, kept):
    cloud = cloud_at((3.5, 3.5, 3.5), (1.5, 0, 0), (0, 0, 1.5))
    indices = check_voxelize(device, cloud, *UNIT_GRID, 1, 1, order=order)[1]
    assert indices.tolist() == kept


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_voxels", [0, 1, 25, 1000, -1])
def test_voxel_cap_is_per_sample_and_rows_stay_compact(device, max_voxels, order):
    clouds = [street_cloud(n, seed=n) for n in (400, 0, 3, 250, 0)]
    offsets = torch.tensor([0, 400, 400, 403, 653, 653])
    features, indices, *_, counts = check_voxelize(
        device, torch.cat(clouds), *GRID, 2, max_voxels, batch_offsets=offsets, order=order
    )
    capacity = 653 if max_voxels < 0 else 5 * max_voxels
    assert len(features) == capacity
    kept = counts[1:, KEPT].tolist()
    expected = [b for b, k in enumerate(kept) for _ in range(k)]
    assert indices[:, 0].tolist() == expected + [-1] * (capacity - len(expected))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_zero_points_and_zero_voxels_together(device, reduce):
    features, *_, counts = check_voxelize(device, CLOUD, *GRID, 0, 0, reduce=reduce)
    assert features.shape == ((0, 0, 4) if reduce == "none" else (0, 4))
    assert counts[0, FOUND] == found_voxels(CLOUD)


def test_zero_points_keeps_voxels_without_features(device):
    features, _, num_points, point_voxel, counts = check_voxelize(device, CLOUD, *GRID, 0, -1)
    assert features.shape == (len(CLOUD), 0, 4)
    assert (num_points == 0).all()
    assert counts[0, 2] == 0 and counts[0, 3] == int((point_voxel >= 0).sum()) > 0


def test_points_past_the_point_cap_keep_their_row(device):
    cloud = cloud_at(*[(0.5, 0.5, 0.5)] * 4, (2.5, 0, 0))
    *_, point_voxel, counts = check_voxelize(device, cloud, *UNIT_GRID, 1, 5)
    assert point_voxel.tolist() == [0, 0, 0, 0, 1]
    assert counts[0].tolist() == [2, 2, 2, 3, 0, 0, 0, 0]


def test_huge_caps_are_only_caps(device):
    check_voxelize(device, CLOUD, *GRID, 2**40, -1, reduce="mean")
    check_op("voxel_map", device, CLOUD, *GRID, 2**40, -1)
