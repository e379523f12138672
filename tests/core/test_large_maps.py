# SPDX-License-Identifier: Apache-2.0
"""Maps of more than 2^31 voxels."""

import pytest
import torch
from large import marks

import torchvox

pytestmark = marks

MAP = {"voxel_size": 1.0, "map_origin": [0.0, 0.0, 0.0]}
SENSOR = [1.0, -0.5, -2.0, 3.0]
REGIONS = (1 << 22) + 100  # of 512 voxels: 2.15e9
# The last voxel of the last region.
LAST_VOXEL = [8 * ((REGIONS - 1) & 4095) + 7.5, 8 * ((REGIONS - 1) >> 12) + 7.5, 7.5]


@pytest.fixture
def state(memory_of_one_case):
    """Regions 0 to REGIONS - 1 along x and y, all free; the last one holds one occupied voxel."""
    state = torchvox.occupancy_state(REGIONS + 4, device="cuda")
    x, bias = torch.arange(REGIONS), 1 << 20
    keys = bias << 42 | (bias + (x >> 12)) << 21 | (bias + (x & 4095))
    logodds = torch.full((REGIONS, 512), -100, dtype=torch.int16)
    logodds[-1, -1] = 700
    layers = [torch.zeros(REGIONS, dtype=torch.int32), logodds, *state[5:]]
    counts = torchvox.occupancy_insert_(state, keys, layers, sensor=SENSOR)
    assert counts.tolist() == [[REGIONS, REGIONS, 0, REGIONS, REGIONS, 0, 0, 0]]
    return state


def test_occupancy_query_and_occupancy_crop_and_occupancy_raycast(state):
    last = torch.tensor([LAST_VOXEL], dtype=torch.float64)
    voxel = torchvox.occupancy_query(state, last, **MAP)
    assert voxel.label.tolist() == [1] and voxel.logodds.tolist() == [700 / 1024]
    ray = torchvox.occupancy_raycast(state, last, last - torch.tensor([[5.0, 0, 0]]), **MAP)
    assert ray.status.tolist() == [1] and ray.distance.tolist() == [4.5]
    crop = torchvox.occupancy_crop(
        state, **MAP, cell_size=[1.0] * 3, point_cloud_range=[0.0, 8.0, 0.0, 8192.0, 8200.0, 33.0]
    )
    assert crop.label.numel() > 1 << 31 and int((crop.label == 1).sum()) == 1


def test_occupancy_extract_and_occupancy_decay_and_occupancy_remove(state):
    rows = torchvox.occupancy_extract(state, 10)
    assert rows.counts.tolist()[0][:2] == [1, 1]
    assert rows.indices[0].tolist() == [0, *(int(x) for x in LAST_VOXEL[::-1])]
    assert torchvox.occupancy_extract(state, 1, select="free").counts[0, 1] == REGIONS * 512 - 1
    decayed = torchvox.occupancy_decay_(state, 1 << 16, 0, 100)
    assert decayed.counts[0, 0] == REGIONS and decayed.empty.sum() == REGIONS - 1
    counts = torchvox.occupancy_remove_(state, decayed.empty)
    assert counts.tolist()[0][:5] == [REGIONS - 1, REGIONS - 1, 0, 0, 1]
    assert state[4][0, -1] == 700 and int((state[4] != -32768).sum()) == 1


def test_occupancy_integrate_adds_regions_behind(state):
    points, origins = torch.tensor([[-4.5, 0.5, 0.5]]), torch.tensor([[-0.5, 0.5, 0.5]])
    options = {**MAP, "sensor": SENSOR, "max_touched": 100}
    counts = torchvox.occupancy_integrate_(state, points, origins, **options)
    assert counts[0, 8:12].tolist() == [1, 1, REGIONS + 1, 0]
    assert int((state[4][REGIONS] != -32768).sum()) == 5


def test_occupancy_integrate_and_occupancy_insert_with_samples():
    """Rows of samples whose covariances are more than 2^31 numbers; two regions have the last."""
    rows = (1 << 31) // 3072 + 9
    layers = ("logodds", "sample_mean", "sample_cov")
    state = torchvox.occupancy_state(4, layers=layers, sample_rows=rows, device="cuda")
    state[3][2] = rows - 2  # as if the others were of regions that are not here
    points = torch.tensor([[0.25, 0.5, 0.5], [0.75, 0.5, 0.5], [8.5, 0.25, 0.5]])
    options = {"ndt": [0.1, 0.2, 3.0, -1.0, 9.0], **MAP, "sensor": SENSOR}
    counts = torchvox.occupancy_integrate_(
        state, points, points, origin_index=torch.arange(3), **options
    )
    assert counts[0, 11:14].tolist() == [0, 0, 2]
    refused = torchvox.occupancy_integrate_(state, points[:1] + 64, points[:1] + 64, **options)
    assert refused[0, 11] == 4
    state[3][3] = 0
    samples = torchvox.occupancy_extract(state, 2)
    assert samples.num_samples.tolist() == [2, 1]
    assert samples.mean.tolist() == [[0.0, 0.0, 0.0], [0.0, -0.25, 0.0]]
    copy = torchvox.occupancy_state(2, layers=layers, sample_rows=2, device="cuda")
    whole = [t if len(t) == 0 else t[:2] if len(t) == 4 else t for t in (state[2], *state[4:])]
    keys, order = state[1][:2].sort()
    inserted = [t[order] if len(t) == 2 else t for t in whole]
    assert torchvox.occupancy_insert_(copy, keys, inserted, sensor=SENSOR)[0, 5] == 0
    assert torch.equal(torchvox.occupancy_extract(copy, 2).mean, samples.mean)
    counts = torchvox.occupancy_remove_(state, state[1] == keys[0])
    assert counts[0, 4] == 1 and counts[0, 7] == rows - 1
    assert torchvox.occupancy_extract(state, 1).num_samples.tolist() in ([1], [2])
