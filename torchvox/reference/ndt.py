# SPDX-License-Identifier: Apache-2.0
"""Samples of a voxel, one voxel and one ray at a time: sums of them, normal distributions, and how
rays pass these. Python's floats are float64; every operation is rounded once."""

import math
from typing import NamedTuple

import numpy as np

from torchvox.reference.portable_math import exp, log
from torchvox.reference.rays import UNIT

__all__ = ["Distribution", "Moments", "Ndt", "added", "likelihoods", "miss", "moments_of", "summed"]

FIRST, FIRST_INTENSITY = 0.01, 1.0  # variances of a first sample
LOWER = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]


class Ndt(NamedTuple):
    noise: float  # meters
    adaptation: float
    samples: float
    reset: float
    reset_samples: float


class Distribution(NamedTuple):
    n: int
    mean: list[float]
    cov: list[float] | None  # lower triangular factor
    intensity: list[float] | None  # mean, variance


class Moments(NamedTuple):
    n: int
    mean: list[float]
    scatter: list[float]
    intensity: float
    intensity_scatter: float


def square(cov: list[float]) -> list[float]:
    """The product of a factor with its transpose."""
    rows = [[cov[0], 0.0, 0.0], [cov[1], cov[2], 0.0], cov[3:]]
    elements = []
    for i, j in LOWER:
        total = 0.0
        for k in range(j + 1):
            total += rows[i][k] * rows[j][k]
        elements.append(total)
    return elements


def summed(offsets: list[tuple[int, ...]], levels: list[int], bounds: list[float]) -> Moments:
    """Of samples: offsets from the center in units, intensities in 65535ths between bounds."""
    k = len(offsets)
    mean = [sum(o[i] for o in offsets) / k / UNIT for i in range(3)]
    scatter = []
    for i, j in LOWER:
        products = float(sum(o[i] * o[j] for o in offsets))
        scatter.append(products / UNIT**2 - k * mean[i] * mean[j])
    step, level = (bounds[1] - bounds[0]) / 65535, sum(levels) / k
    spread = (float(sum(q * q for q in levels)) - k * level * level) * step * step
    return Moments(k, mean, scatter, bounds[0] + level * step, spread)


def moments_of(voxel: Distribution) -> Moments:
    """Without the variance of the first sample."""
    n, scatter, spread = voxel.n, [0.0] * 6, 0.0
    if voxel.cov is not None:
        scatter = [n * s for s in square(voxel.cov)]
        scatter = [s - FIRST if i == j else s for s, (i, j) in zip(scatter, LOWER, strict=True)]
    if voxel.intensity is not None:
        spread = n * voxel.intensity[1] - FIRST_INTENSITY
    level = 0.0 if voxel.intensity is None else voxel.intensity[0]
    return Moments(n, voxel.mean, scatter, level, spread)


def added(voxel: Distribution, more: Moments) -> Distribution:
    """A voxel with more samples; numbers are rounded to float32 at the end."""
    n, k = float(voxel.n), float(more.n)
    total = n + k

    def moved(old: float, new: float) -> tuple[float, float]:
        off = new - old if n else 0.0
        return off, (old + off * (k / total) if n else new)

    away, mean = zip(*map(moved, voxel.mean, more.mean), strict=True)
    cov = level = None
    if voxel.cov is not None:
        before = [n * s for s in square(voxel.cov)]
        before = before if n else [FIRST if i == j else 0.0 for i, j in LOWER]
        together = zip(before, more.scatter, LOWER, strict=True)
        a = [
            (old + new + away[i] * away[j] * n * k / total) / total for old, new, (i, j) in together
        ]
        c00 = math.sqrt(a[0])
        c10, c20 = a[1] / c00, a[3] / c00
        c11 = math.sqrt(a[2] - c10 * c10)
        c21 = (a[4] - c20 * c10) / c11
        cov = rounded([c00, c10, c11, c20, c21, math.sqrt(a[5] - c20 * c20 - c21 * c21)])
    if voxel.intensity is not None:
        off, middle = moved(voxel.intensity[0], more.intensity)
        old = n * voxel.intensity[1] if n else FIRST_INTENSITY
        spread = (old + more.intensity_scatter + off * off * n * k / total) / total
        level = rounded([middle, spread])
    return Distribution(min(int(total), 2**31 - 1), rounded(list(mean)), cov, level)


def rounded(numbers: list[float]) -> list[float]:
    return [float(np.float32(x)) for x in numbers]


def likelihoods(voxel: Distribution, start, end, cell, samples: bool, noise: float) -> tuple:
    """(p_v, p_s) of the point of a ray, between places in units, where the distribution of a cell
    is densest. samples: the ray ends at something. noise: in voxels."""
    x, y, z = (float(abs(b - a)) for a, b in zip(start, end, strict=True))
    length = math.sqrt(x * x + y * y + z * z)
    center = [c * UNIT + UNIT // 2 for c in cell]
    o = [(a - c) / UNIT for a, c in zip(start, center, strict=True)]
    e = [(b - c) / UNIT for b, c in zip(end, center, strict=True)]
    along = [float(b - a) / length if length else 0.0 for a, b in zip(start, end, strict=True)]
    assert voxel.cov is not None
    c00, c10, c11, c20, c21, c22 = voxel.cov

    def solved(v: list[float]) -> list[float]:
        x = v[0] / c00
        y = (v[1] - c10 * x) / c11
        return [x, y, (v[2] - c20 * x - c21 * y) / c22]

    a, b = solved(along), solved([p - u for p, u in zip(o, voxel.mean, strict=True)])
    squares = a[0] * a[0] + a[1] * a[1] + a[2] * a[2]
    t = -(a[0] * b[0] + a[1] * b[1] + a[2] * b[2]) / squares if squares else 0.0
    distance = to_end = 0.0
    for i in range(3):
        nearest = b[i] + t * a[i]
        off = o[i] + t * along[i] - e[i]
        distance += nearest * nearest
        to_end += off * off
    p_v, p_s = exp(np.array([-distance / 2, -to_end / (2 * noise * noise)])).tolist()
    return p_v, p_s if samples else 0.0


def miss(p_v: float, p_s: float, adaptation: float, lowest: float) -> int:
    """Log-odds in 1/65536, no lower than `lowest`."""
    p = 0.5 - adaptation / 2 * p_v * (1 - p_s)
    logodds = log(np.array([p / (1 - p)])).item()
    return -math.floor(-max(logodds, lowest) * 65536 + 0.5)
