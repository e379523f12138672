# SPDX-License-Identifier: Apache-2.0
"""Balls around queries, written as their definition: every distance, then the first k hits; and
`query_and_group`, written as its parts: ball queries, gathers, a subtraction, a quotient.

The slow second opinion that the ops are tested against; the prose contract is docs/neighbors.md.
Same arguments and defaults as the registered ops, CPU tensors in, a tuple of CPU tensors out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arithmetic import from_working, to_working
from .sampling import squared_distance

__all__ = [
    "ball_query",
    "query_and_group",
    "radius_neighbors",
]


@dataclass(frozen=True)
class Ball:
    """The options of one call, the same for all its queries."""

    radius: float
    k: int
    radius2: float | None
    min_radius: float
    core_dist2: float
    closed: bool
    fill: str
    dist_order: str


def ball_query(
    points: Tensor,
    query: Tensor,
    radius: float,
    k: int,
    *,
    radius2: float | None = None,
    min_radius: float = 0.0,
    core_dist2: float = 0.0,
    closed: bool = False,
    fill: str = "first",
    dist_order: str = "pn2",
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    query_batch_offsets: Tensor | None = None,
    local_index: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dist2 [B, M, k], idx [B, M, k] int32, count [B, M] int32) of points [B, N, D]; of packed
    clouds [U, k], [U, k] and [U]."""
    ball = Ball(radius, k, radius2, min_radius, core_dist2, closed, fill, dist_order)
    if batch_offsets is not None:
        return _packed(points, query, ball, batch_offsets, query_batch_offsets, local_index)
    _check("ball_query", points, query, ball, 3)
    b, n = points.shape[:2]
    m = query.size(1)
    clouds, queries = _array(points), _array(query)
    sizes = np.full(b, n) if lengths is None else np.clip(lengths.numpy(), 0, n)
    wanted = np.full(b, m) if query_lengths is None else np.clip(query_lengths.numpy(), 0, m)
    dist2, idx, count = _empty(ball, clouds.dtype, (b, m))
    for i in range(b):
        rows = slice(0, wanted[i])
        found = _query(clouds[i, : sizes[i]], queries[i, rows], ball)
        dist2[i, rows], idx[i, rows], count[i, rows] = found
    return torch.from_numpy(dist2), torch.from_numpy(idx), torch.from_numpy(count)


def _packed(
    points: Tensor,
    query: Tensor,
    ball: Ball,
    batch_offsets: Tensor,
    query_batch_offsets: Tensor,
    local_index: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dist2 [U, k], idx [U, k] int32, count [U] int32): cloud b is points[batch_offsets[b] :
    batch_offsets[b + 1]] and query[query_batch_offsets[b] : query_batch_offsets[b + 1]]."""
    _check("ball_query", points, query, ball, 2)
    cloud, queries = _array(points), _array(query)
    batch_offsets = np.clip(batch_offsets.numpy(), 0, len(cloud))
    query_batch_offsets = np.clip(query_batch_offsets.numpy(), 0, len(queries))
    dist2, idx, count = _empty(ball, cloud.dtype, (len(queries),))
    for b in range(len(batch_offsets) - 1):
        rows = slice(query_batch_offsets[b], query_batch_offsets[b + 1])
        begin, end = batch_offsets[b : b + 2]
        dist2[rows], local, count[rows] = _query(cloud[begin:end], queries[rows], ball)
        first = begin if begin < end else -1  # not a point of the next cloud
        idx[rows] = np.where((local < 0) | local_index, local, local + first)
    return torch.from_numpy(dist2), torch.from_numpy(idx), torch.from_numpy(count)


def radius_neighbors(
    points: Tensor,
    query: Tensor,
    radius: float,
    capacity: int,
    *,
    radius2: float | None = None,
    min_radius: float = 0.0,
    core_dist2: float = 0.0,
    closed: bool = False,
    dist_order: str = "pn2",
    return_dist2: bool = True,
    batch_offsets: Tensor | None = None,
    query_batch_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(offsets [U + 1] int64, index [capacity] int32, dist2 [capacity], count [1] int64)."""
    ball = Ball(radius, 0, radius2, min_radius, core_dist2, closed, "pad", dist_order)
    _check("radius_neighbors", points, query, ball, 2)
    cloud, queries = _array(points), _array(query)
    begins, rows = np.array([0, len(cloud)]), np.array([0, len(queries)])
    if batch_offsets is not None and query_batch_offsets is not None:
        begins = np.clip(batch_offsets.numpy(), 0, len(cloud))
        rows = np.clip(query_batch_offsets.numpy(), 0, len(queries))
    lists: list = [(np.zeros(0, np.int64), np.zeros(0, cloud.dtype))] * len(queries)
    for b in range(len(begins) - 1):
        for row in range(rows[b], rows[b + 1]):
            found, d = hits(cloud[begins[b] : begins[b + 1]], queries[row], ball)
            lists[row] = (found + begins[b], d)
    sizes = np.array([0, *(len(found) for found, _ in lists)]).cumsum()
    index, dist2 = np.full(capacity, -1, np.int32), np.zeros(capacity, cloud.dtype)
    for (found, d), begin in zip(lists, sizes, strict=False):
        index[begin : begin + len(found)] = found[: max(0, capacity - begin)]
        dist2[begin : begin + len(found)] = d[: max(0, capacity - begin)]
    outs = (sizes.clip(max=capacity), index, dist2 if return_dist2 else dist2[:0], sizes[-1:])
    return tuple(torch.from_numpy(out) for out in outs)


