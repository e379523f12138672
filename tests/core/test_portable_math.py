# SPDX-License-Identifier: Apache-2.0
"""The kernels' own exp, log, sigmoid, sin, cos and atan2. tests/cpp/test_core_kernels.cpp
measures their accuracy over many more floats, and compares the device with the host."""

import numpy as np
import pytest

from torchvox import _C
from torchvox.reference import portable_math

EXACT = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-np.maximum(x, -700))),
    "sin": np.sin,
    "cos": np.cos,
}


def floats() -> np.ndarray:
    """Every 65521st float32 and those that decide: specials, powers of two, quarter turns."""
    bits = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32)
    quarters = (np.arange(-60, 60) * np.pi / 2).astype(np.float32)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 88.72, 88.73, -103.9, -104.1, 71476]
    near = [np.nextafter(quarters, np.float32(v)) for v in (-np.inf, np.inf)]
    some = np.random.default_rng(0).normal(0, 5, 20000)
    every = [bits.view(np.float32), quarters, *near, np.float32(special), np.float32(some)]
    return np.concatenate(every)


def kernels_value(function: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    x, out = np.ascontiguousarray(x, np.float32), np.empty(len(x), np.float32)
    second = 0 if y is None else y.ctypes.data
    _C.portable_math(function, x.ctypes.data, second, out.ctypes.data, len(x))
    return out


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        unit = np.maximum(np.ldexp(1.0, np.frexp(exact)[1] - 24), 2.0**-149)
        off = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    return np.where(same, 0, np.where(np.isnan(off), np.inf, off))


def pairs() -> list[tuple[np.ndarray, np.ndarray | None]]:
    """x of a function of one argument, x and y of atan2."""
    x = floats()
    return [(x, y) for y in (x[::-1].copy(), np.roll(x, 1), x, -x, x * np.float32(0.37))]


@pytest.mark.parametrize("function", [*EXACT, "atan2"])
def test_a_function_is_within_two_units_and_the_reference_has_its_bits(function):
    for x, y in pairs() if function == "atan2" else [(floats(), None)]:
        got = kernels_value(function, x, y)
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            exact = EXACT[function](wide) if y is None else np.arctan2(y.astype(np.float64), wide)
        off = ulps(got, exact)
        assert off.max() <= 2, (x[off.argmax()], off.max())
        given = (x,) if y is None else (y, x)
        expected = getattr(portable_math, function)(*given)
        assert expected.dtype == np.float32
        wrong = got.view(np.uint32) != expected.view(np.uint32)
        assert not wrong.any(), x[wrong][:5]


def test_sine_and_cosine_of_doubles_are_exact_to_a_few_last_places_of_one():
    x = np.random.default_rng(1).normal(0, 1, 500) * 2.0 ** np.arange(500) ** 0.5
    sine, cosine = portable_math.sin_cos(x)
    assert np.abs(sine - np.sin(x)).max() < 4e-16 and np.abs(cosine - np.cos(x)).max() < 4e-16
