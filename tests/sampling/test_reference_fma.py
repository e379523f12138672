# SPDX-License-Identifier: Apache-2.0
"""The fused multiply-add of the reference is rounded exactly once."""

import ctypes
import ctypes.util
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvox.reference.fma import fma

F32_MAX = Fraction(2**24 - 1) * 2**104


def nearest_float32(value: Fraction) -> np.float32:
    """Half to even on the exact value, without floating-point arithmetic."""
    if value == 0:
        return np.float32(0)
    magnitude = abs(value)
    exponent = -149
    while magnitude / Fraction(2) ** exponent >= 2**24:
        exponent += 1
    scaled = magnitude / Fraction(2) ** exponent
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    rounded = whole * Fraction(2) ** exponent
    result = np.float32(np.inf) if rounded > F32_MAX else np.float32(float(rounded))
    return np.float32(-result if value < 0 else result)


def bits(x):
    return np.asarray(x).view({4: np.int32, 8: np.int64}[np.asarray(x).dtype.itemsize])


@pytest.mark.parametrize("sign", [1, -1])
def test_literal_case_where_rounding_twice_goes_wrong(sign):
    # (1 + e)(1 - e) 2^-24 with e = 2^-23 is 2^-24 - 2^-70: a hair less than half a step of c.
    a = np.array([sign * 2.0**-24 * (1 + 2.0**-23)], np.float32)
    b = np.array([1 - 2.0**-23], np.float32)
    c = np.array([sign * (1 + 2.0**-23)], np.float32)
    twice = np.float32(np.float64(a[0]) * np.float64(b[0]) + np.float64(c[0]))
    assert twice == np.float32(sign * (1 + 2.0**-22))
    assert fma(a, b, c)[0] == c[0]


def test_an_exact_tie_goes_to_even():
    half_step, one = np.array([2.0**-24], np.float32), np.array([1.0], np.float32)
    assert fma(half_step, one, one)[0] == 1
    odd = np.array([1 + 2.0**-23], np.float32)
    assert fma(half_step, one, odd)[0] == np.float32(1 + 2.0**-22)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(floats, floats, floats)
def test_float32_equals_the_exactly_rounded_rational(a, b, c):
    got = fma(np.array([a], np.float32), np.array([b], np.float32), np.array([c], np.float32))[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact != 0:
        assert bits(got) == bits(nearest_float32(exact))
    else:
        assert got == 0


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


def test_double_literal_is_not_the_two_step_value():
    # (1 + 2^-52)^2 - 1 - 2^-51 = 2^-104; in two steps it is 0.
    x = np.array([1 + 2.0**-52])
    assert (x * x - (1 + 2.0**-51))[0] == 0
    assert fma(x, x, np.array([-(1 + 2.0**-51)]))[0] == 2.0**-104


def test_overflow_and_denormals():
    big = np.array([3e38], np.float32)
    assert fma(big, big, np.array([0], np.float32))[0] == np.inf
    assert fma(big, np.array([2], np.float32), -big)[0] == big[0]  # no overflow in between
    tiny = np.array([struct.unpack("<f", struct.pack("<I", 1))[0]], np.float32)  # 2^-149
    half = np.array([0.5], np.float32)
    assert fma(tiny, half, np.array([0], np.float32))[0] == 0  # a tie, to even
    assert fma(tiny, half, tiny)[0] == 2 * tiny[0]  # 1.5 steps: a tie, to even
