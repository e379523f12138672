# SPDX-License-Identifier: Apache-2.0
"""The order of a sum is part of its value: hot voxels, interleaved voxels, exact cascades."""

import math

import numpy as np
import pytest
import torch
from voxel_cases import (
    FLOAT_DTYPES,
    GRID,
    REDUCTIONS,
    UNIT_GRID,
    check_op,
    check_voxelize,
    street_cloud,
)

BIG = 2.0**24  # adding 1 to it in float32 is lost
each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS[1:])


def one_voxel(features, dtype=torch.float32) -> torch.Tensor:
    """A cloud in cell (0, 0, 0) of UNIT_GRID with these values in column 3."""
    column = torch.as_tensor(np.asarray(features), dtype=torch.float64).to(dtype)
    return torch.cat([torch.full((len(column), 3), 0.5, dtype=dtype), column[:, None]], dim=1)


def noisy(n: int, seed: int = 0) -> np.ndarray:
    """Values of very different size, whose float32 sum depends on every bracket."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, n) * 10.0 ** rng.integers(-3, 6, n)


large = pytest.mark.slow
# Lengths of up to four levels of the cascade.
LENGTHS = [1, 2, 8, 9, 31, 32, 33, 63, 64, 65, 1000, 1023, 1024, 1025, 1056, 2048, 5000,
           32767, 32768, 32769, 33825, pytest.param(2**20 + 33, marks=large)]  # fmt: skip


@pytest.mark.one_of("dtype", "reduce")
@each_reduction
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_one_voxel_with_all_points(device, n, dtype, reduce):
    check_voxelize(device, one_voxel(noisy(n) % 1000, dtype), *UNIT_GRID, -1, 1, reduce=reduce)


@pytest.mark.parametrize("max_points", [1, 10, 31, 32, 33, 64, 1000, 1024])
def test_hot_voxel_with_a_cap_uses_the_first_points(device, max_points):
    values, call = noisy(3000), (*UNIT_GRID, max_points, 1)
    check_voxelize(device, one_voxel(values), *call, reduce="mean")
    features = check_voxelize(device, one_voxel(values), *call, reduce="max")[0]
    assert features[0, 3] == values[:max_points].astype(np.float32).max()


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([BIG] + [1.0] * 31, BIG),
        ([BIG] + [1.0] * 63, BIG + 32),
        ([BIG] + [1.0] * 39, BIG + 8),
        ([BIG] + [0.0] * 1023 + [1.0] + [0.0] * 31 + [1.0], BIG + 2),
        ([1.0] * 31 + [BIG], BIG + 32),  # a tie, to even
        ([BIG] + ([0.0] * 31 + [1.0]) * 31 + [0.0] * 31, BIG),  # sums of blocks, left to right
        (([0.0] * 32 + ([1.0] + [0.0] * 31) * 30 + [BIG] + [0.0] * 31), BIG + 30),
        *(([i % 7 for i in range(n)], sum(i % 7 for i in range(n))) for n in (33, 1025, 40_000)),
        ([-0.0, -0.0], 0.0),
    ],
    ids=lambda v: "" if isinstance(v, list) else str(v),
)
def test_sums_worked_out_by_hand(device, values, total):
    features = check_voxelize(device, one_voxel(values), *UNIT_GRID, -1, 1, reduce="sum")[0]
    assert features[0, 3] == total
    assert not math.copysign(1, features[0, 3].item()) < 0
    feats = torch.tensor(values, dtype=torch.float32)[:, None]
    rows = torch.zeros(len(values), dtype=torch.int32)
    assert check_op("voxel_scatter", device, feats, rows, 1, "sum")[0].item() == total


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_signed_zeros_and_ties_go_to_the_first_point(device, reduce):
    for first, second in ((-0.0, 0.0), (0.0, -0.0)):
        cloud = one_voxel([first, second] * 40)
        features = check_voxelize(device, cloud, *UNIT_GRID, -1, 1, reduce=reduce)[0]
        assert math.copysign(1, features[0, 3].item()) == math.copysign(1, first)


@pytest.mark.one_of("reduce", "dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("num_features", [*range(3, 17), 64])
def test_every_number_of_features(device, num_features, reduce, dtype):
    cloud = street_cloud(250, num_features, seed=num_features, dtype=dtype)
    check_voxelize(device, cloud, *GRID, 3, -1, reduce=reduce)
