# SPDX-License-Identifier: Apache-2.0
"""Padded batches [B, N, D] and packed clouds [T, D] as rows of one array."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from .arithmetic import to_working


def rows_of(values: Tensor) -> np.ndarray:
    """[T, D] rows of all clouds, in working precision."""
    return to_working(values).reshape(-1, values.size(-1))


def clouds_of(
    points: Tensor,
    query: Tensor,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    query_batch_offsets: Tensor | None = None,
) -> Iterator[tuple[int, int, int, int]]:
    """(begin, end, first, last) of each cloud: its rows of points, its rows of queries.

    Points without a batch and without offsets are one cloud.
    """
    if batch_offsets is not None and query_batch_offsets is not None:
        begins = np.clip(batch_offsets.numpy(), 0, len(points)).tolist()
        firsts = np.clip(query_batch_offsets.numpy(), 0, len(query)).tolist()
        yield from zip(begins[:-1], begins[1:], firsts[:-1], firsts[1:], strict=True)
        return
    n, m = points.size(-2), query.size(-2)
    for b in range(points.size(0) if points.dim() == 3 else 1):
        size = n if lengths is None else min(max(int(lengths[b]), 0), n)
        count = m if query_lengths is None else min(max(int(query_lengths[b]), 0), m)
        yield b * n, b * n + size, b * m, b * m + count
