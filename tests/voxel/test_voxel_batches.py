# SPDX-License-Identifier: Apache-2.0
"""Samples, offsets, padding and num_valid, also of values that only a mistake produces."""

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import GRID, UNIT_GRID, check_op, check_voxelize, street_cloud

import torchvox

ops = torch.ops.torchvox


def offsets_of(sizes) -> torch.Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


@pytest.mark.parametrize(
    ("offsets", "valid", "lengths"),
    [
        ([0, 0, 100, 100, 101, 280, 280], None, [0, 100, 0, 1, 179, 0]),
        ([50, 120, 250], None, [70, 130]),  # rows before the first offset are padding
        ([20, 120, 290], [1000, 5], [100, 5]),  # counted from the start of each block
        ([0, 10_000], None, [300]),
        ([-5, 100], None, [100]),
        ([-(2**62), 2**62], None, [300]),
        ([0, 100, 2**31 + 5], None, [100, 200]),
        ([-3, -2, 50], None, [0, 50]),
        ([400, 500], None, [0]),
        *((None, [n], [min(max(n, 0), 300)]) for n in (0, 1, 299, 300, 301, 2**40, -(2**40))),
        (None, 150, [150]),
    ],
)
def test_offsets_and_counts_are_clamped_to_the_cloud(device, offsets, valid, lengths):
    options = {"batch_offsets": offsets, "num_valid": valid}
    options = {k: torch.tensor(v) for k, v in options.items() if v is not None}
    cloud = street_cloud(300, seed=34)
    *_, point_voxel, counts = check_voxelize(device, cloud, *GRID, 3, -1, **options)
    assert counts[1:, 2:7].sum(dim=1).tolist() == lengths
    starts = torch.tensor(offsets or [0])[: len(lengths)].clamp(0, 300).tolist()
    inside = torch.zeros(300, dtype=torch.bool)
    for start, length in zip(starts, lengths, strict=True):
        inside[start : start + length] = True
    assert (point_voxel[~inside] == -1).all()


def test_num_valid_alone_cuts_the_only_sample(device):
    cloud = street_cloud(300, seed=37).to(device)
    valid = torch.tensor([120], device=device)
    for name in ("voxelize", "voxel_map"):
        cut = getattr(torchvox, name)(cloud, *GRID, 3, 150, num_valid=valid)
        alone = getattr(torchvox, name)(cloud[:120], *GRID, 3, 150)
        assert_same_bits(cut.num_points, alone.num_points, name)
        assert_same_bits(cut.counts, alone.counts, name)
        assert (cut.point_voxel[120:] == -1).all()


@pytest.mark.parametrize("num_samples", [300, 1025, 5000])
def test_many_samples(device, num_samples):
    generator = torch.Generator().manual_seed(40)
    sizes = torch.randint(0, 3, (num_samples,), generator=generator).tolist()
    cloud = street_cloud(sum(sizes), seed=41)
    check_voxelize(device, cloud, *GRID, 2, -1, batch_offsets=offsets_of(sizes), reduce="mean")
    check_op("voxel_map", device, cloud, *GRID, 2, 1, batch_offsets=offsets_of(sizes))


@pytest.mark.parametrize("order", ["first", "zyx"])
@pytest.mark.parametrize("max_voxels", [-1, 50, 20_000])
@pytest.mark.parametrize(
    "offsets", [[0] + [20_000] * 29 + [0, 5_000], [0, 100] * 3, [9_000, 3, -4]]
)
def test_offsets_in_disorder_stay_in_bounds(device, order, max_voxels, offsets):
    points = street_cloud(20_000, seed=1).to(device)
    options = {"batch_offsets": torch.tensor(offsets, device=device), "order": order}
    out = ops.voxelize(points, *GRID, 5, max_voxels, **options, reduce="sum")
    rows = ops.voxel_map(points, *GRID, 5, max_voxels, **options)[2]
    capacity, counts = out[1].size(0), out[4].cpu()
    assert all(r.min() >= -1 and r.max() < capacity for r in (out[3], rows))
    assert 0 <= counts[0, 0] <= capacity and counts[:, 0].min() >= 0


def test_a_double_gradient_of_half_points_is_rounded_once(device):
    points = torch.tensor([[0.5, 0.5, 0.5]], dtype=torch.half, device=device, requires_grad=True)
    out = ops.voxelize(points, *UNIT_GRID, 1, -1, reduce="sum", out_dtype=torch.float64)[0]
    out.backward(torch.full_like(out, 1 + 2**-11 + 2**-40))
    assert points.grad.unique().tolist() == [1 + 2**-10]


def test_wrong_offsets_of_a_scatter_are_clamped_in_its_gradient_too(device):
    feats = torch.ones(4, 1, device=device, requires_grad=True)
    row = torch.tensor([0, 0, 1, 1], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 2, 2**31 - 1], dtype=torch.int32, device=device)
    perm = torch.arange(4, dtype=torch.int32, device=device)
    out, _ = ops.voxel_scatter(feats, row, 2, "mean", offsets=offsets, perm=perm)
    out.sum().backward()
    assert_same_bits(feats.grad, torch.full((4, 1), 0.5), "gradient")
