# SPDX-License-Identifier: Apache-2.0
"""Values: the order of a sum, hot voxels, exact cascades, half types rounded once at the end."""

import math

import numpy as np
import pytest
import torch
from helpers import forced
from voxel_cases import (
    FLOAT_DTYPES,
    GRID,
    REDUCTIONS,
    UNIT_GRID,
    check_op,
    check_voxelize,
    cloud_at,
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


# Lengths of up to four levels of the cascade.
LENGTHS = [1, 2, 8, 9, 31, 32, 33, 63, 64, 65, 1000, 1023, 1024, 1025, 1056, 2048, 5000,
           32767, 32768, 32769, 33825]  # fmt: skip


@pytest.mark.one_of("dtype", "reduce")
@each_reduction
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_one_voxel_with_all_points(device, n, dtype, reduce):
    check_voxelize(device, one_voxel(noisy(n) % 1000, dtype), *UNIT_GRID, -1, 1, reduce=reduce)


@pytest.mark.parametrize("n", [1023, 1024, 1025, 16_383, 16_384, 16_385])
def test_runs_and_chunks_of_points_on_the_cpu(n):
    """Points of one voxel in runs of every length, around the chunks that the CPU works in."""
    length = torch.randint(1, 90, (n,), generator=torch.Generator().manual_seed(n))
    voxel = torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(n + 1))
    x = voxel.repeat_interleave(length)[:n].float() + 0.5
    x[::97] = torch.nan
    half = torch.full((n,), 0.5)
    cloud = torch.stack([x, half, half, torch.linspace(-1, 1, n) / 3], dim=1)
    grid = ([1.0] * 3, [0.0, 0.0, 0.0, 38.0, 1.0, 1.0])
    for parts in (1, 2, 5):
        with forced(voxel_partitions=parts):
            check_voxelize("cpu", cloud, *grid, -1, -1, reduce="mean")
            check_voxelize("cpu", cloud, *grid, 70, 30, reduce="sum")


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
        pytest.param([1.0] * (2**20 + 33), 2.0**20 + 33, marks=pytest.mark.slow),
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


@pytest.mark.one_of("reduce", "dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("num_features", [*range(3, 17), 64])
def test_every_number_of_features(device, num_features, reduce, dtype):
    cloud = street_cloud(250, num_features, seed=num_features, dtype=dtype)
    check_voxelize(device, cloud, *GRID, 3, -1, reduce=reduce)


def in_one_voxel(value: float, dtype=torch.float64) -> torch.Tensor:
    return cloud_at((0.5, 0.5, 0.5, value), dtype=dtype)


@pytest.mark.parametrize("reduce", ["none", "mean", "max"])
@pytest.mark.parametrize(
    ("out_dtype", "value", "rounded"),
    [
        (torch.float16, 1 + 2.0**-11, 1.0),
        (torch.float16, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-10),  # via float32: 1.0
        (torch.float16, 1 + 3 * 2.0**-11 - 2.0**-40, 1 + 2.0**-10),  # via float32: 1 + 2^-9
        (torch.float16, 65519.999999, 65504.0),
        (torch.float16, 65520.0, float("inf")),
        (torch.float16, 2.0**-25, 0.0),
        (torch.float16, 2.0**-25 + 2.0**-60, 2.0**-24),
        (torch.float16, 3 * 2.0**-25, 2.0**-23),
        (torch.bfloat16, 1 + 2.0**-8, 1.0),
        (torch.bfloat16, 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),
        (torch.bfloat16, 1 + 3 * 2.0**-8 - 2.0**-40, 1 + 2.0**-7),
        (torch.bfloat16, 1e300, float("inf")),
        (torch.bfloat16, -(2.0**-134), -0.0),
        (torch.bfloat16, 2.0**-134 + 2.0**-160, 2.0**-133),
    ],
)
def test_float64_becomes_half_in_one_rounding(device, out_dtype, value, rounded, reduce):
    features = check_voxelize(
        device, in_one_voxel(value), *UNIT_GRID, 1, 1, reduce=reduce, out_dtype=out_dtype
    )[0]
    assert features.flatten()[3].item() == rounded
