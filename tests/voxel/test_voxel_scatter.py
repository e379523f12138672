# SPDX-License-Identifier: Apache-2.0
"""voxel_csr and voxel_scatter."""

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import FLOAT_DTYPES, GRID, check_op, run_op, street_cloud

REDUCTIONS = ("mean", "max", "min", "sum")


def random_rows(n: int, num_rows: int, seed: int = 0, dtype=torch.int32) -> torch.Tensor:
    """Rows from -2 to num_rows + 1, so that some points are dropped at both ends."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, num_rows + 2, (n,), generator=generator).to(dtype)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 300, 5000])
@pytest.mark.parametrize("n", [0, 1, 31, 1000, 4097])
def test_csr_sorts_stably_by_row(device, n, num_rows):
    point_voxel = random_rows(n, num_rows)
    offsets, perm = check_op("voxel_csr", device, point_voxel, num_rows)
    kept = (point_voxel >= 0) & (point_voxel < num_rows)
    rows = point_voxel.numpy()
    expected = [i for i in np.argsort(rows, kind="stable") if kept[i]]
    assert perm[: len(expected)].tolist() == expected
    assert (perm[len(expected) :] == -1).all()
    per_row = np.bincount(rows[kept.numpy()], minlength=num_rows)
    assert offsets.diff().tolist() == per_row.tolist() and offsets[0] == 0


@pytest.mark.one_of("channels")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 8, 64])
def test_scatter_of_every_dtype_and_width(device, channels, dtype, reduce):
    feats = torch.randn(700, channels, generator=torch.Generator().manual_seed(1)).to(dtype)
    check_op("voxel_scatter", device, feats, random_rows(700, 60), 60, reduce)


@pytest.mark.one_of("reduce")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("n", [0, 1, 33, 1056, 5000])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 6000])
def test_scatter_of_every_row_length(device, num_rows, n, reduce):
    feats = torch.randn(n, 3, generator=torch.Generator().manual_seed(2)) * 1000
    out, arg = check_op("voxel_scatter", device, feats, random_rows(n, num_rows), num_rows, reduce)
    assert out.shape == (num_rows, 3)
    assert arg.shape == ((num_rows, 3) if reduce in ("max", "min") else (0,))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_without_channels(device, reduce):
    check_op("voxel_scatter", device, torch.empty(9, 0), random_rows(9, 3), 3, reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_uses_a_given_map(device, reduce):
    feats = torch.randn(900, 5, generator=torch.Generator().manual_seed(3))
    rows = random_rows(900, 80)
    offsets, perm = run_op("voxel_csr", device, rows, 80)
    with_map = check_op(
        "voxel_scatter", device, feats, rows, 80, reduce, offsets=offsets, perm=perm
    )
    assert_same_bits(with_map, run_op("voxel_scatter", device, feats, rows, 80, reduce))


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_scatter_equals_voxelize(device, dtype, reduce):
    cloud = street_cloud(1500, 6, seed=4, dtype=dtype)
    features, *_, point_voxel, _ = run_op("voxelize", device, cloud, *GRID, -1, -1, reduce=reduce)
    out, _ = check_op("voxel_scatter", device, cloud, point_voxel, len(cloud), reduce)
    assert_same_bits(out, features)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_arg_points_at_the_extreme(device, reduce):
    feats = torch.randint(-5, 5, (2000, 4), generator=torch.Generator().manual_seed(5)).float()
    rows = random_rows(2000, 150)
    out, arg = check_op("voxel_scatter", device, feats, rows, 150, reduce)
    filled = (arg >= 0).all(dim=1)
    assert torch.equal(feats.gather(0, arg[filled].long()), out[filled])
    assert torch.equal(rows[arg[filled].long()[:, 0]].long(), filled.nonzero()[:, 0])


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_ties_zeros_and_nan_go_to_the_lowest_point(device, dtype, reduce):
    nan = float("nan")
    feats = torch.tensor(
        [[-0.0, 2.0, 1.0, nan], [0.0, 2.0, nan, 1.0], [-0.0, 2.0, nan, nan]], dtype=dtype
    )
    out, arg = check_op("voxel_scatter", device, feats, torch.zeros(3).int(), 1, reduce)
    assert arg.tolist() == [[0, 0, 1, 0]]
    assert out[0, 0].signbit()


def test_infinities_take_part(device):
    inf = float("inf")
    feats = torch.tensor([[inf, 1.0], [-inf, inf], [0.0, inf]])
    for reduce in REDUCTIONS:
        check_op("voxel_scatter", device, feats, torch.zeros(3).int(), 1, reduce)


def test_rows_past_the_voxel_cap_are_dropped(device):
    cloud = street_cloud(800, seed=6)
    point_voxel = run_op("voxel_map", device, cloud, *GRID, -1, 30)[2]
    offsets, _ = check_op("voxel_csr", device, point_voxel, 30)
    assert offsets[-1] == (point_voxel >= 0).sum() < 800
