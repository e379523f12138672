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
        total, error = _two_sum(product, addend)
        odd = total.view(np.int64) & 1 == 1
        inexact = np.isfinite(total) & (error != 0)
        towards = np.where(error > 0, INF, -INF)
        total = np.where(inexact & ~odd, np.nextafter(total, towards), total)
        return total.astype(np.float32)


def _fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Exact rationals where the double expression is inexact or special, one element at a time."""
    with np.errstate(all="ignore"):
        out = np.atleast_1d(a * b + c)
    flat = zip(np.ravel(a).tolist(), np.ravel(b).tolist(), np.ravel(c).tolist(), strict=True)
    for k, (x, y, z) in enumerate(flat):
        if not np.isfinite([x, y, z]).all():
            continue
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact != 0:
            out.flat[k] = _nearest_double(exact)
    return out.reshape(np.shape(a))


def _nearest_double(value: Fraction) -> float:
    """Integer true division rounds once, half to even, subnormals included."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return INF if value > 0 else -INF


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knuth: sum and error with sum + error == a + b exactly."""
    total = a + b
    bb = total - a
    return total, (a - (total - bb)) + (b - bb)
