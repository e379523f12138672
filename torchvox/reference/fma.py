# SPDX-License-Identifier: Apache-2.0
"""a * b + c with one rounding, in NumPy, exact for float32 and float64."""

from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

INF = float("inf")


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike) -> np.ndarray:
    """a * b + c rounded once, float32 or float64."""
    a, b, c = np.broadcast_arrays(a, b, c)
    return _fma32(a, b, c) if a.dtype == np.float32 else _fma64(a, b, c)


def _fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The product is exact in double. The sum is rounded to odd there, which keeps enough of what
    was cut off (53 >= 2 * 24 + 2 bits) for the second rounding to be right."""
    with np.errstate(all="ignore"):
        product, addend = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        total = _sum_to_odd(product, addend)
        return total.astype(np.float32)


def _fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """As _fma32, with the product as a sum of two doubles (Boldo and Melquiond, IEEE Transactions
    on Computers 2008); exact rationals where a part of it could leave the range of doubles."""
    with np.errstate(all="ignore"):
        plain = np.atleast_1d(a * b + c)
        high, low = _two_product(a, b)
        upper, lower = _two_sum(c, low)
        total, error = _two_sum(high, upper)
        out = np.atleast_1d(total + _sum_to_odd(lower, error))
        sizes = np.abs(np.stack([a, b, c])).reshape(3, -1)
        inner = (sizes > 2.0**-400) & (sizes < 2.0**400)
        inner[2] |= sizes[2] == 0
    out = np.where(inner.all(0).reshape(out.shape), out, plain)
    for k in np.flatnonzero(~inner.all(0)):
        x, y, z = (float(np.ravel(each)[k]) for each in (a, b, c))
        if np.isfinite([x, y, z]).all():
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            out.flat[k] = _nearest_double(exact) if exact != 0 else plain.flat[k]
    return out.reshape(np.shape(a))


def _nearest_double(value: Fraction) -> float:
    """Integer true division rounds once, half to even, subnormals included."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return INF if value > 0 else -INF


def _sum_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b; where it is not exact, that neighbor of it whose last bit is 1."""
    total, error = _two_sum(a, b)
    even = np.asarray(total).view(np.int64) & 1 == 0
    cut = np.isfinite(total) & (error != 0) & even
    return np.where(cut, np.nextafter(total, np.where(error > 0, INF, -INF)), total)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Dekker: product and error with product + error == a * b exactly."""
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    product = a * b
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two numbers of 26 bits with the sum a."""
    scaled = a * (2.0**27 + 1)
    high = scaled - (scaled - a)
    return high, a - high


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knuth: sum and error with sum + error == a + b exactly."""
    total = a + b
    bb = total - a
    return total, (a - (total - bb)) + (b - bb)
