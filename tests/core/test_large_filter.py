# SPDX-License-Identifier: Apache-2.0
"""Filter ops beyond 2^31 elements."""

import torch
from large import MANY, many_points, marks

import torchvox

pytestmark = marks


def test_voxel_downsample_and_its_steps():
    points = many_points().cuda()
    found = torchvox.voxel_keys(points, [1.0, 1.0, 8.0])
    assert found.counts.tolist() == [[MANY, 0, 0]] * 2
    groups = torchvox.voxel_group(found.keys)
    assert groups.counts.tolist() == [32 * 64 + 1, MANY]
    assert groups.perm[-1] == MANY - 1 and groups.point_voxel[-1] == 32 * 64
    del found
    means = torchvox.voxel_mean(points, groups.offsets, groups.perm)
    assert means[32 * 64, :4].tolist() == points[-1, :4].tolist()
    assert means[0, :4].tolist() == [0.5, 0.5, 1.0, 2.0]
    assert not means[-1].any()
    del means, groups
    out = torchvox.voxel_downsample(points, [1.0, 1.0, 8.0], order="key", trim=True)
    assert out.num_points.sum() == MANY and out.out.shape == (32 * 64 + 1, 9)
    assert out.out[-1, :4].tolist() == points[-1, :4].tolist()


def test_voxel_cells():
    keys = torch.full((1 << 29,), 7, device="cuda")
    keys[-1] = (1 << 63) - 1
    cells = torchvox.voxel_cells(keys, 20, [0, 0, 0])
    assert cells[-1].tolist() == [7, (1 << 20) - 1, (1 << 20) - 1, (1 << 20) - 1]
    assert cells[0].tolist() == [0, 1, 1, 1]


def test_unique_cells():
    rows = 720_000_000
    cells = torch.ones(rows, 3, dtype=torch.int32, device="cuda")
    cells[-1, 2] = 5
    found = torchvox.unique_cells(cells, bits=3)
    assert found.counts.tolist() == [2, rows]
    assert found.indices[[0, 1, -1]].tolist() == [[1, 1, 1], [1, 1, 5], [-1, -1, -1]]
    assert found.point_voxel[[0, -1]].tolist() == [0, 1]


def test_serialize():
    rows = 720_000_000
    cells = torch.ones(rows, 3, dtype=torch.int32, device="cuda")
    cells[0, 2], cells[-1, 0] = 5, 0
    codes, order, inverse = torchvox.serialize(cells, ["z"], depth=3)
    assert codes[0, [0, 1, -1]].tolist() == [71, 7, 3]
    assert order[0, [0, 1, -1]].tolist() == [rows - 1, 1, 0]
    assert inverse[0, [0, 1, -1]].tolist() == [rows - 1, 1, 0]


def test_voxel_sum_and_voxel_mean_of_sums():
    rows = MANY // 3
    values = torch.ones(rows, 9, device="cuda")
    values[-1] = 5.5
    perm = torch.arange(rows, dtype=torch.int32, device="cuda")
    offsets = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
    sums = torchvox.voxel_sum(values, offsets, perm)
    assert sums.numel() > 1 << 31
    assert sums[-1].tolist() == [5, 1 << 31, 1] * 9
    del values
    means = torchvox.voxel_mean_of_sums(sums, torch.ones_like(perm), torch.float32)
    assert means[-1].tolist() == [5.5] * 9 and means[0].tolist() == [1.0] * 9
