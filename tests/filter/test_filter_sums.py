# SPDX-License-Identifier: Apache-2.0
"""Sums are exact, so that their order is free; means are rounded once."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from filter_cases import FLOATS, VALUE_DTYPES, rows_of, run_op, scan
from helpers import assert_same_bits, check_op
from hypothesis import given
from hypothesis import strategies as st

from torchvox import reference

INF, NAN = math.inf, math.nan
F16, BF16, F32, F64 = FLOATS
LOW, HIGH = -(2**63), 2**63 - 1
UNIT = 2**32


def column(values, dtype=F64):
    """One row of all values, and a row of none."""
    offsets = torch.tensor([0, len(values), len(values)], dtype=torch.int32)
    perm = torch.arange(len(values), dtype=torch.int32)
    return torch.tensor(values, dtype=dtype)[:, None], offsets, perm


def means(device, values, offsets, perm):
    """(means, sums), after a check that those are the means of the sums."""
    out = check_op("voxel_mean", device, values, offsets, perm)
    sums = check_op("voxel_sum", device, values, offsets, perm)
    for count in (torch.int32, torch.int64):
        call = sums, offsets.diff().to(count), values.dtype
        assert_same_bits(check_op("voxel_mean_of_sums", device, *call), out)
    return out, sums


def mean(device, values, dtype=F64):
    """The mean of the values, after a check of the row without points."""
    out, sums = means(device, *column(values, dtype))
    assert out[1].tolist() == [0] and not sums[1].any()
    return out[0].item()


@given(
    sums=st.lists(st.integers(LOW, HIGH) | st.sampled_from([LOW, HIGH, -1, 0]), min_size=1,
                  max_size=8),
    n=st.integers(1, 2**31 - 1) | st.integers(1, 5),
)  # fmt: skip
def test_the_mean_of_integers_is_exact_for_every_sum(device, sums, n):
    count = torch.full((len(sums),), n)
    column = torch.tensor(sums, dtype=torch.int64)[:, None]
    out = check_op("voxel_mean_of_sums", device, column, count, torch.int64)
    assert out[:, 0].tolist() == [math.floor(Fraction(s, n) + Fraction(1, 2)) for s in sums]


@pytest.mark.parametrize(
    ("dtype", "values", "average"),
    [
        (F32, [2.0**24, 2.0**24 + 2], 2.0**24),  # ties to even
        (F16, [2050.0, 2052.0], 2052.0),
        (F16, [2.0**-24, 2.0**-23], 2.0**-23),  # denormals
        (BF16, [-258.0, -260.0], -260.0),
        (F32, [2.0**30, 2.0**-9, -(2.0**30)], 2796203 / UNIT),  # cancellation
        *((F64, zero, 0.0) for zero in ([-0.0], [1.5, -1.5], [-1e-30], [5e-324, -5e-324])),
        (F64, [NAN, 3.0, INF, 4.0, -INF], 3.5),
        (F64, [1.0, -(2.0**31)], NAN),
    ],
)
def test_means_worked_out_by_hand(device, dtype, values, average):
    out = torch.tensor(mean(device, values, dtype), dtype=F64)
    assert_same_bits(out, torch.tensor(average, dtype=F64))  # a zero mean is +0


@pytest.mark.parametrize(
    ("dtype", "words", "average"),
    [  # above a tie of the dtype, but on it after a rounding to float64 or to eleven digits
        (F32, [2**30 + 2**6, 1, 1], 2.0**30 + 2**7),
        (F32, [-(2**30) - 2**6 - 1, UNIT - 1, 1], -(2.0**30) - 2**7),
        (F16, [0, 2**17 + 129, 1], (2**17 + 256) / UNIT),
    ],
)
def test_a_mean_is_rounded_once(device, dtype, words, average):
    one = torch.ones(1, dtype=torch.int32)
    assert check_op("voxel_mean_of_sums", device, torch.tensor([words]), one, dtype) == average


lattice = st.one_of(st.integers(-(2**52), 2**52), st.integers(-9, 9), st.sampled_from([2**41, 0]))


@given(units=st.lists(lattice, min_size=1, max_size=9), dtype=st.sampled_from([F32, F64]))
def test_means_of_the_lattice_are_within_half_a_unit_and_inside(device, units, dtype):
    values = torch.tensor([k / UNIT for k in units], dtype=F64).to(dtype).tolist()
    actual = mean(device, values, dtype)
    average = sum(map(Fraction, values)) / len(values)
    assert min(values) <= actual <= max(values)
    ulp = Fraction(float(np.spacing(abs(np.float32(actual) if dtype == F32 else actual))))
    assert abs(Fraction(actual) - average) <= Fraction(1, 2 * UNIT) + ulp / 2


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("columns", [0, 1, 2, 3, 4, 5, 8, 17])
def test_every_dtype_and_number_of_columns(device, columns, dtype):
    values = scan(200, dtype if dtype != torch.int64 else torch.int32, max(columns, 3))
    rng = np.random.default_rng(columns)
    lists = np.split(rng.permutation(200)[:180], np.sort(rng.integers(0, 180, 19)))
    offsets, perm = rows_of([np.sort(row).tolist() for row in lists], 200)
    means(device, values[:, :columns].to(dtype), offsets, perm)


@pytest.mark.parametrize(("columns", "dtype"), [(1, F32), (7, F32), (9, F16), (17, torch.int32)])
def test_rows_of_all_lengths_among_rows_of_no_point(device, columns, dtype):
    """Across the places that a block of the GPU takes, and more rows than it has threads."""
    rng = np.random.default_rng(columns)
    sizes = [rng.integers(0, 9, 150), np.zeros(700), [255, 1, 256, 700], np.zeros(600)]
    sizes += [np.ones(520), [0, 3], np.zeros(300)]
    ends = torch.from_numpy(np.concatenate([[0], *sizes]).cumsum()).int()
    n = int(ends[-1]) + 40  # the last ones are of no row
    values = scan(n, torch.int32 if dtype == torch.int32 else F64, max(columns, 3))[:, :columns]
    values = values.nan_to_num(posinf=3).clamp(-1000, 1000) if dtype == F16 else values
    half = n // 2  # blocks of small numbers, and blocks with NaN and large ones
    values[:half] = values[:half].nan_to_num(0, 0, 0).clamp(-1000, 1000)
    perm = torch.from_numpy(np.concatenate([np.arange(half), half + rng.permutation(n - half)]))
    means(device, values.to(dtype), ends, perm.int())


@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(VALUE_DTYPES))
def test_any_order_and_any_split_has_the_same_sums(device, seed, dtype):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    values = scan(n, dtype if dtype != torch.int64 else torch.int32, 3, seed % 1000).to(dtype)
    whole = check_op("voxel_sum", device, values, *rows_of([list(range(n))], n))
    parts = np.split(rng.permutation(n), np.sort(rng.integers(0, n + 1, 3)))
    sums = run_op("voxel_sum", device, values, *rows_of([part.tolist() for part in parts], n))
    together = sums[rng.permutation(len(parts)).tolist()]
    assert_same_bits(together.sum(0, keepdim=True), whole)


@pytest.mark.parametrize("n", [100_000, pytest.param(1 << 24, marks=pytest.mark.slow)])
def test_one_hot_row(device, n):
    """Beside rows of one point; words by NumPy."""
    values = torch.randn(n, 2, generator=torch.Generator().manual_seed(1)) * 1000
    offsets = torch.cat([torch.arange(8), torch.tensor([n - 7]), n - torch.arange(7).flip(0)])
    perm = torch.arange(n, dtype=torch.int32)
    wide = values.double().numpy()
    words = [np.floor(wide), np.round((wide - np.floor(wide)) * UNIT), np.ones_like(wide)]
    expected = np.add.reduceat(np.stack(words, 2).astype(int), offsets[:-1].numpy(), 0)
    call = (values, offsets.int(), perm)
    sums = run_op("voxel_sum", device, *call)
    assert_same_bits(sums, torch.from_numpy(expected.reshape(-1, 6)))
    out = reference.voxel_mean_of_sums(sums, offsets.int().diff(), F32)
    assert_same_bits(run_op("voxel_mean", device, *call), out)


@pytest.mark.parametrize("name", ["voxel_sum", "voxel_mean"])
def test_no_offset_and_no_perm_leads_outside(device, name):
    rng = np.random.default_rng(5)
    for edge in (3, 60, 2**31 - 1):
        offsets, perm = (torch.from_numpy(rng.integers(-edge, edge, n)).int() for n in (12, 50))
        assert len(run_op(name, device, scan(50), offsets, perm)) == 11
