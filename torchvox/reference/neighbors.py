# SPDX-License-Identifier: Apache-2.0
"""Balls around queries, written as their definition: every distance, then the first k hits; and
`query_and_group`, written as its parts: ball queries, gathers, a subtraction, a quotient.

The prose contract is docs/neighbors.md.
"""

import numpy as np
import torch
from torch import Tensor

from .arithmetic import from_working, to_working
from .definition import define_op
from .fma import fma
from .grouping import group_points
from .neighbors_knn import clouds_of, rows_of
from .sampling import squared_distance

__all__ = ["ball_query", "group_mlp_max", "query_and_group", "radius_neighbors"]


@define_op
def ball_query(
    points: Tensor,
    query: Tensor,
    radius: float,
    k: int,
    *,
    fill,
    local_index,
    lengths,
    query_lengths,
    batch_offsets,
    query_batch_offsets,
    **ball,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dist2 [B, M, k], idx [B, M, k] int32, count [B, M] int32) of points [B, N, D]; of packed
    clouds [U, k], [U, k] and [U]."""
    cloud, queries = rows_of(points), rows_of(query)
    idx = np.full((len(queries), k), 0 if fill == "first" else -1, np.int32)
    dist2, count = np.zeros((len(queries), k), cloud.dtype), np.zeros(len(queries), np.int32)
    of_cloud = local_index or points.dim() == 3
    clouds = (lengths, query_lengths, batch_offsets, query_batch_offsets)
    for begin, end, first, last in clouds_of(points, query, *clouds):
        for row in range(first, last):
            inside, distances = hits(cloud[begin:end], queries[row], radius, **ball)
            kept = min(len(inside), k)
            if kept and fill == "first":
                idx[row] = inside[0]
            count[row], idx[row, :kept], dist2[row, :kept] = kept, inside[:kept], distances[:kept]
            if not of_cloud:  # of a cloud without points row 0 is a point of the next one
                idx[row] += np.where(idx[row] < 0, 0, begin if begin < end else -1).astype(np.int32)
    shape = query.shape[:-1]
    dist2, idx = dist2.reshape(*shape, k), idx.reshape(*shape, k)
    return torch.from_numpy(dist2), torch.from_numpy(idx), torch.from_numpy(count.reshape(shape))


@define_op
def radius_neighbors(
    points, query, radius, capacity, *, return_dist2, batch_offsets, query_batch_offsets, **ball
) -> tuple[Tensor, ...]:
    """(offsets [U + 1] int64, index [capacity] int32, dist2 [capacity], count [1] int64)."""
    cloud, queries = rows_of(points), rows_of(query)
    lists: list = [(np.zeros(0, np.int64), np.zeros(0, cloud.dtype))] * len(queries)
    offsets = (batch_offsets, query_batch_offsets)
    for begin, end, first, last in clouds_of(points, query, None, None, *offsets):
        for row in range(first, last):
            inside, distances = hits(cloud[begin:end], queries[row], radius, **ball)
            lists[row] = (inside + begin, distances)
    sizes = np.array([0, *(len(inside) for inside, _ in lists)]).cumsum()
    index, dist2 = np.full(capacity, -1, np.int32), np.zeros(capacity, cloud.dtype)
    for (inside, distances), begin in zip(lists, sizes, strict=False):
        index[begin : begin + len(inside)] = inside[: max(0, capacity - begin)]
        dist2[begin : begin + len(inside)] = distances[: max(0, capacity - begin)]
    outs = (sizes.clip(max=capacity), index, dist2 if return_dist2 else dist2[:0], sizes[-1:])
    return tuple(torch.from_numpy(out) for out in outs)


def hits(
    cloud: np.ndarray, q, radius: float, *, radius2, min_radius, core_dist2, closed, dist_order
) -> tuple[np.ndarray, np.ndarray]:
    """The points of the cloud in the ball around q, in ascending index, and their distances."""
    real = cloud.dtype.type
    low2 = real(min_radius) * real(min_radius)
    r2 = real(radius) * real(radius) if radius2 is None else real(radius2)
    core = real(core_dist2)
    d = squared_distance(cloud, q, dist_order)
    inside = ((d <= r2 if closed else d < r2) & (d >= low2)) | (d <= core)
    inside &= np.isfinite(cloud).all(1) & np.isfinite(q).all()
    rows = np.flatnonzero(inside)
    return rows, d[rows]


@define_op
def query_and_group(
    points: Tensor, query, features, radii, ks, *, use_xyz, normalize_xyz, features_first, **options
) -> tuple[Tensor, Tensor, Tensor]:
    """(grouped [B, M, K, D + C], idx [B, M, K] int32, count [B, M, radii] int32)."""
    pairs = zip(radii, ks, strict=True)
    balls = [ball_query(points, query, radius, k, **options) for radius, k in pairs]
    idx = torch.cat([ball[1] for ball in balls], -1)
    count = torch.stack([ball[2] for ball in balls], -1)
    dtype = points.dtype if features is None else features.dtype
    parts = []
    if use_xyz:
        divisor = np.repeat(radii, ks)[:, None] if normalize_xyz else None
        parts.append(from_working(relative_rows(points, query, idx, divisor), dtype))
    if features is not None:
        parts.append(group_points(features, idx))
    return torch.cat(parts[::-1] if features_first else parts, -1), idx, count


def relative_rows(
    points: Tensor, query: Tensor, idx: Tensor, divisor: np.ndarray | float | None
) -> np.ndarray:
    """[B, M, K, D]: neighbor less query, over the divisor; each step rounded to points.dtype."""
    relative = to_working(group_points(points, idx)) - to_working(query)[:, :, None]
    relative = to_working(from_working(relative, points.dtype))
    if divisor is None:
        return relative
    return to_working(from_working(relative / relative.dtype.type(divisor), points.dtype))


@define_op
def group_mlp_max(
    points: Tensor,
    query: Tensor,
    features: Tensor | None,
    idx: Tensor,
    count: Tensor,
    weights,
    biases,
    *,
    use_xyz: bool,
    normalize_radius: float | None,
    features_first: bool,
) -> Tensor:
    """[B, M, C_out] in the dtype of weights, to which every layer rounds; sums over the inputs in
    ascending order, one rounding per product, in float32 (float64 for float64)."""
    dtype = weights[0].dtype
    wide = np.float64 if dtype == torch.float64 else np.float32
    parts = []
    if use_xyz:
        relative = relative_rows(points, query, idx, normalize_radius)
        parts.append(relative.astype(wide))
    if features is not None:
        parts.append(to_working(group_points(features, idx)))
    x = np.concatenate(parts[::-1] if features_first else parts, -1)
    for weight, bias in zip(weights, biases, strict=True):
        w = to_working(weight)
        y = np.broadcast_to(to_working(bias), (*x.shape[:-1], len(w)))
        for i in range(x.shape[-1]):
            y = fma(x[..., i, None], w[:, i], y)
        # NaN stays, and -0 becomes +0.
        y = np.where(np.isnan(y), wide(np.nan), np.where(y > 0, y, wide(0)))
        x = to_working(from_working(y, dtype))
    k = idx.size(2)
    used = np.clip(count.numpy(), 1, k)[..., None] if k else count.numpy()[..., None]
    x = np.where((np.arange(k) < used)[..., None], x, wide(0))
    return from_working(x.max(2, initial=0), dtype)
