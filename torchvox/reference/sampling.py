# SPDX-License-Identifier: Apache-2.0
"""Furthest point sampling and gathering, written as their definition: one sample after another.

The prose contract is docs/sampling.md.
"""

import numpy as np
import torch
from torch import Tensor

from .arithmetic import to_working
from .definition import define_op
from .fma import fma

__all__ = [
    "furthest_point_sample",
    "furthest_point_sample_ragged",
    "furthest_point_sample_with_dist",
]

INF = float("inf")


@define_op
def furthest_point_sample(
    points: Tensor, num_samples: int, *, lengths, counts, start, start_idx, **options
) -> tuple[Tensor, Tensor]:
    """(idx [B, S] int32, dist2 [B, S]) of points [B, N, D]."""
    b, n, _ = points.shape
    starts = _starts(start, start_idx, b)

    clouds = to_working(points)
    lengths = np.full(b, n) if lengths is None else np.clip(lengths.numpy(), 0, n)
    counts = np.full(b, num_samples) if counts is None else np.clip(counts.numpy(), 0, num_samples)
    idx = np.full((b, num_samples), -1, np.int32)
    dist2 = np.zeros((b, num_samples), clouds.dtype)
    for i in range(b):
        s = counts[i]
        idx[i, :s], dist2[i, :s] = _sample(clouds[i, : lengths[i]], s, starts[i], **options)
    return torch.from_numpy(idx), torch.from_numpy(dist2)


@define_op
def furthest_point_sample_ragged(
    points, batch_offsets, out_offsets, max_total, *, start, start_idx, local_index, **options
) -> tuple[Tensor, Tensor]:
    """(idx [max_total] int32, dist2 [max_total]) of packed clouds."""
    starts = _starts(start, start_idx, batch_offsets.size(0) - 1)
    cloud = to_working(points)
    batch_offsets = np.clip(batch_offsets.numpy(), 0, len(cloud))
    out_offsets = np.clip(out_offsets.numpy(), 0, max_total)
    idx = np.full(max_total, -1, np.int32)
    dist2 = np.zeros(max_total, cloud.dtype)
    for b in range(len(batch_offsets) - 1):
        out = slice(out_offsets[b], max(out_offsets[b], out_offsets[b + 1]))
        own = cloud[batch_offsets[b] : batch_offsets[b + 1]]
        local, dist2[out] = _sample(own, out.stop - out.start, starts[b], **options)
        idx[out] = np.where((local < 0) | local_index, local, local + batch_offsets[b])
    return torch.from_numpy(idx), torch.from_numpy(dist2)


@define_op
def furthest_point_sample_with_dist(
    distances: Tensor, num_samples: int, *, lengths, start, tie, tie_block, init_dist
) -> Tensor:
    """idx [B, S] int32 of distances [B, N, N]."""
    b, n, _ = distances.shape
    idx = np.full((b, num_samples), -1, np.int32)
    lengths = np.full(b, n) if lengths is None else np.clip(lengths.numpy(), 0, n)
    code = tie_code(np.arange(n), n, tie, tie_block)
    for i in range(b):
        length = lengths[i]
        order = np.argsort(code[:length])  # the first of equals wins
        dist = np.full(length, INF if init_dist is None else init_dist, np.float32)
        last = start if start < length else 0
        for s in range(num_samples if length else 0):
            idx[i, s] = last
            dist = np.fmin(dist, distances[i, last, :length].numpy())  # the other one of a NaN
            last = order[np.argmax(dist[order])]
    return torch.from_numpy(idx)


def _sample(
    cloud, s, starts, *, tie, tie_block, dist_order, exhausted, nonfinite, skip_origin, init_dist2
) -> tuple[np.ndarray, np.ndarray]:
    """idx [s], dist2 [s] of one cloud [n, D], sample by sample."""
    n = len(cloud)
    idx, dist2 = np.full(s, -1, np.int64), np.zeros(s, cloud.dtype)
    if n == 0 or s == 0:
        return idx, dist2

    finite = np.isfinite(cloud).all(1)
    candidate = finite & ~_near_origin(cloud) if skip_origin else finite
    order = np.argsort(tie_code(np.arange(n), n, tie, tie_block))
    order = order[candidate[order]]  # the candidates in tie order: the first of equals wins
    spare = np.flatnonzero(~finite) if nonfinite == "last" else order[:0]

    xyz = cloud[order]
    d = np.full(len(order), INF if init_dist2 is None else init_dist2, cloud.dtype)
    taken = np.zeros(n, bool)
    done = min(s, len(starts))
    for j in range(done):
        p, valid = starts[j], 0 <= starts[j] < n and finite[starts[j]]
        if not valid and len(order) > 0:
            p, valid = order[0], True
        elif not valid:  # nothing to start from
            unused = spare[~taken[spare]]
            p = unused[0] if len(unused) else 0 if exhausted == "repeat" else -1
        idx[j] = p
        if p >= 0:
            taken[p] = True
            dist2[j] = INF if finite[p] or nonfinite == "skip" else 0
        if valid:
            d = np.minimum(d, squared_distance(xyz, cloud[p], dist_order))

    for j in range(done, s):
        best = int(np.argmax(d)) if len(d) else -1
        if best < 0 or not d[best] > 0:
            break
        idx[j], dist2[j] = order[best], d[best]
        taken[order[best]] = True
        d = np.minimum(d, squared_distance(xyz, xyz[best], dist_order))
        done = j + 1

    # Exhausted: every candidate left lies on a sample. dist2 stays 0.
    if exhausted == "repeat":
        idx[done:] = order[0] if len(order) else 0
    else:
        rest = np.concatenate([order[~taken[order]], spare[~taken[spare]]])[: s - done]
        idx[done : done + len(rest)] = rest
    return idx, dist2


def tie_code(i: np.ndarray, n: int, tie: str, tie_block: int) -> np.ndarray:
    """Among equal distances the smaller code wins. `mmcv`: the order of its tree reduction,
    whose last step compares odd slots with even ones, so that bit 0 of i mod T decides first."""
    if tie == "lowest":
        return i
    t = tie_block
    reverse = np.zeros_like(i)
    for bit in range(t.bit_length() - 1):
        reverse = (reverse << 1) | ((i % t >> bit) & 1)
    return reverse * -(-n // t) + i // t


def squared_distance(p: np.ndarray, q: np.ndarray, dist_order: str) -> np.ndarray:
    """[n] squared distances of rows p [n, D] to q [D], in the rounding of the contraction."""
    delta = (p - q).T
    if dist_order == "pn2" and len(delta) == 3:
        return _norm2_pn2(delta)
    acc = np.zeros(p.shape[0], p.dtype)
    for x in delta:
        acc = fma(x, x, acc)
    return acc


def _norm2_pn2(xyz: np.ndarray) -> np.ndarray:
    """What nvcc makes of x*x + y*y + z*z."""
    x, y, z = xyz
    yy = y * y
    return fma(z, z, fma(x, x, yy))


def _near_origin(cloud: np.ndarray) -> np.ndarray:
    """|p|^2 <= 1e-3, the constant in double as in Pointnet2_PyTorch."""
    return _norm2_pn2(cloud.T).astype(np.float64) <= 1e-3


def _starts(start: int, start_idx: Tensor | None, b: int) -> np.ndarray:
    """[B, s0] start points of every cloud, as given."""
    if start_idx is None:
        return np.full((b, 1), start)
    return start_idx.numpy().reshape(b, -1) if b else np.zeros((0, 1), np.int64)
