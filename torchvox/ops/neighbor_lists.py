# SPDX-License-Identifier: Apache-2.0
"""All neighbors within a radius, as lists of any length; and the distance between two clouds."""

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.conventions import options_of
from torchvox.ops.neighbors import BALL_QUERY_CONVENTIONS, knn

__all__ = ["ChamferDistance", "RadiusNeighbors", "chamfer_distance", "radius_neighbors"]

# Rows here have no slots to fill.
RADIUS_CONVENTIONS = {
    name: {option: value for option, value in options.items() if option != "fill"}
    for name, options in BALL_QUERY_CONVENTIONS.items()
}


class RadiusNeighbors(NamedTuple):
    """Result of `radius_neighbors`: one list for U queries.

    offsets: [U + 1] int64.
    index: [capacity] int32; query i has index[offsets[i] : offsets[i + 1]]; unused entries -1.
    dist2: [capacity] float32, float64 for float64 points: squared distances; unused
        entries 0.
    count: [1] int64, entries in all, maybe more than capacity.
    """

    offsets: Tensor
    index: Tensor
    dist2: Tensor
    count: Tensor


def radius_neighbors(
    points: Tensor,
    query: Tensor,
    radius: float,
    capacity: int,
    *,
    min_radius: float = 0.0,
    closed: bool = False,
    return_dist2: bool = True,
    convention: str = "torchvox",
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    trim: bool = False,
) -> RadiusNeighbors:
    """All points in a ball around every query, as one list: the hits of `ball_query`, however many.

    points: [T, D], query: [U, D]: packed clouds as in `ball_query`; without offsets, one cloud.
    radius, min_radius, convention: as in `ball_query`. closed: points at exactly the radius too.
    capacity: entries of the list. Those that do not fit are missing at its end: the last row that
        has room ends early, with its lowest indices, and later ones are empty.
    return_dist2: if False, dist2 is [0].
    trim: narrow to the entries in use, views that keep the whole buffers alive; reads `offsets`,
        the only host synchronization.

    Returns `RadiusNeighbors`, the points of each query in ascending order. Not differentiable;
    distances made of the gathered points are.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]])
    >>> near = torchvox.radius_neighbors(points, points, 1.5, capacity=9, trim=True)
    >>> near.offsets.tolist(), near.index.tolist()
    ([0, 2, 4, 5], [0, 1, 0, 1, 2])
    """
    options = {**options_of("radius_neighbors", RADIUS_CONVENTIONS, convention)}
    if "radius2" in options:
        options["radius2"] = options["radius2"](radius)
    offsets, index, dist2, count = torch.ops.torchvox.radius_neighbors(
        points,
        query,
        radius,
        capacity,
        min_radius=min_radius,
        closed=closed,
        return_dist2=return_dist2,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        **options,
    )
    if trim:
        used = offsets[-1].item()
        torch._check(used >= 0)
        torch._check(used <= index.shape[0])
        index = index.narrow(0, 0, used)
        dist2 = dist2.narrow(0, 0, used) if return_dist2 else dist2
    return RadiusNeighbors(offsets, index, dist2, count)


class ChamferDistance(NamedTuple):
    """Result of `chamfer_distance`; packed, [T] and [U].

    dist_x: [B, N], from each x to the nearest y, squared or with norm 1.
    dist_y: [B, M], from each y to the nearest x.
    index_x: [B, N] int32, the nearest y of each x; -1 without one.
    index_y: [B, M] int32, the nearest x of each y; -1 without one.
    """

    dist_x: Tensor
    dist_y: Tensor
    index_x: Tensor
    index_y: Tensor


def chamfer_distance(
    x: Tensor,
    y: Tensor,
    *,
    norm: int = 2,
    convention: str = "torchvox",
    lengths_x: Optional[Tensor] = None,
    lengths_y: Optional[Tensor] = None,
    batch_offsets_x: Optional[Tensor] = None,
    batch_offsets_y: Optional[Tensor] = None,
) -> ChamferDistance:
    """From each point to the nearest of the other cloud, both ways: `knn` with k = 1, twice.

    x: [B, N, D], y: [B, M, D], with lengths or without; or packed clouds, [T, D] and [U, D] with
        offsets of both. Arguments, norm and convention are those of `knn`.

    Returns `ChamferDistance`: squared distances, or with norm 1 sums of absolute differences, and
    the lowest of equally near points. A point that does not exist, is not finite or has no other
    cloud holds 0 and -1: sums over a padded cloud are sums over its points. dist_x and dist_y are
    differentiable in x and y, by sums in a fixed order without atomics. Takes O(N + M) memory.
    Raises ValueError (shapes, options) and TypeError (dtypes); the errors of lengths, offsets and
    dtypes are those of `knn`, whose points and queries x and y are in turn.
    """
    op, packed = "chamfer_distance", batch_offsets_x is not None
    if packed != (batch_offsets_y is not None):
        present = "batch_offsets_x" if packed else "batch_offsets_y"
        raise ValueError(
            f"{op}: batch_offsets_x and batch_offsets_y must be given together, got {present}"
        )
    fits = x.dim() == y.dim() == (2 if packed else 3) and x.shape[-1] == y.shape[-1]
    if not fits or not (packed or x.shape[0] == y.shape[0]):
        layout = "[T, D] and [U, D] with" if packed else "[B, N, D] and [B, M, D] without"
        shapes = f"{list(x.shape)} and {list(y.shape)}"
        raise ValueError(f"{op}: x and y must be {layout} offsets, got {shapes}")
    if norm not in (1, 2):
        raise ValueError(f"{op}: norm must be 1 or 2, got {norm}")
    clouds = ((x, lengths_x, batch_offsets_x), (y, lengths_y, batch_offsets_y))
    found: List[Tensor] = []
    for (query, query_lengths, query_offsets), (points, lengths, offsets) in (clouds, clouds[::-1]):
        dist, idx = knn(
            points,
            query,
            1,
            norm=norm,
            convention=convention,
            lengths=lengths,
            query_lengths=query_lengths,
            batch_offsets=offsets,
            query_batch_offsets=query_offsets,
        )
        dist, idx = dist.squeeze(-1), idx.squeeze(-1)
        found += [dist.masked_fill(idx < 0, 0.0), idx]
    return ChamferDistance(found[0], found[2], found[1], found[3])
