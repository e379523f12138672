# SPDX-License-Identifier: Apache-2.0
"""exp, log, sigmoid, sin, cos and atan2 in float32 NumPy, bit for bit those of the kernels
(csrc/kernels/core/portable_math.h): the same steps, each rounded once.

`exp`, `log` and `sin_cos` take float64 too (portable_double.h). At most 2 ulp from the exact value,
for every float32.
"""

import numpy as np

from .fma import fma

f32 = np.float32
INF, NAN = f32(np.inf), np.array([0x7FC00000], np.uint32).view(f32)[0]

TWO_OVER_PI = (0, 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0)
LARGE = 71476.0  # angles from here on are reduced in integers


def exp(x: np.ndarray) -> np.ndarray:
    if np.asarray(x).dtype == np.float64:
        return _exp64(np.asarray(x))
    x = np.asarray(x, f32)
    with np.errstate(all="ignore"):
        inside = np.where(np.isnan(x), f32(0), np.clip(x, f32(-104), f32(89)))
        n = _round(f32(1.44269502) * inside)
        f = fma(n, f32(-0.693145752), inside)
        f = fma(n, f32(-1.42860677e-6), f)
        p = _polynomial(
            (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0), f
        )
        whole = n.astype(np.int32)
        half = np.trunc(whole / 2).astype(np.int32)
        value = p * np.ldexp(f32(1), half) * np.ldexp(f32(1), whole - half)
        value = np.where(x > 89, INF, np.where(x < -104, f32(0), value))
    return np.where(np.isnan(x), NAN, value).astype(f32)


