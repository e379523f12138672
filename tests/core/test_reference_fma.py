# SPDX-License-Identifier: Apache-2.0
"""The fused multiply-add of the references, beside rational numbers."""

from fractions import Fraction

import numpy as np
import pytest

from torchvox.reference.fma import fma

N, ULP = 3000, 2.0**-52
SPECIAL = (0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan, 5e-324, -1e308, 2.0**-400, 2.0**400,
           1e-200)  # fmt: skip
rng = np.random.default_rng(0)


def normal():
    return rng.normal(size=N)


def canceled(a, b):
    return a, b, -(a * b) * (1 + rng.integers(-4, 5, N) * ULP)


def beside_ties(spread):
    """Products of 53 bits, and addends around half of their last one."""
    a = rng.integers(2**52, 2**53, N).astype(float)
    return a, 1 + rng.integers(0, 16, N) * spread, rng.choice([0.5, -0.5, 0.25, 2.0**-80], N)


def rounded_twice():
    """Sums that are a tie without the last bit of the product."""
    b = rng.choice([-1, 1], N) * (1 - ULP)
    return np.full(N, 1 + ULP), b, 2.0**53 + 2 * rng.integers(0, 2**50, N)


CASES = {
    "normal": lambda: (normal(), normal(), normal()),
    "canceled": lambda: canceled(normal(), normal()),
    "scales": lambda: np.ldexp(rng.normal(size=(3, N)), rng.integers(-90, 90, (3, N))),
    "ties": lambda: beside_ties(0),
    "almost ties": lambda: beside_ties(ULP),
    "rounded twice": rounded_twice,
    "any bits": lambda: rng.integers(-(2**63), 2**63, (3, N)).view(np.float64),
    "special": lambda: rng.choice(SPECIAL, (3, N)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_sum_of_doubles_is_rounded_once(name):
    a, b, c = CASES[name]()
    with np.errstate(all="ignore"):
        expected = a * b + c
    for k, numbers in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        if np.isfinite(numbers).all() and (exact := Fraction(numbers[0]) * Fraction(numbers[1])
                                           + Fraction(numbers[2])):  # fmt: skip
            try:
                expected[k] = exact.numerator / exact.denominator
            except OverflowError:
                expected[k] = np.inf if exact > 0 else -np.inf
    np.testing.assert_array_equal(fma(a, b, c), expected)
    same_sign = np.signbit(fma(a, b, c)) == np.signbit(expected)
    assert (same_sign | np.isnan(expected)).all()
