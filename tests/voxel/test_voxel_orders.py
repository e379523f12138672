# SPDX-License-Identifier: Apache-2.0
"""Row order, and what a permutation of the input may change."""

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import BOUNDS, GRID, KEPT, ORDERS, check_op, check_voxelize, run_op, street_cloud

CLOUD = street_cloud(2500, seed=21)
BATCH = torch.tensor([0, 900, 900, 901, 2400])  # 100 points of padding


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("order", "columns"), [("zyx", (0, 1, 2, 3)), ("xyz", (0, 3, 2, 1))])
def test_sorted_orders_are_lexicographic(device, order, columns, bounds):
    indices, *_, counts = check_op(
        "voxel_map", device, CLOUD, *GRID, 3, -1, order=order, bounds=bounds, batch_offsets=BATCH
    )
    rows = indices[: counts[0, KEPT]].numpy()
    by_key = np.lexsort([rows[:, c] for c in reversed(columns)])
    assert np.array_equal(by_key, np.arange(len(rows)))
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_first_order_follows_the_first_point_of_each_voxel(device):
    _, _, point_voxel, _, counts = check_op(
        "voxel_map", device, CLOUD, *GRID, 3, -1, batch_offsets=BATCH
    )
    rows = point_voxel[point_voxel >= 0].tolist()
    first_seen = list(dict.fromkeys(rows))
    assert first_seen == list(range(int(counts[0, KEPT])))


@pytest.mark.parametrize("reduce", ["none", "mean", "max", "min", "sum"])
def test_orders_permute_the_same_rows(device, reduce):
    def by_cell(order):
        features, indices, num_points, *_ = check_voxelize(
            device, CLOUD, *GRID, 4, -1, order=order, reduce=reduce
        )
        return {
            tuple(i): (n, f.numpy().tobytes())
            for i, n, f in zip(indices.tolist(), num_points.tolist(), features, strict=True)
            if i[0] >= 0
        }

    assert by_cell("first") == by_cell("zyx") == by_cell("xyz")


@pytest.mark.parametrize("order", ["zyx", "xyz"])
def test_permutation_keeps_sorted_rows_and_moves_point_rows(device, order):
    permutation = torch.randperm(len(CLOUD), generator=torch.Generator().manual_seed(2))
    settings = {"order": order, "reduce": "max"}
    before = check_voxelize(device, CLOUD, *GRID, -1, -1, **settings)
    after = check_voxelize(device, CLOUD[permutation], *GRID, -1, -1, **settings)
    for i, name in ((1, "indices"), (2, "num_points"), (4, "counts")):
        assert_same_bits(after[i], before[i], name)
    assert_same_bits(after[3], before[3][permutation], "point_voxel")
    assert torch.equal(after[0], before[0])  # maxima; the sign of a zero may follow the order


def test_permutation_keeps_the_set_of_first_come_voxels(device):
    permutation = torch.randperm(len(CLOUD), generator=torch.Generator().manual_seed(3))
    before = check_op("voxel_map", device, CLOUD, *GRID, 3, -1)
    after = check_op("voxel_map", device, CLOUD[permutation], *GRID, 3, -1)
    assert_same_bits(after[4], before[4], "counts")
    assert sorted(after[0].tolist()) == sorted(before[0].tolist())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("max_voxels", [30, -1])
@pytest.mark.parametrize("max_points", [3, 40])
def test_map_slots_rebuild_the_padded_features(device, max_points, max_voxels, order):
    *_, point_voxel, point_slot, _ = run_op(
        "voxel_map", device, CLOUD, *GRID, max_points, max_voxels, order=order
    )
    features = check_voxelize(device, CLOUD, *GRID, max_points, max_voxels, order=order)[0]
    rebuilt = torch.zeros_like(features)
    stored = point_slot >= 0
    rebuilt[point_voxel[stored].long(), point_slot[stored].long()] = CLOUD[stored]
    assert_same_bits(rebuilt, features, "features")