# ------------------------------------------------------------------------------------- one cloud


def hits(cloud: np.ndarray, q: np.ndarray, ball: Ball) -> tuple[np.ndarray, np.ndarray]:
    """The points of the cloud in the ball around q, in ascending index, and their distances."""
    real = cloud.dtype.type
    with np.errstate(all="ignore"):
        low2 = real(ball.min_radius) * real(ball.min_radius)
        r2 = real(ball.radius) * real(ball.radius) if ball.radius2 is None else real(ball.radius2)
        core = real(ball.core_dist2)
    d = squared_distance(cloud, q, ball.dist_order)
    inside = ((d <= r2 if ball.closed else d < r2) & (d >= low2)) | (d <= core)
    inside &= np.isfinite(cloud).all(1) & np.isfinite(q).all()
    found = np.flatnonzero(inside)
    return found, d[found]


def _query(
    cloud: np.ndarray, queries: np.ndarray, ball: Ball
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dist2, idx, count = _empty(ball, cloud.dtype, (len(queries),))
    for row, q in enumerate(queries):
        found, d = hits(cloud, q, ball)
        kept = min(len(found), ball.k)
        count[row] = kept
        if kept and ball.fill == "first":
            idx[row] = found[0]
        idx[row, :kept], dist2[row, :kept] = found[:kept], d[:kept]
    return dist2, idx, count


def _empty(
    ball: Ball, dtype: np.dtype, rows: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The outputs of balls without a hit."""
    idx = np.full((*rows, ball.k), 0 if ball.fill == "first" else -1, np.int32)
    return np.zeros((*rows, ball.k), dtype), idx, np.zeros(rows, np.int32)


# -------------------------------------------------------------------------------------- arguments


def _array(t: Tensor) -> np.ndarray:
    """As NumPy, half types widened to float32."""
    t = t.detach()
    return (t if t.dtype in (torch.float32, torch.float64) else t.float()).numpy()


def _check(op: str, points: Tensor, query: Tensor, ball: Ball, rank: int) -> None:
    for name, t in (("points", points), ("query", query)):
        if not t.is_floating_point() or t.dtype != points.dtype:
            raise TypeError(f"{op}: {name} must be floating point, as points, got {t.dtype}")
        if t.dim() != rank or t.size(-1) < 1 or t.size(-1) != points.size(-1):
            raise ValueError(f"{op}: {name} must be rows of D >= 1, got {list(t.shape)}")
    for name, low in (("radius", 0), ("min_radius", 0), ("k", 0)):
        if not getattr(ball, name) >= low:
            raise ValueError(f"{op}: {name} must be >= {low}, got {getattr(ball, name)}")
    for name, allowed in (("fill", ("first", "pad")), ("dist_order", ("pn2", "loop"))):
        if getattr(ball, name) not in allowed:
            raise ValueError(f"{op}: {name} must be of {allowed}, got {getattr(ball, name)!r}")


def query_and_group(
    points: Tensor,
    query: Tensor,
    features: Tensor | None,
    radii: list[float],
    ks: list[int],
    *,
    use_xyz: bool = True,
    normalize_xyz: bool = False,
    features_first: bool = False,
    closed: bool = False,
    dist_order: str = "pn2",
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(grouped [B, M, K, D + C], idx [B, M, K] int32, count [B, M, radii] int32)."""
    options: dict[str, Any] = {"closed": closed, "dist_order": dist_order}
    options |= {"lengths": lengths, "query_lengths": query_lengths}
    balls = [
        ball_query(points, query, radius, k, **options) for radius, k in zip(radii, ks, strict=True)
    ]
    idx = torch.cat([ball[1] for ball in balls], -1)
    count = torch.stack([ball[2] for ball in balls], -1)
    dtype = points.dtype if features is None else features.dtype
    parts = []
    if use_xyz:
        neighbors = to_working(_rows(points, idx))
        with np.errstate(all="ignore"):
            relative = neighbors - to_working(query)[:, :, None]
            if normalize_xyz:
                relative = to_working(from_working(relative, points.dtype))
                divisor = np.repeat(np.array(radii, relative.dtype), ks)
                relative = relative / divisor[:, None]
        relative = from_working(relative, points.dtype)
        parts.append(from_working(to_working(relative), dtype))
    if features is not None:
        parts.append(_rows(features, idx))
    return torch.cat(parts[::-1] if features_first else parts, -1), idx, count


def _rows(values: Tensor, idx: Tensor) -> Tensor:
    """[B, M, K, C]: the rows of values [B, N, C]; zeros for an index outside [0, N)."""
    b, n, c = values.shape
    out = torch.zeros(*idx.shape, c, dtype=values.dtype)
    for i in range(b):
        inside = (idx[i] >= 0) & (idx[i] < n)
        out[i][inside] = values[i, idx[i][inside].long()]
    return out
