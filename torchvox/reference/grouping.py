# SPDX-License-Identifier: Apache-2.0
"""Grouping, interpolation and their gradients, written as their definition: one slot after another.

The prose contract is docs/grouping.md. A slot is one entry of `idx`; the row that it names is
`slot_rows`. Gradients add the slots of a row in ascending order, in runs of 256.
"""

import numpy as np
import torch
from torch import Tensor

RUN = 256


def neighbour_distance_backward(
    grad_dist2: Tensor,
    points: Tensor,
    query: Tensor,
    idx: Tensor,
    *,
    norm: int = 2,
    count: Tensor | None = None,
    ptr: Tensor | None = None,
    query_ptr: Tensor | None = None,
    local_index: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients of distances of `query` to `points`, to both: [B, N, D] and [B, M, D], or packed.

    A slot gives its point (2 g) * (p - q) with norm 2, g * sign(p - q) with norm 1, and its query
    the opposite.
    """
    batched = points.dim() == 3
    row = slot_rows(idx, points.size(-2), count, ptr, query_ptr, local_index)
    p, q, g = (_working(t) if batched else _working(t)[None] for t in (points, query, grad_dist2))
    row = row.reshape(g.shape)
    clouds, rows, dims = p.shape
    grad_p, grad_q = np.zeros_like(p), np.zeros_like(q)
    for b in range(clouds):
        named = row[b] >= 0
        neighbour = np.zeros((*row[b].shape, dims), p.dtype)
        neighbour[named] = p[b][row[b][named]]
        slope = g[b][..., None]
        with np.errstate(all="ignore"):
            difference = neighbour - q[b][:, None]
            if norm == 2:
                term = (slope + slope) * difference
            else:
                term = np.select([difference > 0, difference < 0], [slope, -slope], 0)
        term = np.where(named[..., None], term, 0).astype(p.dtype)
        grad_p[b] = sum_slots(term.reshape(-1, dims), row[b].reshape(-1), rows)
        for m in range(len(q[b])):
            grad_q[b, m] = chunked_sum(-term[m])
    out = (_rounded(grad_p, points.dtype), _rounded(grad_q, query.dtype))
    return out if batched else (out[0][0], out[1][0])


# ------------------------------------------------------------------------------------------ slots


def slot_rows(
    idx: Tensor,
    rows: int,
    count: Tensor | None = None,
    ptr: Tensor | None = None,
    query_ptr: Tensor | None = None,
    local_index: bool = False,
) -> np.ndarray:
    """The row that each slot names, in the shape of idx [.., k], -1 for none.

    None: an index outside the cloud (0 to rows, or ptr[b] to ptr[b + 1] for the queries
    query_ptr[b] to query_ptr[b + 1]), or a slot past the count of its query.
    """
    row = idx.numpy().astype(np.int64)
    k = row.shape[-1]
    begin, end = np.zeros(row.shape[:-1], np.int64), np.full(row.shape[:-1], rows)
    if ptr is not None:
        bounds, queries = np.clip(ptr.numpy(), 0, rows), query_ptr.numpy()
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
    with np.errstate(all="ignore"):
        for first in range(0, len(values), RUN):
            run = np.zeros_like(total)
            for value in values[first : first + RUN]:
                run = run + value
            total = total + run
    return total


def _working(t: Tensor) -> np.ndarray:
    """As NumPy, half types widened to float32."""
    t = t.detach()
    return (t if t.dtype in (torch.float32, torch.float64) else t.float()).numpy()


def _rounded(values: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(values).to(dtype)
