# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample_ragged is the batched op, cloud by cloud."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, assert_ragged_as_reference
from helpers import cube, forced, lattice

SIZES = [40, 0, 1, 300, 17, 2, 900]
COUNTS = [10, 3, 2, 50, 17, 0, 33]


def cumulative(sizes, dtype=torch.int64):
    return torch.tensor([0, *np.cumsum(sizes).tolist()], dtype=dtype)


RULES = [
    {},
    {"tie": "mmcv", "exhausted": "repeat"},
    {"tie": "mmcv", "tie_block": 512, "dist_order": "loop"},
    {"nonfinite": "last"},
    {"skip_origin": True},
    {"init_dist2": 1e10, "start": 1},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("make", [cube, lattice])
def test_equals_each_cloud_alone(device, make, rules):
    points = make(sum(SIZES), seed=1)[0]
    points[45] = float("nan")
    batch_offsets, out_offsets = cumulative(SIZES), cumulative(COUNTS)
    idx, dist2 = assert_ragged_as_reference(
        device, points, batch_offsets, out_offsets, sum(COUNTS), **rules
    )
    for b, (n, s) in enumerate(zip(SIZES, COUNTS, strict=True)):
        cloud = points[batch_offsets[b] : batch_offsets[b] + n][None]
        alone_idx, alone_dist2 = assert_as_reference(device, cloud, s, **rules)
        out = slice(out_offsets[b], out_offsets[b] + s)
        expected = torch.where(alone_idx[0] < 0, alone_idx[0], alone_idx[0] + int(batch_offsets[b]))
        assert torch.equal(idx[out].long(), expected.long())
        assert torch.equal(dist2[out], alone_dist2[0])


def test_local_indices_count_from_the_cloud(device):
    points = cube(sum(SIZES), seed=3)[0]
    batch_offsets, out_offsets = cumulative(SIZES), cumulative(COUNTS)
    glob, _ = assert_ragged_as_reference(device, points, batch_offsets, out_offsets, sum(COUNTS))
    local, _ = assert_ragged_as_reference(
        device, points, batch_offsets, out_offsets, sum(COUNTS), local_index=True
    )
    base = torch.repeat_interleave(batch_offsets[:-1], torch.tensor(COUNTS))
    assert torch.equal(torch.where(local < 0, local, local + base), glob.long())


def test_starts_are_local_to_their_cloud(device):
    points = cube(30)[0]
    batch_offsets, out_offsets = torch.tensor([0, 10, 20, 30]), torch.tensor([0, 4, 8, 12])
    idx, _ = assert_ragged_as_reference(device, points, batch_offsets, out_offsets, 12, start=3)
    assert idx[[0, 4, 8]].tolist() == [3, 13, 23]
    starts = torch.tensor([[1, 2], [9, 0], [10, 5]])  # 10 is past the last cloud's end
    idx, _ = assert_ragged_as_reference(
        device, points, batch_offsets, out_offsets, 12, start_idx=starts
    )
    assert idx.view(3, 4)[:, :2].tolist() == [[1, 2], [19, 10], [20, 25]]


def test_slots_past_the_last_offset_are_filled(device):
    batch_offsets, out_offsets = torch.tensor([0, 10, 30]), torch.tensor([0, 4, 8])
    idx, dist2 = assert_ragged_as_reference(device, cube(30)[0], batch_offsets, out_offsets, 20)
    assert (idx[:8] >= 0).all() and (idx[8:] == -1).all() and (dist2[8:] == 0).all()


def test_slots_before_the_first_offset_are_filled(device):
    batch_offsets, out_offsets = torch.tensor([5, 10, 30]), torch.tensor([3, 6, 9])
    idx, dist2 = assert_ragged_as_reference(device, cube(30)[0], batch_offsets, out_offsets, 9)
    assert idx[:3].tolist() == [-1, -1, -1] and dist2[:3].tolist() == [0, 0, 0]
    assert idx[3] == 5 and idx[6] == 10


def test_offsets_are_clamped_to_what_exists(device):
    points = cube(30)[0]
    batch_offsets, out_offsets = torch.tensor([0, 10, 10**12]), torch.tensor([0, 4, 10**12])
    idx, _ = assert_ragged_as_reference(device, points, batch_offsets, out_offsets, 12)
    assert (idx[4:] >= 10).all() and (idx < 30).all()


def test_an_empty_cloud_writes_only_its_own_slots(device):
    # mmcv and OpenPCDet write the start of an empty output into the next cloud's first slot.
    points = cube(20)[0]
    batch_offsets = torch.tensor([0, 10, 10, 20])
    idx, _ = assert_ragged_as_reference(
        device, points, batch_offsets, torch.tensor([0, 3, 5, 8]), 8
    )
    assert idx[3:5].tolist() == [-1, -1] and idx[5] == 10
    idx, _ = assert_ragged_as_reference(
        device, points, batch_offsets, torch.tensor([0, 3, 3, 6]), 6
    )
    assert idx[3] == 10
    idx, _ = assert_ragged_as_reference(
        device, points, batch_offsets, torch.tensor([0, 3, 3, 3]), 3
    )
    assert idx.tolist()[0] == 0 and (idx < 10).all()


@pytest.mark.parametrize("total", [0, 5])
@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]])
def test_empty_calls(device, total, offsets):
    batch_offsets = torch.tensor(offsets)
    idx, dist2 = assert_ragged_as_reference(
        device, torch.ones(0, 3), batch_offsets, batch_offsets, total
    )
    assert idx.shape == dist2.shape == (total,) and (idx == -1).all()


def test_one_large_cloud_among_small_ones(device):
    sizes, counts = [5, 20_000, 0, 9000, 33], [5, 40, 1, 30, 10]
    points = lattice(sum(sizes), side=25)[0]
    assert_ragged_as_reference(
        device, points, cumulative(sizes), cumulative(counts), sum(counts), tie="mmcv"
    )


@pytest.mark.parametrize("kernel", ["lazy", "generic"])
@pytest.mark.parametrize("rules", [{}, {"skip_origin": True}], ids=str)
def test_a_first_cloud_far_from_the_first_row(device, kernel, rules):
    points = cube(25_000, seed=2)[0]
    points[12_000] = float("nan")
    points[13_000:13_050] = 0.0
    batch_offsets, out_offsets = torch.tensor([5_000, 20_000]), torch.tensor([0, 64])
    with forced(fps_kernel=kernel):
        assert_ragged_as_reference(device, points, batch_offsets, out_offsets, 64, **rules)
