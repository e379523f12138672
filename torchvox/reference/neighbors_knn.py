# SPDX-License-Identifier: Apache-2.0
"""k nearest neighbors, written as their definition: measure every point, sort, take the first k.

The prose contract is docs/neighbors.md.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .arithmetic import to_working
from .definition import define_op
from .sampling import squared_distance

__all__ = ["knn", "three_nn"]

INF = float("inf")


@define_op
def knn(
    points: Tensor, query: Tensor, k, *, norm, dist_order, local_index, **clouds
) -> tuple[Tensor, Tensor]:
    """(dist2 [B, M, k], idx [B, M, k] int32) of points [B, N, D] and query [B, M, D]; of packed
    clouds [U, k]."""
    cloud, queries = rows_of(points), rows_of(query)
    dist2 = np.full((len(queries), k), INF, cloud.dtype)
    idx = np.full((len(queries), k), -1, np.int32)
    of_cloud = local_index or points.dim() == 3
    for begin, end, first, last in clouds_of(points, query, **clouds):
        for row in range(first, last):
            dist2[row], local = nearest(cloud[begin:end], queries[row], k, norm, dist_order)
            idx[row] = np.where((local < 0) | of_cloud, local, local + begin)
    shape = (*query.shape[:-1], k)
    return torch.from_numpy(dist2.reshape(shape)), torch.from_numpy(idx.reshape(shape))


@define_op
def three_nn(query: Tensor, points: Tensor, **options) -> tuple[Tensor, Tensor]:
    """(dist2 [B, M, 3], idx [B, M, 3] int32): knn with the queries first."""
    return knn(points, query, 3, **options)


def nearest(
    points: np.ndarray, q: np.ndarray, k: int, norm: int, dist_order: str
) -> tuple[np.ndarray, np.ndarray]:
    """dist2 [k], idx [k] of one query [D] among points [n, D]."""
    dist2, idx = np.full(k, INF, points.dtype), np.full(k, -1, np.int64)
    if not np.isfinite(q).all():
        return dist2, idx
    finite = np.flatnonzero(np.isfinite(points).all(1))
    d = distance(points[finite], q, norm, dist_order)
    chosen = np.lexsort((finite, d))[:k]
    dist2[: len(chosen)], idx[: len(chosen)] = d[chosen], finite[chosen]
    return dist2, idx


def distance(points: np.ndarray, q: np.ndarray, norm: int, dist_order: str) -> np.ndarray:
    """[n] squared distances, or for norm 1 sums of absolute differences, axis after axis."""
    if norm == 2:
        return squared_distance(points, q, dist_order)
    total = np.zeros(len(points), points.dtype)
    for axis in range(len(q)):
        total = total + np.abs(points[:, axis] - q[axis])
    return total


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
