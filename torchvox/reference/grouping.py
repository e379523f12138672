# SPDX-License-Identifier: Apache-2.0
"""Grouping, interpolation and their gradients, written as their definition: one slot after another.

The prose contract is docs/grouping.md. A slot is one entry of `idx`; the row that it names is
`slot_rows`. Gradients add the slots of a row in ascending order, in runs of 256.
"""

import numpy as np
import torch
from torch import Tensor

from .arithmetic import to_working
from .definition import define_op
from .fma import fma
from .neighbors_knn import three_nn

__all__ = [
    "gather_points",
    "gather_points_backward",
    "group_points",
    "interpolate_features",
    "interpolation_weights",
    "interpolation_weights_backward",
    "neighbor_distance_backward",
    "neighbor_rows",
    "three_interpolate",
    "three_interpolate_backward",
]

RUN = 256
LANES = 32  # partial sums of the gradient of a weight


@define_op
def gather_points(features: Tensor, idx: Tensor, *, channels_first: bool) -> Tensor:
    """Row idx[b, m] of features[b]; zeros for an index outside [0, N)."""
    rows = features.transpose(1, 2) if channels_first else features  # [B, N, C]
    b, n, c = rows.shape
    out = torch.zeros(b, idx.size(1), c, dtype=features.dtype)
    for i in range(b):
        inside = (idx[i] >= 0) & (idx[i] < n)
        out[i, inside] = rows[i, idx[i, inside].long()]
    return out.transpose(1, 2).contiguous() if channels_first else out


@np.errstate(all="ignore")
def gather_points_backward(
    grad: Tensor, idx: Tensor, num_points: int, *, channels_first: bool = False
) -> Tensor:
    """The gradient of `gather_points` to its features.

    A row sums the gradients of its slots in ascending order: runs of 256 from +0, then the sums of
    the runs from +0, in float32 (float64 for float64), rounded once to the dtype of grad.
    """
    rows = grad.transpose(1, 2) if channels_first else grad  # [B, M, C]
    values, row = to_working(rows), slot_rows(idx, num_points)
    out = np.zeros((rows.size(0), num_points, rows.size(2)), values.dtype)
    for b in range(len(out)):
        out[b] = sum_slots(values[b], row[b], num_points)
    result = _rounded(out, grad.dtype)
    return result.transpose(1, 2).contiguous() if channels_first else result


@define_op
def group_points(features: Tensor, idx: Tensor, *, channels_first: bool, **clouds) -> Tensor:
    """Row idx[b, m, j] of features[b]; zeros for an index outside its cloud."""
    if clouds["batch_offsets"] is not None:
        row = torch.from_numpy(slot_rows(idx, len(features), **clouds))
        return group_points(features[None], row[None])[0]
    out = gather_points(features, idx.flatten(1), channels_first=channels_first)
    return out.unflatten(2 if channels_first else 1, idx.shape[1:])


@define_op
def neighbor_rows(idx: Tensor, num_points: int, *, count, **clouds) -> Tensor:
    """The row that each entry of idx names, -1 for none, int32."""
    row = slot_rows(idx, num_points, count, **clouds)
    return torch.from_numpy(row.astype(np.int32))


@define_op
def three_interpolate(
    features: Tensor, idx: Tensor, weight: Tensor, *, channels_first: bool, **clouds
) -> Tensor:
    """fma(w2, f2, fma(w0, f0, w1 * f1)) of the rows that idx names, then rounded to a half."""
    if clouds["batch_offsets"] is not None:
        row = torch.from_numpy(slot_rows(idx, len(features), **clouds))
        return three_interpolate(features[None], row[None], weight[None])[0]
    rows = group_points(features, idx, channels_first=channels_first)
    rows = rows.movedim(1, -1) if channels_first else rows  # [B, M, 3, C]
    f = to_working(rows)
    w = to_working(weight).astype(f.dtype)[..., None]
    middle = w[:, :, 1] * f[:, :, 1]
    out = fma(w[:, :, 2], f[:, :, 2], fma(w[:, :, 0], f[:, :, 0], middle))
    out = _rounded(np.ascontiguousarray(out).reshape(rows[:, :, 0].shape), features.dtype)
    return out.transpose(1, 2).contiguous() if channels_first else out


