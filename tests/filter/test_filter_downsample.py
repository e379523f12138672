# SPDX-License-Identifier: Apache-2.0
"""The whole filter: one mean per voxel, inside its voxel, whatever the order of the points."""

import math

import numpy as np
import pytest
import torch
from filter_cases import BACKENDS, ORDERS, POINT_DTYPES, calls, scan
from helpers import assert_same_bits, check_op
from hypothesis import given, settings
from hypothesis import strategies as st

import torchvox

NAN = math.nan
NAMES = ("out", "indices", "num_points", "representative", "point_voxel", "counts")
METERS = [1.0] * 3


def downsample(device, *args, **options):
    return dict(zip(NAMES, check_op("voxel_downsample", device, *args, **options), strict=True))


def used(outs) -> int:
    return int(outs["counts"][0, 0])


@settings(max_examples=100)
@given(call=calls(), order=st.sampled_from(ORDERS), backend=st.sampled_from(BACKENDS))
def test_every_valid_point_is_counted_once(device, call, order, backend):
    points, size, options = call
    outs = downsample(device, points, size, **options, order=order, backend=backend)
    n, rows = len(points), used(outs)
    lengths = options.get("batch_offsets", torch.tensor([0, n])).clamp(0, n).diff()
    valid = torch.minimum(options.get("num_valid", lengths).clamp(min=0), lengths)
    assert outs["counts"][1:, 1:].sum(1).tolist() == valid.tolist()
    first = outs["representative"][:rows]
    assert first.tolist() == [outs["point_voxel"].tolist().index(row) for row in range(rows)]


def coordinates(dtype) -> tuple[torch.Tensor, float]:
    """Points on the lattice of the sums, none of them dropped, and a size."""
    rng = np.random.default_rng(4)
    if dtype == torch.int32:
        return torch.from_numpy(rng.integers(-(2**31), 2**31, (400, 4))).int(), 2.0**28 + 3
    feet = 100.0 if dtype == torch.float16 else 6e5  # where float32 sums leave the cells
    xyz = torch.from_numpy(rng.normal(0, 3, (400, 4)) + np.array([0.0, feet, -2e3, 0.0]))
    xyz = torch.where(xyz.abs() < 2.0**-9, torch.ones_like(xyz), xyz)
    return ((xyz * 2**20).round() / 2**20).to(dtype), 0.7


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", POINT_DTYPES)
def test_a_centroid_is_in_its_voxel_and_twice_is_once(device, dtype, order):
    points, size = coordinates(dtype)
    sizes = [size, size, 3 * size]
    outs = downsample(device, points, sizes, order=order)
    rows = used(outs)
    assert 10 < rows < 400 == outs["counts"][0, 1]
    again = downsample(device, outs["out"][:rows].clone(), sizes, order=order)
    assert_same_bits(again["out"], outs["out"][:rows])
    assert_same_bits(again["indices"], outs["indices"][:rows])
    assert again["point_voxel"].tolist() == list(range(rows))


@pytest.mark.parametrize("dtype", POINT_DTYPES)
def test_the_order_of_the_points_is_free(device, dtype):
    points, size = scan(600, dtype), [300.0 if dtype == torch.int32 else 0.3] * 3
    outs = downsample(device, points, size, order="key")
    shuffle = torch.randperm(600, generator=torch.Generator().manual_seed(2))
    other = downsample(device, points[shuffle], size, order="key")
    for name in ("out", "indices", "num_points", "counts"):
        assert_same_bits(other[name], outs[name], name)
    assert_same_bits(other["point_voxel"], outs["point_voxel"][shuffle])


def test_trimming_keeps_the_rows_in_use_and_refuses_points_outside(device):
    points = torch.tensor([[0.5, 0, 0], [0.75, 0, 0], [NAN, 0, 0], [3.5, 0, 0]], device=device)
    whole = torchvox.voxel_downsample(points, METERS)
    rows = torchvox.voxel_downsample(points, METERS, trim=True)
    assert rows.out.tolist() == [[0.625, 0, 0], [3.5, 0, 0]]
    for name in ("indices", "num_points", "representative"):
        assert_same_bits(getattr(rows, name), getattr(whole, name)[:2], name)
    assert_same_bits(rows.point_voxel, whole.point_voxel)

    far = points.double() + torch.tensor([637000.0, 0, 0], device=device)
    with pytest.raises(
        ValueError, match=r"cells \[6370005.0, .*: give the lowest of them as lower"
    ):
        torchvox.voxel_downsample(far, [0.1] * 3, trim=True)
    near = torchvox.voxel_downsample(far, [0.1] * 3, lower=[6370005, 0, 0], trim=True)
    assert near.num_points.tolist() == [1, 1, 1]
    offsets = torch.tensor([0, 1, 4], device=device)  # two samples leave 20 bits
    with pytest.raises(ValueError, match=r"in 2\^20 cells .* take voxel_size >= 2.9 on axis x"):
        wide = points * torch.tensor([1e6, 1, 1], device=device)
        torchvox.voxel_downsample(wide, METERS, batch_offsets=offsets, trim=True)


@pytest.mark.parametrize("reach", [1706.0, 3e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_outside_are_refused_or_warned_of_with_a_size_that_fits(reach, dtype):
    points = torch.linspace(-reach, reach, 500, dtype=dtype)[:, None].repeat(1, 3)
    with pytest.raises(ValueError, match="on axis x") as refused:
        torchvox.voxel_downsample(points, [0.001] * 3, trim=True)
    with pytest.warns(UserWarning, match=r"voxel_size >= .* \d+ points are dropped"):
        torchvox.voxel_downsample(points, [0.001] * 3)
    size = float(str(refused.value).split(">= ")[1].split()[0])
    lower = [math.floor(-reach / size)] * 3
    actual = torchvox.voxel_downsample(points, [size] * 3, lower=lower, trim=True)
    assert actual.counts[0, 1] == 500
