# SPDX-License-Identifier: Apache-2.0
"""query_and_group, written as its parts: ball queries, gathers, a subtraction, a quotient."""

import numpy as np
import torch
from torch import Tensor

from .arithmetic import from_working, to_working
from .neighbours import ball_query


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
    options = {"closed": closed, "dist_order": dist_order}
    options |= {"lengths": lengths, "query_lengths": query_lengths}
    balls = [
        ball_query(points, query, radius, k, **options) for radius, k in zip(radii, ks, strict=True)
    ]
    idx = torch.cat([ball[1] for ball in balls], -1)
    count = torch.stack([ball[2] for ball in balls], -1)
    dtype = points.dtype if features is None else features.dtype
    parts = []
    if use_xyz:
        neighbours = to_working(_rows(points, idx))
        with np.errstate(all="ignore"):
            relative = neighbours - to_working(query)[:, :, None]
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