@np.errstate(all="ignore")
def three_interpolate_backward(
    grad: Tensor, features: Tensor, idx: Tensor, weight: Tensor, *, channels_first: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradients of `three_interpolate` to features and weight.

    A slot gives its row weight * grad. The gradient of a weight is the sum over the channels of
    grad * feature: 32 sums of every 32nd channel by fma, then halves added to halves.
    """
    grad_rows = grad.transpose(1, 2) if channels_first else grad  # [B, M, C]
    feature_rows = features.transpose(1, 2) if channels_first else features
    g, f, w = to_working(grad_rows), to_working(feature_rows), to_working(weight)
    w = w.astype(g.dtype)
    clouds, queries, channels = g.shape
    rows = f.shape[1]
    row = slot_rows(idx, rows)
    grad_f, grad_w = np.zeros_like(f), np.zeros(w.shape, g.dtype)
    for b in range(clouds):
        share = w[b][..., None] * g[b][:, None]  # [M, 3, C]
        grad_f[b] = sum_slots(share.reshape(3 * queries, channels), row[b].reshape(-1), rows)
        for m, j in np.argwhere(row[b] >= 0):
            lanes = np.zeros(LANES, g.dtype)
            for first in range(0, channels, LANES):
                part = slice(first, min(first + LANES, channels))
                width = part.stop - part.start
                lanes[:width] = fma(g[b, m, part], f[b, row[b, m, j], part], lanes[:width])
            while len(lanes) > 1:
                lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
            grad_w[b, m, j] = lanes[0]
    grad_features = _rounded(grad_f, features.dtype)
    if channels_first:
        grad_features = grad_features.transpose(1, 2).contiguous()
    return grad_features, _rounded(grad_w, weight.dtype)


@define_op
def interpolate_features(
    query: Tensor, points: Tensor, features: Tensor, *, eps: float, weight: str, **lengths
) -> Tensor:
    """three_nn, interpolation_weights and three_interpolate, one after another."""
    dist2, idx = three_nn(query, points, **lengths)
    weights = interpolation_weights(dist2, eps=eps, weight=weight)
    if features.dtype != torch.float64:
        weights = weights.float()
    return three_interpolate(features, idx, weights)


@define_op
def interpolation_weights(dist2: Tensor, *, eps: float, weight: str) -> Tensor:
    """1 / (d + eps), divided by its sum in index order; 0 where the sum is 0."""
    d2 = dist2.detach().numpy()
    d = np.sqrt(d2) if weight == "dist" else d2
    inverse = d2.dtype.type(1) / (d + d2.dtype.type(eps))
    total = (inverse[..., 0] + inverse[..., 1]) + inverse[..., 2]
    out = np.where(total[..., None] > 0, inverse / total[..., None], d2.dtype.type(0))
    return torch.from_numpy(out)


@np.errstate(all="ignore")
def interpolation_weights_backward(
    grad: Tensor, dist2: Tensor, *, eps: float = 1e-8, weight: str = "dist"
) -> Tensor:
    """-u_j^2 / (u0 + u1 + u2) times the sum over i, in order, of w_i (g_j - g_i); for distances
    through d / 2d. 0 where the weight is 0, and at distance 0 where the root has no slope."""
    w = interpolation_weights(dist2, eps=eps, weight=weight).numpy()
    g, d2 = grad.numpy(), dist2.detach().numpy()
    one = d2.dtype.type(1)
    d = d2 if weight == "dist2" else np.sqrt(d2)
    u = one / (d + d2.dtype.type(eps))
    total = (u[..., 0] + u[..., 1]) + u[..., 2]
    terms = (g[..., :, None] - g[..., None, :]) * w[..., None, :]
    pull = (terms[..., 0] + terms[..., 1]) + terms[..., 2]
    out = -(pull / total[..., None] * u) * u
    if weight == "dist":
        out = out / (d + d)
    flat = (u == 0) | ~(total > 0)[..., None] | ((d == 0) & (weight == "dist"))
    return torch.from_numpy(np.where(flat, d2.dtype.type(0), out))


@np.errstate(all="ignore")
def neighbor_distance_backward(
    grad_dist2: Tensor, points: Tensor, query: Tensor, idx: Tensor, *, norm=2, count=None, **clouds
) -> tuple[Tensor, Tensor]:
    """Gradients of distances of `query` to `points`, to both: [B, N, D] and [B, M, D], or packed.

    A slot gives its point (2 g) * (p - q) with norm 2, g * sign(p - q) with norm 1, and its query
    the opposite.
    """
    batched = points.dim() == 3
    row = slot_rows(idx, points.size(-2), count, **clouds)
    p, q, g = (
        to_working(t) if batched else to_working(t)[None] for t in (points, query, grad_dist2)
    )
    row = row.reshape(g.shape)
    rows, dims = p.shape[1:]
    grad_p, grad_q = np.zeros_like(p), np.zeros_like(q)
    for b in range(len(p)):
        named = row[b] >= 0
        neighbor = np.zeros((*row[b].shape, dims), p.dtype)
        neighbor[named] = p[b][row[b][named]]
        slope = g[b][..., None]
        difference = neighbor - q[b][:, None]
        if norm == 2:
            term = (slope + slope) * difference
        else:
            term = np.select([difference > 0, difference < 0], [slope, -slope], 0)
        term = np.where(named[..., None], term, 0).astype(p.dtype)
        grad_p[b] = sum_slots(term.reshape(row[b].size, dims), row[b].reshape(-1), rows)
        for m in range(len(q[b])):
            grad_q[b, m] = chunked_sum(-term[m])
    out = (_rounded(grad_p, points.dtype), _rounded(grad_q, query.dtype))
    return out if batched else (out[0][0], out[1][0])


def slot_rows(
    idx: Tensor,
    rows: int,
    count: Tensor | None = None,
    batch_offsets: Tensor | None = None,
    query_batch_offsets: Tensor | None = None,
    local_index: bool = False,
) -> np.ndarray:
    """The row that each slot names, in the shape of idx [.., k], -1 for none.

    A slot names no row when its index is outside the cloud (0 to rows; of packed clouds
    batch_offsets[b] to batch_offsets[b + 1] for the queries query_batch_offsets[b] to
    query_batch_offsets[b + 1]) or when it is past the count of its query.
    """
    row = idx.numpy().astype(np.int64)
    k = row.shape[-1]
    begin, end = np.zeros(row.shape[:-1], np.int64), np.full(row.shape[:-1], rows)
    if batch_offsets is not None and query_batch_offsets is not None:
        bounds, queries = np.clip(batch_offsets.numpy(), 0, rows), query_batch_offsets.numpy()
        end[:] = 0
        for b in range(len(bounds) - 1):
            own = slice(max(queries[b], 0), max(queries[b + 1], queries[b], 0))
            begin[own], end[own] = bounds[b], bounds[b + 1]
    if local_index:
        row = np.where(row < 0, -1, row + begin[..., None])
    named = (row >= begin[..., None]) & (row < end[..., None])
    if count is not None:
        named &= np.arange(k) < count.numpy()[..., None]
    return np.where(named, row, -1)


def sum_slots(values: np.ndarray, row: np.ndarray, rows: int) -> np.ndarray:
    """[rows, C]: for each row the sum of the values [slots, C] that name it."""
    out = np.zeros((rows, values.shape[1]), values.dtype)
    order = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[order], np.arange(rows + 1))
    for n in range(rows):
        out[n] = chunked_sum(values[order[bounds[n] : bounds[n + 1]]])
    return out


def chunked_sum(values: np.ndarray) -> np.ndarray:
    """Runs of 256 rows from +0, then the sums of the runs from +0; the sum of [n, C] is [C]."""
    total = np.zeros(values.shape[1:], values.dtype)
    for first in range(0, len(values), RUN):
        run = np.zeros_like(total)
        for value in values[first : first + RUN]:
            run = run + value
        total = total + run
    return total


def _rounded(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(values).to(dtype)
