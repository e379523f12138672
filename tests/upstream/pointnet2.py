# SPDX-License-Identifier: Apache-2.0
"""Sampling and gathering that both re-implemented PointNet++ references share; plain torch."""

from typing import Optional

import torch
from torch import Tensor


def rows_of(values: Tensor, idx: Tensor) -> Tensor:
    """values [B, N, C], idx [B, ...] -> [B, ..., C]."""
    batch = torch.arange(len(values), device=values.device)
    return values[batch.view(-1, *[1] * (idx.dim() - 1)), idx]


def furthest_points(xyz: Tensor, count: int, candidates: Optional[Tensor] = None) -> Tensor:
    """[B, count] indices, from point 0 on; candidates [B, N] bool: who may follow it."""
    chosen = torch.zeros(len(xyz), count, dtype=torch.long, device=xyz.device)
    nearest = xyz.new_full(xyz.shape[:2], 1e10)
    if candidates is not None:
        nearest[~candidates] = -1.0
    for sample in range(1, count):
        last = rows_of(xyz, chosen[:, sample - 1])
        nearest = torch.minimum(nearest, (xyz - last[:, None]).square().sum(-1))
        chosen[:, sample] = nearest.argmax(1)
    return chosen


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """[B, N, 3] and [B, M, 3] -> [B, N, M], from differences."""
    return (a[:, :, None] - b[:, None]).square().sum(-1)


def first_inside(inside: Tensor, k: int) -> Tensor:
    """The first k columns that hold True in each row, [..., N] -> [..., k], N where there are
    fewer."""
    n = inside.size(-1)
    column = torch.arange(n, device=inside.device).expand_as(inside)
    found = torch.where(inside, column, n).sort(-1)[0][..., :k]
    return torch.nn.functional.pad(found, (0, k - found.size(-1)), value=n)
