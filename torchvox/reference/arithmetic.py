# SPDX-License-Identifier: Apache-2.0
"""The arithmetic that decides bits: working precision, the sum rule, ordering, final rounding."""

from __future__ import annotations

import numpy as np
import torch

SUM_BASE = 32  # ranks per block, and blocks per block of the next level


def to_working(tensor: torch.Tensor) -> np.ndarray:
    """The values in the precision they are computed in: float64 for float64, else float32."""
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.detach().to(wide).numpy()


def from_working(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Round to `dtype`, to nearest even and once (float64 to half never passes through float32)."""
    if dtype == torch.float64:
        return torch.from_numpy(values.astype(np.float64))
    if dtype == torch.float32:
        return torch.from_numpy(values.astype(np.float32))
    if dtype == torch.float16:
        return torch.from_numpy(values.astype(np.float16))
    return torch.from_numpy(_bfloat16_bits(values).view(np.int16)).view(torch.bfloat16)


def _bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """bfloat16 is the upper half of a float32; round that half to nearest even."""
    if values.dtype == np.float64:
        values = _round_to_odd(values)
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    lowest_kept_bit = (bits >> np.uint64(16)) & np.uint64(1)
    rounded = (bits + np.uint64(0x7FFF) + lowest_kept_bit) >> np.uint64(16)
    return np.where(np.isnan(values), np.uint64(0x7FC0), rounded).astype(np.uint16)


def _round_to_odd(values: np.ndarray) -> np.ndarray:
    """float64 to float32, towards zero, with the last bit set when anything was cut off.

    The set bit remembers which side of a tie the exact value was on, so that rounding the
    result again, to a much shorter format, equals one rounding of the exact value.
    """
    nearest = values.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(values)
    truncated = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = (truncated.astype(np.float64) != values) & ~np.isnan(values)
    bits = truncated.astype(np.float32).view(np.uint32)
    return np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32).view(np.float32)


def cascade_sum(values: np.ndarray) -> np.ndarray:
    """Sum the rows of `values` (n, F), or (n,), in rank order, as a base-32 cascade.

    Level 0 adds single rows, left to right. After every 32 rows its sum moves to level 1, after
    every 32 of those the sum of level 1 moves to level 2, and so on. What is left in the levels
    at the end is added finest first: ((a0 + a1) + a2) + ... Every accumulator starts at +0, and
    all additions are rounded to the dtype of `values`. Up to 32 rows this is the plain loop.
    """
    if values.ndim == 1:
        return cascade_sum(values[:, None])[0]
    n, num_features = values.shape
    num_levels = 1
    while SUM_BASE**num_levels <= n:
        num_levels += 1
    levels = np.zeros((num_levels, num_features), values.dtype)
    for rank in range(1, n + 1):
        levels[0] += values[rank - 1]
        level = 0
        while rank % SUM_BASE ** (level + 1) == 0:
            levels[level + 1] += levels[level]
            levels[level] = 0
            level += 1
    total = levels[0]
    for level in levels[1:]:
        total = total + level
    return total


def extreme(values: np.ndarray, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """Maximum or minimum of each column of `values` (n, F), n >= 1, and the rank it comes from.

    NaN wins over every number. Equal values, among them -0.0 and +0.0, and several NaN: the
    lowest rank wins, with its own bits.
    """
    best = values[0].copy()
    rank = np.zeros(values.shape[1], np.int64)
    for i in range(1, len(values)):
        beats = values[i] > best if largest else values[i] < best
        beats |= np.isnan(values[i]) & ~np.isnan(best)
        best[beats] = values[i][beats]
        rank[beats] = i
    return best, rank


def reduce_values(values: np.ndarray, reduce: str) -> np.ndarray:
    """Reduce the rows of `values` (n, F), n >= 1, to (F,): mean, max, min or sum."""
    if reduce == "sum":
        return cascade_sum(values)
    if reduce == "mean":
        return cascade_sum(values) / values.dtype.type(len(values))
    return extreme(values, largest=reduce == "max")[0]


def spread_gradient(incoming: np.ndarray, values: np.ndarray, reduce: str) -> np.ndarray:
    """The gradient (n, F) of the n reduced values, from that (F,) of the result."""
    if reduce == "sum":
        return np.broadcast_to(incoming, values.shape)
    if reduce == "mean":
        share = incoming / values.dtype.type(len(values))
        return np.broadcast_to(share, values.shape)
    _, rank = extreme(values, largest=reduce == "max")
    is_extreme = np.arange(len(values))[:, None] == rank[None, :]
    return np.where(is_extreme, incoming[None, :], values.dtype.type(0))
