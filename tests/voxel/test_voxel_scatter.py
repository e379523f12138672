# SPDX-License-Identifier: Apache-2.0
"""voxel_csr and voxel_scatter."""

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from voxel_cases import FLOAT_DTYPES, GRID, REDUCTIONS, check_op, run_op, street_cloud

each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS[1:])
each_extreme = pytest.mark.parametrize("reduce", ["max", "min"])


def random_rows(n: int, num_rows: int) -> torch.Tensor:
    """Rows from -2 to num_rows + 1, so that some points are dropped at both ends."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-2, num_rows + 2, (n,), generator=generator).int()


def feats_of(n: int, channels: int, seed: int) -> torch.Tensor:
    return torch.randn(n, channels, generator=torch.Generator().manual_seed(seed)) * 1000


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
@each_reduction
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("channels", [0, 1, 3, 4, 5, 8, 64])
def test_scatter_of_every_dtype_and_width(device, channels, dtype, reduce):
    feats = (feats_of(700, channels, seed=1) / 1000).to(dtype)
    check_op("voxel_scatter", device, feats, random_rows(700, 60), 60, reduce)


@pytest.mark.one_of("reduce")
@each_reduction
@pytest.mark.parametrize("n", [0, 1, 33, 1056, 5000])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 6000])
def test_scatter_of_every_row_length(device, num_rows, n, reduce):
    feats = feats_of(n, 3, seed=2)
    out, arg = check_op("voxel_scatter", device, feats, random_rows(n, num_rows), num_rows, reduce)
    assert out.shape == (num_rows, 3)
    assert arg.shape == ((num_rows, 3) if reduce in ("max", "min") else (0,))


@each_reduction
def test_scatter_uses_a_given_map(device, reduce):
    feats, rows = feats_of(900, 5, seed=3), random_rows(900, 80)
    csr = dict(zip(("offsets", "perm"), run_op("voxel_csr", device, rows, 80), strict=True))
    with_map = check_op("voxel_scatter", device, feats, rows, 80, reduce, **csr)
    assert_same_bits(with_map, run_op("voxel_scatter", device, feats, rows, 80, reduce))


@each_reduction
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_scatter_equals_voxelize(device, dtype, reduce):
    cloud = street_cloud(1500, 6, seed=4, dtype=dtype)
    features, *_, point_voxel, _ = run_op("voxelize", device, cloud, *GRID, -1, -1, reduce=reduce)
    out, _ = check_op("voxel_scatter", device, cloud, point_voxel, len(cloud), reduce)
    assert_same_bits(out, features)


@each_extreme
def test_arg_points_at_the_extreme(device, reduce):
    feats = torch.randint(-5, 5, (2000, 4), generator=torch.Generator().manual_seed(5)).float()
    rows = random_rows(2000, 150)
    out, arg = check_op("voxel_scatter", device, feats, rows, 150, reduce)
    filled = (arg >= 0).all(dim=1)
    assert torch.equal(feats.gather(0, arg[filled].long()), out[filled])
    assert torch.equal(rows[arg[filled].long()[:, 0]].long(), filled.nonzero()[:, 0])


@each_extreme
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_ties_zeros_and_nan_go_to_the_lowest_point(device, dtype, reduce):
    nan = float("nan")
    feats = torch.tensor(
        [[-0.0, 2.0, 1.0, nan], [0.0, 2.0, nan, 1.0], [-0.0, 2.0, nan, nan]], dtype=dtype
    )
    out, arg = check_op("voxel_scatter", device, feats, torch.zeros(3).int(), 1, reduce)
    assert arg.tolist() == [[0, 0, 1, 0]]
    assert out[0, 0].signbit()


@each_reduction
def test_infinities_take_part(device, reduce):
    inf = float("inf")
    feats = torch.tensor([[inf, 1.0], [-inf, inf], [0.0, inf]])
    check_op("voxel_scatter", device, feats, torch.zeros(3).int(), 1, reduce)


def test_rows_past_the_voxel_cap_are_dropped(device):
    cloud = street_cloud(800, seed=6)
    point_voxel = run_op("voxel_map", device, cloud, *GRID, -1, 30)[2]
    offsets, _ = check_op("voxel_csr", device, point_voxel, 30)
    assert offsets[-1] == (point_voxel >= 0).sum() < 800
