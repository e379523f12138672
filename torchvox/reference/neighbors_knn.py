# SPDX-License-Identifier: Apache-2.0
"""k nearest neighbors, written as their definition: measure every point, sort, take the first k.

The slow second opinion that the ops are tested against; the prose contract is docs/neighbors.md.
Same arguments and defaults as the registered ops, CPU tensors in, a tuple of CPU tensors out.
"""

import numpy as np
import torch
from torch import Tensor

from .checks import check_index_tensor, fail
from .sampling import squared_distance

__all__ = [
    "knn",
    "three_nn",
]

INF = float("inf")


def knn(
    points: Tensor,
    query: Tensor,
    k: int,
    *,
    norm: int = 2,
    dist_order: str = "pn2",
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    query_batch_offsets: Tensor | None = None,
    local_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """(dist2 [B, M, k], idx [B, M, k] int32) of points [B, N, D] and query [B, M, D]; of packed
    clouds [U, k]."""
    if batch_offsets is not None:
        offsets = (batch_offsets, query_batch_offsets, local_index)
        return _packed(points, query, k, norm, dist_order, *offsets)
    return _padded(points, query, k, norm, dist_order, lengths, query_lengths)


def three_nn(
    query: Tensor,
    points: Tensor,
    *,
    dist_order: str = "pn2",
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    query_batch_offsets: Tensor | None = None,
    local_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """(dist2 [B, M, 3], idx [B, M, 3] int32): knn with the queries first."""
    return knn(
        points,
        query,
        3,
        dist_order=dist_order,
        lengths=lengths,
        query_lengths=query_lengths,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
    )


# ------------------------------------------------------------------------------------ definition


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
    with np.errstate(all="ignore"):
        for axis in range(len(q)):
            total = total + np.abs(points[:, axis] - q[axis])
    return total


def _padded(points, query, k, norm, dist_order, lengths, query_lengths) -> tuple[Tensor, Tensor]:
    op = "knn"
    _check(op, points, query, k, norm, dist_order, rank=3)
    b, n, m = points.size(0), points.size(1), query.size(1)
    if query.size(0) != b:
        fail(ValueError, op, f"query must have the B of points, {b}", list(query.shape))
    for name, t in (("lengths", lengths), ("query_lengths", query_lengths)):
        if t is not None:
            check_index_tensor(op, name, t)
            if t.shape != (b,):
                fail(ValueError, op, f"{name} must be [B]", list(t.shape))
    clouds, queries = _array(points), _array(query)
    sizes = [n] * b if lengths is None else lengths.clamp(0, n).tolist()
    counts = [m] * b if query_lengths is None else query_lengths.clamp(0, m).tolist()
    dist2 = np.full((b, m, k), INF, clouds.dtype)
    idx = np.full((b, m, k), -1, np.int32)
    for i in range(b):
        for j in range(counts[i]):
            dist2[i, j], idx[i, j] = nearest(
                clouds[i, : sizes[i]], queries[i, j], k, norm, dist_order
            )
    return torch.from_numpy(dist2), torch.from_numpy(idx)


def _packed(
    points, query, k, norm, dist_order, batch_offsets, query_batch_offsets, local_index
) -> tuple[Tensor, Tensor]:
    op = "knn"
    _check(op, points, query, k, norm, dist_order, rank=2)
    for name, t in (("batch_offsets", batch_offsets), ("query_batch_offsets", query_batch_offsets)):
        check_index_tensor(op, name, t)
        if t.dim() != 1 or t.size(0) < 1 or t.shape != batch_offsets.shape:
            fail(ValueError, op, f"{name} must be [B + 1]", list(t.shape))
    cloud, queries = _array(points), _array(query)
    begins = batch_offsets.clamp(0, len(cloud)).tolist()
    rows = query_batch_offsets.clamp(0, len(queries)).tolist()
    dist2 = np.full((len(queries), k), INF, cloud.dtype)
    idx = np.full((len(queries), k), -1, np.int32)
    for b in range(len(begins) - 1):
        for row in range(rows[b], rows[b + 1]):
            dist2[row], local = nearest(
                cloud[begins[b] : begins[b + 1]], queries[row], k, norm, dist_order
            )
            idx[row] = np.where((local < 0) | local_index, local, local + begins[b])
    return torch.from_numpy(dist2), torch.from_numpy(idx)


# -------------------------------------------------------------------------------------- arguments


def _array(t: Tensor) -> np.ndarray:
    """As NumPy, half types widened to float32."""
    t = t.detach()
    return (t if t.dtype in (torch.float32, torch.float64) else t.float()).numpy()


def _check(
    op: str, points: Tensor, query: Tensor, k: int, norm: int, dist_order: str, rank: int
) -> None:
    for name, t in (("points", points), ("query", query)):
        if not t.is_floating_point():
            fail(TypeError, op, f"{name} must be a floating-point tensor", t.dtype)
        if t.dim() != rank or t.size(-1) < 1:
            fail(ValueError, op, f"{name} must have {rank} dimensions, D >= 1", list(t.shape))
    if query.dtype != points.dtype:
        fail(TypeError, op, f"query must have the dtype of points, {points.dtype}", query.dtype)
    if query.size(-1) != points.size(-1):
        fail(ValueError, op, f"query must have the D of points, {points.size(-1)}", query.size(-1))
    if k < 0:
        fail(ValueError, op, "k must be >= 0", k)
    if norm not in (1, 2):
        fail(ValueError, op, "norm must be 1 or 2", norm)
    if dist_order not in ("pn2", "loop"):
        fail(ValueError, op, "dist_order must be 'pn2' or 'loop'", repr(dist_order))
