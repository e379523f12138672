# SPDX-License-Identifier: Apache-2.0
"""The fused multiply-add of the reference is rounded exactly once."""

import ctypes
import ctypes.util

import numpy as np
import pytest

from torchvox.reference.fma import fma


def bits(x):
    return np.asarray(x).view({4: np.int32, 8: np.int64}[np.asarray(x).dtype.itemsize])


# (1 + e)(1 - e) 2^-24 with e = 2^-23 is 2^-24 - 2^-70: a hair less than half a step of c.
E, TINY, BIG = 2.0**-23, 2.0**-149, float(np.float32(3e38))


@pytest.mark.parametrize(
    ("a", "b", "c", "expected", "dtype"),
    [
        (2.0**-24 * (1 + E), 1 - E, 1 + E, 1 + E, np.float32),  # rounded twice: 1 + 2e
        (-(2.0**-24) * (1 + E), 1 - E, -(1 + E), -(1 + E), np.float32),
        (2.0**-24, 1.0, 1.0, 1.0, np.float32),  # a tie, to even
        (2.0**-24, 1.0, 1 + E, 1 + 2 * E, np.float32),
        (BIG, BIG, 0.0, np.inf, np.float32),
        (BIG, 2.0, -BIG, BIG, np.float32),  # no overflow in between
        (TINY, 0.5, 0.0, 0.0, np.float32),  # a tie, to even
        (TINY, 0.5, TINY, 2 * TINY, np.float32),
        # (1 + 2^-52)^2 - 1 - 2^-51 = 2^-104; in two steps it is 0.
        (1 + 2.0**-52, 1 + 2.0**-52, -(1 + 2.0**-51), 2.0**-104, np.float64),
    ],
)
def test_values_worked_out_by_hand(a, b, c, expected, dtype):
    result = fma(*(np.array([v], dtype) for v in (a, b, c)))
    assert result.dtype == dtype and result[0] == dtype(expected)


@pytest.mark.parametrize("near_cancellation", [False, True])
@pytest.mark.parametrize(
    ("name", "ctype", "integer", "dtype"),
    [("fmaf", ctypes.c_float, np.uint32, np.float32), ("fma", ctypes.c_double, np.uint64, float)],
)
def test_it_equals_libm_on_random_bit_patterns(name, ctype, integer, dtype, near_cancellation):
    path = ctypes.util.find_library("m")
    if path is None:
        pytest.skip("no libm to compare with")
    function = getattr(ctypes.CDLL(path), name)
    function.restype, function.argtypes = ctype, [ctype] * 3
    rng = np.random.default_rng(11)
    a, b, c = rng.integers(0, 2**64, (3, 3000), dtype=np.uint64).astype(integer).view(dtype)
    a[:1000], b[:1000], c[:1000] = rng.normal(size=(3, 1000))
    with np.errstate(all="ignore"):
        if near_cancellation:
            c = -(a * b) * dtype(1 + 2**-22)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[finite], b[finite], c[finite]
    expected = np.array([function(*map(float, v)) for v in zip(a, b, c, strict=True)], dtype)
    assert len(a) > 1000
    np.testing.assert_array_equal(bits(fma(a, b, c)), bits(expected))
