# SPDX-License-Identifier: Apache-2.0
"""group_mlp_max, written as its parts: gathered rows, layer after layer, maxima of the balls."""

import numpy as np
import torch
from torch import Tensor

from .arithmetic import from_working, to_working
from .definition import define_op
from .fma import fma
from .grouping import group_points
from .neighbors import relative_rows

__all__ = ["group_mlp_max"]


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
