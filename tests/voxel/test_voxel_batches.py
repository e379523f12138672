# SPDX-License-Identifier: Apache-2.0
"""Samples, offsets, padding and num_valid."""

import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import GRID, KEPT, ORDERS, check_op, check_voxelize, run_op, street_cloud

import torchvox

SIZES = {
    "plain": [300, 200, 150],
    "empty first": [0, 300, 200],
    "empty middle": [300, 0, 200],
    "empty last": [300, 200, 0],
    "all empty": [0, 0, 0],
    "single": [500],
    "many small": [1, 0, 2, 5, 0, 0, 40, 3] * 12,
}


def offsets_of(sizes, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=dtype)


@pytest.mark.one_of("order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_batches_with_empty_samples(device, sizes, dtype, order):
    cloud = street_cloud(sum(sizes) + 17, seed=31)  # 17 points after the last offset
    *_, point_voxel, counts = check_voxelize(
        device, cloud, *GRID, 3, -1, batch_offsets=offsets_of(sizes, dtype), order=order
    )
    assert counts.shape == (len(sizes) + 1, 8)
    assert counts[1:, 2:7].sum(dim=1).tolist() == sizes
    assert (point_voxel[sum(sizes) :] == -1).all()


@pytest.mark.parametrize("reduce", ["none", "mean"])
@pytest.mark.parametrize("max_voxels", [40, 300])
def test_each_cloud_alone_equals_its_slice_of_the_batch(device, max_voxels, reduce):
    sizes = SIZES["plain"]
    clouds = [street_cloud(n, seed=n) for n in sizes]
    settings = {"reduce": reduce}
    batch = check_voxelize(
        device, torch.cat(clouds), *GRID, 3, max_voxels, batch_offsets=offsets_of(sizes), **settings
    )
    row, point = 0, 0
    for b, cloud in enumerate(clouds):
        alone = run_op("voxelize", device, cloud, *GRID, 3, max_voxels, **settings)
        kept = int(alone[4][0, KEPT])
        assert_same_bits(batch[0][row : row + kept], alone[0][:kept], "features")
        assert (batch[1][row : row + kept, 0] == b).all()
        assert torch.equal(batch[1][row : row + kept, 1:], alone[1][:kept, 1:])
        assert torch.equal(batch[2][row : row + kept], alone[2][:kept])
        expected = torch.where(alone[3] >= 0, alone[3] + row, alone[3])
        assert torch.equal(batch[3][point : point + len(cloud)], expected)
        assert torch.equal(batch[4][1 + b], alone[4][1])
        row, point = row + kept, point + len(cloud)


def test_rows_before_the_first_offset_are_padding(device):
    cloud = street_cloud(300, seed=33)
    *_, point_voxel, counts = check_voxelize(
        device, cloud, *GRID, 3, -1, batch_offsets=torch.tensor([50, 120, 250])
    )
    assert (point_voxel[:50] == -1).all() and (point_voxel[250:] == -1).all()
    assert counts[1:, 2:7].sum(dim=1).tolist() == [70, 130]


@pytest.mark.parametrize(
    "offsets",
    [[0, 10_000], [-5, 100], [-(2**62), 2**62], [0, 100, 2**31 + 5], [-3, -2, 50], [400, 500]],
)
def test_offsets_outside_the_cloud_are_clamped(device, offsets):
    cloud = street_cloud(300, seed=34)
    offsets = torch.tensor(offsets)
    a = check_voxelize(device, cloud, *GRID, 3, -1, batch_offsets=offsets)
    b = run_op("voxelize", device, cloud, *GRID, 3, -1, batch_offsets=offsets.clamp(0, 300))
    assert_same_bits(a[4], b[4], "counts")


@pytest.mark.parametrize("name", ["voxelize", "voxel_map"])
@pytest.mark.parametrize(
    "offsets", [[0, 200, 100, 300], [300, 0], [300, 200, 100, 0], [0, 250, 10]]
)
def test_decreasing_offsets_are_memory_safe(device, offsets, name):
    """The values are unspecified; shapes, ranges and the process are not."""
    outputs = run_op(
        name, device, street_cloud(300, seed=35), *GRID, 3, 50, batch_offsets=torch.tensor(offsets)
    )
    capacity = 50 * (len(offsets) - 1)
    point_voxel = outputs[3 if name == "voxelize" else 2]
    assert len(outputs[1]) == capacity
    assert outputs[4].shape == (len(offsets), 8)
    assert point_voxel.shape == (300,)
    assert point_voxel.min() >= -1 and point_voxel.max() < capacity


def test_num_valid_alone_cuts_the_only_sample(device):
    cloud = street_cloud(300, seed=37).to(device)
    valid = torch.tensor([120], device=device)
    for name in ("voxelize", "voxel_map"):
        cut = getattr(torchvox, name)(cloud, *GRID, 3, 150, num_valid=valid)
        alone = getattr(torchvox, name)(cloud[:120], *GRID, 3, 150)
        assert_same_bits(cut.num_points, alone.num_points, name)
        assert_same_bits(cut.counts, alone.counts, name)
        assert (cut.point_voxel[120:] == -1).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_fixed_stride_batch_with_num_valid(device, dtype, order):
    """A padded batch [B, Nmax, C], flattened: what lies in the padding is never looked at."""
    valid = torch.tensor([200, 0, 1, 77, 199], dtype=dtype)
    offsets = torch.arange(6) * 200
    cloud = street_cloud(1000, seed=36)
    outputs = check_voxelize(
        device, cloud, *GRID, 3, 150, batch_offsets=offsets, num_valid=valid, order=order
    )
    assert outputs[4][1:, 2:7].sum(dim=1).tolist() == valid.tolist()
    padding = torch.arange(1000) % 200 >= valid.repeat_interleave(200)
    assert (outputs[3][padding] == -1).all()
    for garbage in (float("nan"), float("inf"), 0.1):
        other = cloud.clone()
        other[padding] = garbage
        again = run_op(
            "voxelize", device, other, *GRID, 3, 150, batch_offsets=offsets, num_valid=valid,
            order=order,
        )  # fmt: skip
        for a, b in zip(again, outputs, strict=True):
            assert_same_bits(a, b)


@pytest.mark.parametrize("valid", [0, 1, 150, 299, 300, 301, 2**40, -1, -(2**40)])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_num_valid_of_one_sample_is_clamped(device, valid, shape):
    *_, counts = check_op(
        "voxel_map", device, street_cloud(300, seed=37), *GRID, 3, -1,
        num_valid=torch.full(shape, valid, dtype=torch.int64),
    )  # fmt: skip
    assert counts[0, 2:7].sum() == min(max(valid, 0), 300)


def test_num_valid_counts_from_the_start_of_each_block(device):
    *_, counts = check_voxelize(
        device, street_cloud(300, seed=38), *GRID, 3, -1,
        batch_offsets=torch.tensor([20, 120, 290]), num_valid=torch.tensor([1000, 5]),
    )  # fmt: skip
    assert counts[1:, 2:7].sum(dim=1).tolist() == [100, 5]


def test_nan_padding_is_counted_as_non_finite(device):
    cloud = torch.cat([street_cloud(200, seed=39).nan_to_num(), torch.full((56, 4), torch.nan)])
    padded = check_voxelize(device, cloud, *GRID, 3, 100)
    exact = check_voxelize(device, cloud[:200], *GRID, 3, 100)
    for i in (0, 1, 2):
        assert_same_bits(padded[i], exact[i])
    assert padded[4][0].tolist() == [*exact[4][0, :6].tolist(), 56, 0]


@pytest.mark.parametrize("num_samples", [300, 1025, 5000])
def test_many_samples(device, num_samples):
    generator = torch.Generator().manual_seed(40)
    sizes = torch.randint(0, 3, (num_samples,), generator=generator).tolist()
    cloud = street_cloud(sum(sizes), seed=41)
    check_voxelize(device, cloud, *GRID, 2, -1, batch_offsets=offsets_of(sizes), reduce="mean")
    check_op("voxel_map", device, cloud, *GRID, 2, 1, batch_offsets=offsets_of(sizes))
