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


@pytest.mark.parametrize("order", ORDERS)
def test_permuting_the_points_permutes_their_rows(device, order):
    permutation = torch.randperm(len(CLOUD), generator=torch.Generator().manual_seed(2))
    settings = {"order": order, "reduce": "max"}
    before = check_voxelize(device, CLOUD, *GRID, -1, -1, **settings)
    after = check_voxelize(device, CLOUD[permutation], *GRID, -1, -1, **settings)
    assert_same_bits(after[4], before[4], "counts")
    if order == "first":
        assert sorted(after[1].tolist()) == sorted(before[1].tolist())
        return
    for i, name in ((1, "indices"), (2, "num_points")):
        assert_same_bits(after[i], before[i], name)
    assert_same_bits(after[3], before[3][permutation], "point_voxel")
    assert torch.equal(after[0], before[0])  # maxima; the sign of a zero may follow the order


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
