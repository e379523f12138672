# SPDX-License-Identifier: Apache-2.0
"""A PointNet++ level for inference, without the tensor of its groups."""

from typing import List, Optional

import torch
from torch import Tensor


def group_mlp_max(
    points: Tensor,
    query: Tensor,
    features: Optional[Tensor],
    idx: Tensor,
    count: Tensor,
    weights: List[Tensor],
    biases: List[Tensor],
    *,
    use_xyz: bool = True,
    normalize_radius: Optional[float] = None,
    features_first: bool = False,
) -> Tensor:
    """Gather the neighbours of a ball query, apply a small MLP and take the maximum of each ball.

    What a set abstraction computes from `ball_query` and `query_and_group`, linear layers with
    their batch norm folded in, ReLU and a maximum; nothing of size B * M * k is written, and only
    the hits of a ball are computed, not what fills it up.

    points: [B, N, D], query: [B, M, D] as in `ball_query`. features: [B, N, C] of the dtype of
        weights, or None.
    idx: [B, M, k] int32, count: [B, M] int32 of `ball_query`, or one ball of `query_and_group`. The
        first count slots are read; of an empty ball the first. An index outside [0, N) stands for
        zeros, coordinates included.
    weights: 1 to 8 tensors [C_out, C_in] float16, bfloat16, float32 or float64; biases: [C_out]
        each. A layer is max(weight x + bias, 0); x of the first is (point - query, features).
    use_xyz, features_first: which of the two, and in what order, as in `query_and_group`.
    normalize_radius: divides the relative coordinates.

    Returns [B, M, C_out of the last layer] in the dtype of weights; 0 for k = 0. Layers round to
    that dtype; sums are float32, float64 for float64. Deterministic: the same bits each run.
    float32 and float64 have the bits of the CPU; float16 and bfloat16 run on tensor cores from
    compute capability 8.0 on and differ from the CPU by rounding. No host synchronisation.
    For inference: raises NotImplementedError when an input requires a gradient (outside of
    torch.no_grad()). Raises ValueError (shapes, ranges) and TypeError (dtypes).
    """
    return torch.ops.torchvox.group_mlp_max(
        points,
        query,
        features,
        idx,
        count,
        weights,
        biases,
        use_xyz=use_xyz,
        normalize_radius=normalize_radius,
        features_first=features_first,
    )
