# SPDX-License-Identifier: Apache-2.0
"""The nearest points of every query."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor


class Neighbours(NamedTuple):
    dist2: Tensor
    idx: Tensor


def knn(
    points: Tensor,
    query: Tensor,
    k: int,
    *,
    norm: int = 2,
    dist_order: str = "pn2",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> Neighbours:
    """The k points of its cloud that are nearest to each query, nearest first.

    points: [B, N, D] float16, bfloat16, float32 or float64, D >= 1, N < 2^31; any strides. Halves
        are widened first. Points that are not finite are nobody's neighbours.
    query: [B, M, D] of the same dtype. A query that is not finite has no neighbours.
    k: neighbours per query, any number; more than N is allowed.
    norm: 2, squared distances; 1, sums of absolute differences.
    dist_order: rounding of the squared distance: "pn2", fma(dz, dz, fma(dx, dx, dy * dy)), D = 3
        only; "loop", axis by axis.
    lengths: [B] int32 or int64, points of each cloud that exist, clamped to [0, N]. None: N.
    query_lengths: [B] int32 or int64, queries of each cloud that exist, clamped to [0, M]. None: M.

    Returns Neighbours(dist2 [B, M, k] float32, float64 for float64 points, idx [B, M, k] int32) in
    ascending order of (distance, index): of equally distant points the lower index comes first,
    also at the k-th place. Slots without a neighbour hold +inf and -1.

    Exact and deterministic: CPU and CUDA give the same bits. No host synchronisation. dist2 is
    differentiable in points and query, idx is not. For norm 2 and D <= 3 in up to float32 a query
    visits a small part of a large cloud; otherwise all of it.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    dist2, idx = torch.ops.torchvox.knn(
        points,
        query,
        k,
        norm=norm,
        dist_order=dist_order,
        lengths=lengths,
        query_lengths=query_lengths,
    )
    return Neighbours(dist2, idx)


def knn_ragged(
    points: Tensor,
    query: Tensor,
    ptr: Tensor,
    query_ptr: Tensor,
    k: int,
    *,
    norm: int = 2,
    dist_order: str = "pn2",
    local_index: bool = False,
) -> Neighbours:
    """`knn` of clouds of different sizes that lie one after another.

    points: [T, D], T < 2^31. ptr: [B + 1] int32 or int64, non-decreasing, on the points' device:
        cloud b owns the points ptr[b] to ptr[b + 1].
    query: [U, D]. query_ptr: [B + 1] int32 or int64: cloud b is searched by the queries
        query_ptr[b] to query_ptr[b + 1]; queries outside have no neighbours. Offsets are clamped to
        the sizes, never read on the host.
    local_index: idx counts from the cloud's first point instead of row 0 of points. The other
        options are those of `knn`.

    Returns Neighbours(dist2 [U, k], idx [U, k] int32).
    """
    dist2, idx = torch.ops.torchvox.knn_ragged(
        points,
        query,
        ptr,
        query_ptr,
        k,
        norm=norm,
        dist_order=dist_order,
        local_index=local_index,
    )
    return Neighbours(dist2, idx)


def three_nn(
    query: Tensor,
    points: Tensor,
    *,
    dist_order: str = "pn2",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> Neighbours:
    """The three nearest points of every query: `knn` with k = 3, the queries first.

    query: [B, M, D]. points: [B, N, D]. lengths and query_lengths as in `knn`.

    Returns Neighbours(dist2 [B, M, 3], idx [B, M, 3] int32). Distances are squared; the PointNet++
    kernels give their roots.
    """
    dist2, idx = torch.ops.torchvox.three_nn(
        query, points, dist_order=dist_order, lengths=lengths, query_lengths=query_lengths
    )
    return Neighbours(dist2, idx)


def three_nn_ragged(
    query: Tensor,
    points: Tensor,
    query_ptr: Tensor,
    ptr: Tensor,
    *,
    dist_order: str = "pn2",
    local_index: bool = False,
) -> Neighbours:
    """`knn_ragged` with k = 3, the queries and their offsets first."""
    dist2, idx = torch.ops.torchvox.three_nn_ragged(
        query, points, query_ptr, ptr, dist_order=dist_order, local_index=local_index
    )
    return Neighbours(dist2, idx)
