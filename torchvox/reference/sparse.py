# SPDX-License-Identifier: Apache-2.0
"""Sparse convolution in dictionaries of cells and loops over offsets. The contract is
docs/sparse.md; every list of three is in the order (z, y, x)."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product
from math import ceil, gcd, prod

import numpy as np
import torch
from torch import Tensor

from .arithmetic import from_working, to_working
from .definition import define_op
from .fma import fma
from .pillars import tree_sum

__all__ = [
    "sparse_batch_norm",
    "sparse_batch_norm_backward",
    "sparse_conv",
    "sparse_conv_backward",
    "sparse_conv_map",
    "sparse_max_pool",
    "sparse_max_pool_backward",
    "sparse_schedule",
    "sparse_subm_map",
]

SEGMENT = 2048  # output rows of a partial sum of the gradient of a weight
Cell = tuple[int, ...]


def _first(num_valid: Tensor | None, rows: int) -> int:
    return rows if num_valid is None else min(max(int(num_valid.reshape(-1)[0]), 0), rows)


def _rounded(values: np.ndarray, like: Tensor) -> Tensor:
    """In the dtype of `like`; a NaN is the quiet one."""
    return from_working(np.where(np.isnan(values), np.nan, values), like.dtype)


def _active(
    indices: Tensor, spatial_shape: list[int], batch_size: int, num_valid: Tensor | None
) -> tuple[dict[Cell, int], Counter[int]]:
    """The lowest row of each cell, and how many rows of each sample are skipped: -1 counts those
    whose sample is outside."""
    cells: dict[Cell, int] = {}
    skipped: Counter[int] = Counter()
    for row, cell in enumerate(indices[: _first(num_valid, len(indices))].tolist()):
        sample = cell[0] if 0 <= cell[0] < batch_size else -1
        inside = all(0 <= c < n for c, n in zip(cell[1:], spatial_shape, strict=True))
        if sample < 0 or not inside or tuple(cell) in cells:
            skipped[sample] += 1
        else:
            cells[tuple(cell)] = row
    return cells, skipped


def _table_of_counts(
    batch_size: int, kept: list[Cell], found: list[Cell], pairs: list[int], skipped: Counter[int]
) -> Tensor:
    """[B + 1, 4] int32. pairs: the sample of each."""
    columns = [Counter(c[0] for c in kept), Counter(c[0] for c in found), Counter(pairs), skipped]
    rows = [[sum(column.values()) for column in columns]]
    rows += [[column[b] for column in columns] for b in range(batch_size)]
    return torch.tensor(rows, dtype=torch.int32)


@define_op
def sparse_subm_map(
    indices, spatial_shape, batch_size, kernel_size, *, dilation, num_valid
) -> tuple[Tensor, Tensor]:
    """(neighbors [K, C], counts [B + 1, 4]) int32."""
    steps = dilation or [1, 1, 1]
    cells, skipped = _active(indices, spatial_shape, batch_size, num_valid)
    neighbors = torch.full((prod(kernel_size), len(indices)), -1, dtype=torch.int32)
    pairs = []
    for k, offset in enumerate(product(*map(range, kernel_size))):
        for cell, row in cells.items():
            place = [
                c + (o - (n - 1) // 2) * d
                for c, o, n, d in zip(cell[1:], offset, kernel_size, steps, strict=True)
            ]
            if (other := cells.get((cell[0], *place))) is not None:
                neighbors[k, row] = other
                pairs.append(cell[0])
    kept = list(cells)
    return neighbors, _table_of_counts(batch_size, kept, kept, pairs, skipped)


@define_op
def sparse_conv_map(
    indices, spatial_shape, batch_size, kernel_size, *, stride, padding, dilation, max_rows,
    num_valid,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(out_indices [C', 4], neighbors [K, C'], inverse [K, C], counts [B + 1, 4]) int32."""
    stride, padding, dilation = stride or [1] * 3, padding or [0] * 3, dilation or [1] * 3
    axes = list(zip(spatial_shape, kernel_size, stride, padding, dilation, strict=True))
    shape = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes]
    reach = prod(ceil(k * gcd(d, s) / s) for _, k, s, _, d in axes)
    capacity = min(len(indices) * reach, batch_size * prod(shape)) if max_rows < 0 else max_rows
    cells, skipped = _active(indices, spatial_shape, batch_size, num_valid)

    reached: dict[Cell, list[tuple[int, int]]] = defaultdict(list)  # offsets and input rows
    for k, offset in enumerate(product(*map(range, kernel_size))):
        for cell, row in cells.items():
            steps = [
                c + p - o * d for c, o, (_, _, _, p, d) in zip(cell[1:], offset, axes, strict=True)
            ]
            place = [step // s for step, s in zip(steps, stride, strict=True)]
            fits = all(step % s == 0 for step, s in zip(steps, stride, strict=True))
            if fits and all(0 <= o < n for o, n in zip(place, shape, strict=True)):
                reached[(cell[0], *place)].append((k, row))
    found = sorted(reached)
    kept, pairs = found[:capacity], []
    sizes = (capacity, 4), (prod(kernel_size), capacity), (prod(kernel_size), len(indices))
    out_indices, neighbors, inverse = (torch.full(s, -1, dtype=torch.int32) for s in sizes)
    for o, cell in enumerate(kept):
        out_indices[o] = torch.tensor(cell)
        for k, row in reached[cell]:
            neighbors[k, o], inverse[k, row] = row, o
            pairs.append(cell[0])
    counts = _table_of_counts(batch_size, kept, found, pairs, skipped)
    return out_indices, neighbors, inverse, counts


# ---- convolution --------------------------------------------------------------------------------


def _side(place: int, size: int) -> int:
    """-1, 0 or 1: below, at or above the middle."""
    return (2 * place > size - 1) - (2 * place < size - 1)


@define_op
def sparse_schedule(neighbors, kernel_size) -> Tensor:
    """int32: rows by key in tiles of 128; which offsets each tile has, 128 bits; its sources."""
    keys, (volume, rows) = np.zeros(neighbors.size(1), int), neighbors.shape
    table = neighbors.numpy()
    for k, offset in enumerate(product(*map(range, kernel_size))):
        z, y, x = (_side(*pair) for pair in zip(offset, kernel_size, strict=True))
        columns = [pair for pair in product((-1, 0, 1), repeat=2) if pair != (0, 0)]
        bits = {-1: 256, 0: 0, 1: 512}[z] | (1 << columns.index((y, x)) if (y, x) in columns else 0)
        keys |= np.where((table[k] >= 0) & (table[k] < 2**31 - 1), bits, 0)
    gray = keys & 255
    for step in (1, 2, 4):
        gray ^= gray >> step
    tiles = ceil(rows / 128)
    order = np.full(tiles * 128, -1, np.int32)
    order[:rows] = np.argsort(1023 - (keys & 768 | gray), kind="stable")
    sources = np.where(order >= 0, table[:, order] if rows else 0, -1)
    sources = np.where((sources >= 0) & (sources < 2**31 - 1), sources, -1)
    sources = sources.reshape(volume, tiles, 128).transpose(1, 0, 2)
    present = np.zeros((tiles, 128), np.uint8)
    present[:, :volume] = (sources >= 0).any(2)
    offsets = np.packbits(present, 1, bitorder="little").view("<i4")
    parts = order, offsets, sources
    return torch.from_numpy(np.concatenate([p.astype(np.int32).reshape(-1) for p in parts]))


def _present(table: Tensor, rows: int, sources: int) -> np.ndarray:
    """[K, rows]: which entries of the first rows name one of the sources."""
    part = table[:, :rows].numpy()
    return (part >= 0) & (part < sources)


def _convolved(
    features: np.ndarray, weight: np.ndarray, table: Tensor, start: np.ndarray
) -> np.ndarray:
    """start [rows, Cout] with the products of the present entries added by fma, offset after
    offset, channel after channel. weight: [Cout, K, Cin]."""
    out, present = start.copy(), _present(table, len(start), len(features))
    for k in range(len(table)):
        at = np.flatnonzero(present[k])
        x = features[table[k, at].numpy()]
        for c in range(x.shape[1]):
            out[at] = fma(x[:, c, None], weight[None, :, k, c], out[at])
    return out


@define_op
def sparse_conv(
    features, weight, neighbors, *, bias, residual, relu, inverse, submanifold, schedule,
    inverse_schedule, num_valid,
) -> Tensor:  # fmt: skip
    """[C', Cout]."""
    x, (volume, capacity) = to_working(features), neighbors.shape
    w = to_working(weight).reshape(len(weight), volume, features.size(1))
    rows = _first(num_valid, capacity)
    start = np.zeros((rows, len(weight)), x.dtype)
    start[:] = 0 if bias is None else to_working(bias)
    value = _convolved(x, w, neighbors, start)
    if residual is not None:
        value = value + to_working(residual)[:rows]
    if relu:
        value = np.where((value > 0) | np.isnan(value), value, 0)
    out = np.zeros((capacity, len(weight)), x.dtype)
    out[:rows] = value
    return _rounded(out, features)


@np.errstate(all="ignore")
def sparse_conv_backward(
    grad: Tensor,
    features: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    *,
    inverse: Tensor | None = None,
    submanifold: bool = False,
    schedule: Tensor | None = None,
    inverse_schedule: Tensor | None = None,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features, weight and bias."""
    kernel, rows = weight.shape[1:4], _first(num_valid, neighbors.size(1))
    g, x = to_working(grad)[:rows], to_working(features)
    w = to_working(weight).reshape(len(weight), len(neighbors), x.shape[1])
    table = neighbors if submanifold else inverse
    if table is None:
        table = torch.empty(len(neighbors), 0, dtype=torch.int32)
    turned = (w[:, ::-1] if submanifold else w).transpose(2, 1, 0)  # [Cin, K, Cout]
    of_features = _convolved(g, turned, table, np.zeros((table.size(1), x.shape[1]), g.dtype))

    present = _present(neighbors, rows, len(x))
    of_weight, of_bias = np.zeros_like(w), np.zeros(len(w), w.dtype)
    for first in range(0, rows, SEGMENT):
        segment, bias = np.zeros_like(of_weight), np.zeros_like(of_bias)
        for o in range(first, min(first + SEGMENT, rows)):
            bias = bias + g[o]
            for k in np.flatnonzero(present[:, o]):
                segment[:, k] = fma(g[o][:, None], x[neighbors[k, o]][None], segment[:, k])
        of_weight, of_bias = of_weight + segment, of_bias + bias
    of_weight = of_weight.reshape(len(weight), *kernel, x.shape[1])
    return _rounded(of_features, grad), _rounded(of_weight, grad), _rounded(of_bias, grad)


# ---- batch norm ---------------------------------------------------------------------------------


@define_op
def sparse_batch_norm(
    features, weight, bias, eps, *, mean, var, num_valid
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [C, N], batch_mean [N], batch_var [N])."""
    rows = _first(num_valid, len(features))
    x = to_working(features)[:rows]
    kind = x.dtype  # of the sums
    if mean is None:
        m64 = tree_sum(x.astype(np.float64)) / max(rows, 1)
        squares = x.astype(np.float64) * x.astype(np.float64)
        v64 = np.maximum(tree_sum(squares) / max(rows, 1) - m64 * m64, 0.0)
        m, v = m64.astype(kind), v64.astype(kind)
    else:
        m, v = mean.numpy(), var.numpy()
    inv = 1 / np.sqrt(v.astype(np.float64) + eps)
    s = (weight.numpy().astype(np.float64) * inv).astype(kind)
    out = np.zeros(features.shape, kind)
    out[:rows] = fma(x - m, s, bias.numpy())
    return _rounded(out, features), torch.from_numpy(m), torch.from_numpy(v)


@np.errstate(all="ignore")
def sparse_batch_norm_backward(
    grad: Tensor,
    features: Tensor,
    weight: Tensor,
    eps: float,
    batch_mean: Tensor,
    batch_var: Tensor,
    training: bool = True,
    *,
    num_valid: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features, weight and bias."""
    rows = _first(num_valid, len(features))
    g = to_working(grad)[:rows]
    kind, g64 = g.dtype, g.astype(np.float64)
    t = to_working(features)[:rows] - batch_mean.numpy()
    inv = 1 / np.sqrt(batch_var.numpy().astype(np.float64) + eps)
    sum_g, sum_gt = tree_sum(g64), tree_sum(g64 * t.astype(np.float64))
    s = (weight.numpy().astype(np.float64) * inv).astype(kind)
    out = np.zeros(features.shape, kind)
    if training:
        a = (sum_g / max(rows, 1)).astype(kind)
        c = (sum_gt * inv * inv / max(rows, 1)).astype(kind)
        out[:rows] = s * fma(-t, np.broadcast_to(c, t.shape), g - a)
    else:
        out[:rows] = s * g
    grads = (torch.from_numpy(one.astype(kind)) for one in (sum_gt * inv, sum_g))
    return _rounded(out, features), *grads


# ---- pooling ------------------------------------------------------------------------------------


@define_op
def sparse_max_pool(features, neighbors, *, inverse, num_valid) -> tuple[Tensor, Tensor]:
    """(out [C', N], arg [C', N] int32)."""
    x, capacity = to_working(features), neighbors.size(1)
    rows = _first(num_valid, capacity)
    out = np.zeros((capacity, x.shape[1]), x.dtype)
    arg = np.full(out.shape, -1, np.int32)
    present = _present(neighbors, rows, len(x))
    for k, o in np.argwhere(present):
        row = int(neighbors[k, o])
        better = (arg[o] < 0) | (x[row] > out[o]) | (np.isnan(x[row]) & ~np.isnan(out[o]))
        out[o], arg[o] = np.where(better, x[row], out[o]), np.where(better, row, arg[o])
    return _rounded(out, features), torch.from_numpy(arg)


@np.errstate(all="ignore")
def sparse_max_pool_backward(grad: Tensor, arg: Tensor, inverse: Tensor) -> Tensor:
    """[C, N]: offset after offset, the gradients of the outputs that took the row."""
    g = to_working(grad)
    out = np.zeros((inverse.size(1), g.shape[1]), g.dtype)
    for k in range(len(inverse)):
        for i in np.flatnonzero(_present(inverse, inverse.size(1), len(g))[k]):
            o = int(inverse[k, i])
            out[i] = np.where(arg[o].numpy() == i, out[i] + g[o], out[i])
    return _rounded(out, grad)
