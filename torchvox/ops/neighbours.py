# SPDX-License-Identifier: Apache-2.0
"""Points within a radius of queries, and what belongs to them."""

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor


class BallNeighbours(NamedTuple):
    dist2: Tensor
    idx: Tensor
    count: Tensor


def ball_query(
    points: Tensor,
    query: Tensor,
    radius: float,
    k: int,
    *,
    radius2: Optional[float] = None,
    min_radius: float = 0.0,
    core_dist2: float = 0.0,
    closed: bool = False,
    fill: str = "first",
    dist_order: str = "pn2",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> BallNeighbours:
    """The first k points, by index, in a ball around every query. Not the nearest: see `knn`.

    points: [B, N, D] float16, bfloat16, float32 or float64, D >= 1, N < 2^31; any strides. Halves
        are widened first. query: [B, M, D] of the same dtype. A point that is not finite is a
        neighbour of nobody; a query that is not finite has none.
    radius: a point at squared distance d is a hit when d < radius * radius, rounded as the distance
        is; with `closed`, d <= radius * radius. radius2: the square itself, where another library
        rounds it otherwise. min_radius: hits have d >= min_radius * min_radius too.
    core_dist2: points with d <= core_dist2 are hits whatever the radii. 0: those at distance 0, as
        in mmcv; negative: none.
    k: neighbours a query. fill: what follows the hits of a row: "first" repeats the first hit, 0
        where there is none; "pad" puts -1.
    dist_order: rounding of the squared distance: "pn2", fma(dz, dz, fma(dx, dx, dy * dy)), D = 3
        only; "loop", axis by axis.
    lengths, query_lengths: [B] int32 or int64, points and queries of each cloud that exist, clamped
        to N and M. None: all.

    Returns BallNeighbours(dist2 [B, M, k] float32, float64 for float64 points; idx [B, M, k] int32,
    ascending; count [B, M] int32, the hits kept). dist2 past the count is 0. Rows past
    query_lengths are those of an empty ball.

    Exact and deterministic: CPU and CUDA give the same bits. No host synchronisation. dist2 is
    differentiable in points and query.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    dist2, idx, count = torch.ops.torchvox.ball_query(
        points,
        query,
        radius,
        k,
        radius2=radius2,
        min_radius=min_radius,
        core_dist2=core_dist2,
        closed=closed,
        fill=fill,
        dist_order=dist_order,
        lengths=lengths,
        query_lengths=query_lengths,
    )
    return BallNeighbours(dist2, idx, count)


def ball_query_ragged(
    points: Tensor,
    query: Tensor,
    ptr: Tensor,
    query_ptr: Tensor,
    radius: float,
    k: int,
    *,
    radius2: Optional[float] = None,
    min_radius: float = 0.0,
    core_dist2: float = 0.0,
    closed: bool = False,
    fill: str = "first",
    dist_order: str = "pn2",
    local_index: bool = False,
) -> BallNeighbours:
    """`ball_query` of clouds of different sizes that lie one after another.

    points: [T, D], T < 2^31. query: [U, D], U < 2^31. ptr, query_ptr: [B + 1] int32 or int64,
        non-decreasing, on the points' device: cloud b owns points ptr[b] to ptr[b + 1] and queries
        query_ptr[b] to query_ptr[b + 1]. Clamped to the sizes, never read on the host. A query
        outside of query_ptr has no neighbours.
    local_index: idx counts from the cloud's first point instead of row 0 of points. With "first",
        an empty ball names row 0 of its cloud, or -1 for a cloud without points.
    The other options are those of `ball_query`.

    Returns BallNeighbours(dist2 [U, k], idx [U, k] int32, count [U] int32).
    """
    dist2, idx, count = torch.ops.torchvox.ball_query_ragged(
        points,
        query,
        ptr,
        query_ptr,
        radius,
        k,
        radius2=radius2,
        min_radius=min_radius,
        core_dist2=core_dist2,
        closed=closed,
        fill=fill,
        dist_order=dist_order,
        local_index=local_index,
    )
    return BallNeighbours(dist2, idx, count)


class BallGroups(NamedTuple):
    grouped: Tensor
    idx: Tensor
    count: Tensor


def query_and_group(
    points: Tensor,
    query: Tensor,
    features: Optional[Tensor],
    radii: List[float],
    ks: List[int],
    *,
    use_xyz: bool = True,
    normalize_xyz: bool = False,
    features_first: bool = False,
    closed: bool = False,
    dist_order: str = "pn2",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> BallGroups:
    """The neighbourhoods of a PointNet++ level: ball queries, relative coordinates and features.

    points: [B, N, D], query: [B, M, D] as in `ball_query`. features: [B, N, C] float16, bfloat16,
        float32 or float64, or None.
    radii, ks: one ball and its number of neighbours each, at most 8; their slots follow one
        another. Short balls repeat their first hit; an empty ball holds point 0.
    use_xyz: a slot begins with point less query, rounded to the dtype of points; without, it holds
        features alone. normalize_xyz: divided by the radius. features_first: coordinates last.
    closed, dist_order, lengths, query_lengths: as in `ball_query`.

    Returns BallGroups(grouped [B, M, K, D + C] in the dtype of features, else of points, K the sum
    of ks; idx [B, M, K] int32; count [B, M, radii] int32, the hits of each ball). grouped has the
    bits of `ball_query`, `group_points` and a subtraction.

    grouped is differentiable in points, query and features, by sums in a fixed order without
    atomics: the same bits in every run and on every device. No host synchronisation.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    grouped, idx, count = torch.ops.torchvox.query_and_group(
        points,
        query,
        features,
        radii,
        ks,
        use_xyz=use_xyz,
        normalize_xyz=normalize_xyz,
        features_first=features_first,
        closed=closed,
        dist_order=dist_order,
        lengths=lengths,
        query_lengths=query_lengths,
    )
    return BallGroups(grouped, idx, count)
