# SPDX-License-Identifier: Apache-2.0
"""Not-a-number, infinite, huge and absent points."""

import itertools
import math

import pytest
import torch
from voxel_cases import (
    BOUNDS,
    FLOAT_DTYPES,
    GRID,
    KEPT,
    REDUCTIONS,
    UNIT_GRID,
    check_op,
    check_voxelize,
    street_cloud,
)

SPECIAL = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.0]
each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS)
each_dtype = pytest.mark.parametrize("dtype", FLOAT_DTYPES)


@pytest.mark.parametrize("bounds", BOUNDS)
@each_dtype
def test_every_mix_of_special_coordinates(device, dtype, bounds):
    cloud = torch.tensor(list(itertools.product(SPECIAL, repeat=3)), dtype=dtype)
    *_, point_voxel, counts = check_voxelize(device, cloud, *UNIT_GRID, 2, -1, bounds=bounds)
    non_finite = int((~cloud.isfinite().all(dim=1)).sum())  # 1e30 is inf in float16
    assert counts[0].tolist() == [1, 1, 1, 0, 0, len(cloud) - non_finite - 1, non_finite, 0]
    assert (point_voxel >= 0).nonzero().tolist() == [[len(cloud) - 1]]


@each_reduction
@each_dtype
def test_feature_columns_may_hold_anything(device, dtype, reduce):
    cloud = torch.ones(6, 5, dtype=dtype)
    cloud[:, 3] = torch.tensor([1.0, math.nan, 2.0, math.nan, 3.0, 4.0])
    cloud[:, 4] = torch.tensor([math.inf, 1.0, -math.inf, 2.0, 3.0, 4.0])
    features, *_, counts = check_voxelize(device, cloud, *UNIT_GRID, 6, 2, reduce=reduce)
    assert counts[0].tolist() == [1, 1, 6, 0, 0, 0, 0, 0]
    if reduce in ("mean", "sum"):
        assert features[0, 3:].isnan().all()  # inf - inf too
    elif reduce in ("max", "min"):
        assert features[0, 3].isnan()
        assert features[0, 4] == (math.inf if reduce == "max" else -math.inf)
    big = torch.finfo(dtype).max  # sums that overflow
    cloud = torch.full((40, 4), big, dtype=dtype)
    cloud[:, :3], cloud[7, 3] = 1, -big
    check_voxelize(device, cloud, *UNIT_GRID, 40, 1, reduce=reduce)


def test_zero_padded_cloud_is_one_hot_voxel(device):
    """The origin is an ordinary place: padding by zeros is points, not padding."""
    cloud = torch.cat([street_cloud(300), torch.zeros(5000, 4)])
    for name in ("voxelize", "voxel_map"):
        counts = check_op(name, device, cloud, *GRID, 10, -1)[4]
        assert counts[0, KEPT] > 1 and counts[0, 3] >= 4990
