# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on float tensors with the same bits on every device: float64, some also float32.

torch's own sin, cos, log and sqrt differ between CPU and CUDA (on the CPU a vector library takes
roots of float64, which it does not always round correctly), its float sums depend on the device's
order of adding, and dividing a CUDA tensor by a Python number multiplies by the inverse. This
module uses only + - * of tensors and numbers, / of tensors, comparisons, integer operations and
stable sorting. Every op rounds once, because torch runs them as separate kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FIXED = 2.0**32  # steps per unit of fixed-point sums

_MANTISSA, _ONE = (1 << 52) - 1, 1023 << 52
# Taylor coefficients of sin(pi/2 x) / x and cos(pi/2 x) in x^2: below 1e-16 for |x| <= 1/2.
_QUARTER = math.pi / 2
_SIN = [(-1) ** k * _QUARTER ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(9)]
_COS = [(-1) ** k * _QUARTER ** (2 * k) / math.factorial(2 * k) for k in range(9)]
# log(m) = 2 s (1 + s^2/3 + s^4/5 + ..) with s = (m - 1) / (m + 1), |s| <= 0.172
_LOG = [2 / (2 * k + 1) for k in range(11)]


def sin_cos(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Sine and cosine of an angle in turns (1 = 360 degrees), float64 or float32."""
    quarters = turns * 4.0
    nearest = torch.floor(quarters + 0.5)
    x = quarters - nearest
    square = x * x
    sine, cosine = _polynomial(_SIN, square) * x, _polynomial(_COS, square)
    quadrant = nearest.to(torch.int64) & 3
    odd = (quadrant & 1) == 1
    sine, cosine = torch.where(odd, cosine, sine), torch.where(odd, sine, cosine)
    sine = torch.where(quadrant >= 2, -sine, sine)
    return sine, torch.where((quadrant == 1) | (quadrant == 2), -cosine, cosine)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Angle of the vectors (x, y) in radians, float64, -pi to pi, to 1e-15; 0 of (0, 0)."""
    short, long = torch.minimum(y.abs(), x.abs()), torch.maximum(y.abs(), x.abs())
    share = short / torch.where(long > 0, long, torch.ones_like(long))
    angle = share * (math.pi / 4 + 0.273 * (1.0 - share))  # to 0.004
    angle = torch.where(y.abs() > x.abs(), math.pi / 2 - angle, angle)
    angle = torch.where(x < 0, math.pi - angle, angle)
    angle = torch.where(y < 0, -angle, angle)
    sine, cosine = sin_cos(angle * (1 / math.tau))
    length = sqrt(x * x + y * y)
    rest = (y * cosine - x * sine) / torch.where(long > 0, length, torch.ones_like(long))
    square = rest * rest
    return angle + rest * (1.0 + square * (1 / 6 + square * (3 / 40)))  # its arcsine


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive normal numbers."""
    bits = x.view(torch.int64)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & _MANTISSA) | _ONE).view(torch.float64)
    large = mantissa > math.sqrt(2)
    mantissa = torch.where(large, mantissa * 0.5, mantissa)
    exponent = exponent + large.to(torch.int64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    return _polynomial(_LOG, s * s) * s + exponent.to(torch.float64) * math.log(2)


def sqrt(x: Tensor) -> Tensor:
    """Square root of zeros and positive normal numbers, float64 or float32, to one unit in the last
    place.

    Heron's method: half the exponent is right to 7 %, and each step squares the error.
    """
    single = x.dtype == torch.float32
    bits = x.view(torch.int32 if single else torch.int64)
    root = ((bits >> 1) + ((127 << 22) if single else (_ONE >> 1))).view(x.dtype)
    for _ in range(4 if single else 5):
        root = (root + x / root) * 0.5
    return torch.where(x == 0, x, root)


def mean(x: Tensor) -> Tensor:
    """Mean over the last dimension but one, [..., N, C] -> [..., 1, C], summed in fixed point.

    Integer sums do not depend on their order. |x| must stay below 2^31 / N.
    """
    total = torch.floor(x * FIXED + 0.5).to(torch.int64).sum(-2, keepdim=True)
    return total.to(torch.float64) * (1 / FIXED / x.shape[-2])


def _polynomial(coefficients: list[float], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value.mul_(x).add_(coefficient)
    return value