def log(x: np.ndarray) -> np.ndarray:
    if np.asarray(x).dtype == np.float64:
        return _log64(np.asarray(x))
    x = np.asarray(x, f32)
    with np.errstate(all="ignore"):
        small = x < f32(1.17549435e-38)
        scaled = np.where(small, x * f32(8388608), x)
        bits = np.ascontiguousarray(scaled).view(np.uint32)
        shift = (bits - np.uint32(0x3F2AAAAB)) & np.uint32(0xFF800000)
        e = np.where(small, f32(-23), f32(0)) + (shift.view(np.int32) // 8388608).astype(f32)
        m = (bits - shift).view(f32) - f32(1)
        s = m * m
        r = _polynomial((-0.130310059, -0.121484190, -0.166846052, -0.249996200), s)
        t = _polynomial((0.140869141, 0.139814854, 0.200120345), s)
        r = _polynomial((0.333331972, -0.5), m, first=fma(t, m, r))
        value = fma(e, f32(0.693147182), fma(r, s, m))
        value = np.where(x == 0, -INF, np.where(np.isposinf(x), x, value))
    return np.where(np.isnan(x) | (x < 0), NAN, value).astype(f32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, f32)
    with np.errstate(all="ignore"):
        negative = x < 0
        e = exp(np.where(negative, x, -x))
        whole = f32(1) + e
        q = np.where(negative, e, f32(1)) / whole
        cut = e - (whole - f32(1))
        value = fma(q * cut, np.where(negative, q - f32(1), -q), q)
    return np.where(np.isnan(x), NAN, value).astype(f32)


def sin_cos(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        finite = np.isfinite(x)
        inside = np.where(finite, x, x.dtype.type(0))
        double = x.dtype == np.float64
        quarter, rest = _quarters64(inside) if double else _quarters32(inside)
        sine, cosine = _core64(rest) if double else _core32(rest)
        odd = quarter & 1 == 1
        sine, cosine = np.where(odd, cosine, sine), np.where(odd, sine, cosine)
        sine = np.where(quarter & 2 != 0, -sine, sine)
        cosine = np.where((quarter + 1) & 2 != 0, -cosine, cosine)
        nan = np.float64(np.nan) if double else NAN
    return np.where(finite, sine, nan), np.where(finite, cosine, nan)


def sin(x: np.ndarray) -> np.ndarray:
    return sin_cos(np.asarray(x, f32))[0]


def cos(x: np.ndarray) -> np.ndarray:
    return sin_cos(np.asarray(x, f32))[1]


def atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    y, x = np.broadcast_arrays(np.asarray(y, f32), np.asarray(x, f32))
    with np.errstate(all="ignore"):
        ax, ay = np.abs(x), np.abs(y)
        least, most = np.where(ax < ay, ax, ay), np.where(ax < ay, ay, ax)
        t = np.where(np.isfinite(least), least / most, f32(1))
        t = np.where(most > 0, t, f32(0)).astype(f32)
        s = t * t
        p = _polynomial(ATAN, s)
        angle = fma(p * s, t, t)
        angle = np.where(ax < ay, (f32(1.57079637) - angle) + f32(-4.37113883e-8), angle)
        angle = np.where(np.signbit(x), (f32(3.14159274) - angle) + f32(-8.74227766e-8), angle)
        angle = np.where(np.signbit(y), -angle, angle)
    return np.where(np.isnan(x) | np.isnan(y), NAN, angle).astype(f32)


ATAN = (
    0.0029206383, -0.0163677149, 0.0432115197, -0.0755218565,
    0.106659919, -0.142110527, 0.199937731, -0.333331525,
)  # fmt: skip


LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _exp64(x: np.ndarray) -> np.ndarray:
    """fdlibm's steps, without fma."""
    with np.errstate(all="ignore"):
        inside = np.where(np.isnan(x), 0.0, np.clip(x, -745.2, 709.782712893384))
        n = (inside * 1.44269504088896338700 + 6755399441055744.0) - 6755399441055744.0
        high, low = inside - n * LN2_HIGH, n * LN2_LOW
        r = high - low
        s = r * r
        p = -1.65339022054652515390e-06 + s * 4.13813679705723846039e-08
        p = 6.61375632143793436117e-05 + s * p
        p = -2.77777777770155933842e-03 + s * p
        p = 1.66666666666666019037e-01 + s * p
        c = r - s * p
        y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
        whole = n.astype(np.int64)
        half = np.trunc(whole / 2).astype(np.int64)
        value = y * np.ldexp(1.0, half) * np.ldexp(1.0, whole - half)
        value = np.where(x > 709.782712893384, INF, np.where(x < -745.2, 0.0, value))
    return np.where(np.isnan(x), np.nan, value).astype(np.float64)


def _log64(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        small = x < 2.2250738585072014e-308
        scaled = np.where(small, x * 18014398509481984.0, x)
        bits = np.ascontiguousarray(scaled).view(np.uint64).reshape(x.shape)
        shift = (bits - np.uint64(0x3FE6A09E667F3BCD)) & np.uint64(0xFFF0000000000000)
        e = np.where(small, -54.0, 0.0) + (shift.view(np.int64) // 2**52).astype(np.float64)
        f = (bits - shift).view(np.float64) - 1.0
        s = f / (2.0 + f)
        z = s * s
        w = z * z
        even = 2.222219843214978396e-01 + w * 1.531383769920937332e-01
        even = 3.999999999940941908e-01 + w * even
        odd = 1.818357216161805012e-01 + w * 1.479819860511658591e-01
        odd = 2.857142874366239149e-01 + w * odd
        odd = 6.666666666666735130e-01 + w * odd
        rest, half_square = w * even + z * odd, 0.5 * f * f
        value = e * LN2_HIGH - ((half_square - (s * (half_square + rest) + e * LN2_LOW)) - f)
        value = np.where(x == 0, -INF, np.where(np.isposinf(x), x, value))
    return np.where(np.isnan(x) | (x < 0), np.nan, value).astype(np.float64)


def _round(x: np.ndarray) -> np.ndarray:
    """To the nearest whole number, ties to even, for |x| < 2^22."""
    return (x + f32(12582912)) - f32(12582912)


def _polynomial(coefficients, x: np.ndarray, first: np.ndarray | None = None) -> np.ndarray:
    """Horner's rule with fma; `first` stands before the coefficients."""
    kind = x.dtype.type
    if first is None:
        first, coefficients = np.full_like(x, kind(coefficients[0])), coefficients[1:]
    for coefficient in coefficients:
        first = fma(first, x, kind(coefficient))
    return first


def _quarters32(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = _round(f32(0.636619747) * x)
    rest = fma(n, f32(-1.57079601), x)
    rest = fma(n, f32(-3.13916473e-7), rest)
    rest = fma(n, f32(-5.39030253e-15), rest)
    large = np.abs(x) > f32(LARGE)
    quarter = np.where(large, 0, n).astype(np.int64)
    if large.any():
        pairs = [_large_quarters(float(v)) for v in x[large]]
        quarter[large] = [q for q, _ in pairs]
        rest[large] = [r for _, r in pairs]
    return quarter, rest


def _large_quarters(x: float) -> tuple[int, np.float32]:
    """Payne and Hanek: the product with 192 bits of 2 / pi, in integers."""
    bits = int(np.array([abs(x)], f32).view(np.uint32)[0])
    significand, exponent = (bits << 8 | 0x80000000) & 0xFFFFFFFF, (bits >> 23) - 126
    word, shift = exponent >> 5, exponent & 31

    def at(k: int) -> int:
        return (TWO_OVER_PI[k] << 32 | TWO_OVER_PI[k + 1]) >> (32 - shift) & 0xFFFFFFFF

    p = significand * at(word + 1) + (significand * at(word + 2) >> 32)
    p = (p + (significand * at(word) << 32)) & 0xFFFFFFFFFFFFFFFF
    quarter, p = p >> 62, p & 0x3FFFFFFFFFFFFFFF
    if p & 0x2000000000000000:
        quarter, p = quarter + 1, p - 0x4000000000000000
    rest = f32(float(p) * 3.4061215800304776e-19)
    return (-quarter, -rest) if x < 0 else (quarter, rest)


def _quarters64(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = np.where(np.abs(x) > 2.0**50, 0.0, x)
    n = (x * 0.63661977236758138 + 6755399441055744.0) - 6755399441055744.0
    rest = fma(n, np.float64(-1.5707963267948966), x)
    rest = fma(n, np.float64(-6.123233995736766e-17), rest)
    return n.astype(np.int64), rest


def _core32(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = x * x
    sine = _polynomial((2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1), s)
    cosine = _polynomial((2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0), s)
    return fma(sine, fma(s, x, f32(0)), x), cosine


SINE = (
    1.58969099521155010221e-10, -2.50507602534068634195e-8, 2.75573137070700676789e-6,
    -1.98412698298579493134e-4, 8.33333333332248946124e-3, -1.66666666666666324348e-1,
)  # fmt: skip
COSINE = (
    -1.13596475577881948265e-11, 2.08757232129817482790e-9, -2.75573143513906633035e-7,
    2.48015872894767294178e-5, -1.38888888888741095749e-3, 4.16666666666666019037e-2, -0.5, 1.0,
)  # fmt: skip


def _core64(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    s = x * x
    return fma(_polynomial(SINE, s), fma(s, x, np.float64(0)), x), _polynomial(COSINE, s)
