# SPDX-License-Identifier: Apache-2.0
"""voxel_csr and voxel_scatter."""

import numpy as np
import pytest
import torch
from voxel_cases import FLOAT_DTYPES, REDUCTIONS, check_op

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


@each_reduction
@pytest.mark.parametrize(("n", "num_rows"), [(33, 1), (1056, 3), (5000, 1), (5000, 6000)])
def test_scatter_of_short_and_long_rows(device, num_rows, n, reduce):
    check_op("voxel_scatter", device, feats_of(n, 3, 2), random_rows(n, num_rows), num_rows, reduce)


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
