# SPDX-License-Identifier: Apache-2.0
"""furthest_point_sample_ragged is the batched op, cloud by cloud."""

import numpy as np
import pytest
import torch
from fps_cases import assert_as_reference, assert_ragged_as_reference
from helpers import cube, lattice

SIZES = [40, 0, 1, 300, 17, 2, 900]
COUNTS = [10, 3, 2, 50, 17, 0, 33]


def cumulative(sizes) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(sizes).tolist()])


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


LINE = torch.zeros(30, 3)
LINE[:, 0] = torch.arange(30.0)
THREE = [0, 10, 20, 30]
STARTS = torch.tensor([[1, 2], [9, 0], [10, 5]])  # 10 is past the last cloud's end


@pytest.mark.parametrize(
    ("offsets", "out_offsets", "options", "idx"),
    [
        ([0, 3, 3, 6], [0, 2, 3, 5], {}, [0, 2, -1, 3, 5, -1, -1]),  # slots past the last offset
        ([0, 3, 3, 6], [0, 2, 3, 5], {"local_index": True}, [0, 2, -1, 0, 2]),
        (THREE, [0, 2, 4, 6], {"start": 3}, [3, 9, 13, 19, 23, 29]),
        (THREE, [0, 2, 4, 6], {"start_idx": STARTS}, [1, 2, 19, 10, 20, 25]),
        ([5, 10, 30], [3, 5, 7], {}, [-1, -1, -1, 5, 9, 10, 29]),  # before the first offsets
        ([0, 10, 10**12], [0, 2, 10**12], {}, [0, 9, 10, 29]),  # clamped to what exists
        # mmcv and OpenPCDet write the start of an empty output into the next cloud's first slot.
        ([0, 10, 10, 20], [0, 2, 4, 6], {}, [0, 9, -1, -1, 10, 19]),
        ([0, 10, 10, 20], [0, 2, 2, 4], {}, [0, 9, 10, 19]),
        ([0, 10, 10, 20], [0, 2, 2, 2], {}, [0, 9]),
        *((offsets, offsets, {}, [-1] * n) for offsets in ([0], [0, 0, 0]) for n in (0, 5)),
    ],
)
def test_who_writes_which_slot(device, offsets, out_offsets, options, idx):
    actual, dist2 = assert_ragged_as_reference(
        device, LINE, torch.tensor(offsets), torch.tensor(out_offsets), len(idx), **options
    )
    assert actual.tolist() == idx and (dist2[actual < 0] == 0).all()
