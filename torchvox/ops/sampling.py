# SPDX-License-Identifier: Apache-2.0
"""Choosing points of a cloud, and fetching what belongs to them."""

import torch
from torch import Tensor


def gather_points(features: Tensor, idx: Tensor, *, channels_first: bool = False) -> Tensor:
    """The rows of `features` that `idx` names: out[b, m] = features[b, idx[b, m]].

    features: [B, N, C] float16, bfloat16, float32 or float64; [B, C, N] with channels_first.
    idx: [B, M] int32 or int64. An index outside [0, N), such as the -1 that pads a sample, gives a
        zero row and passes no gradient on.

    Returns [B, M, C], or [B, C, M] with channels_first, in the dtype of the features.
    Differentiable in features, to any order. The gradient of a point is the sum over the samples
    that took it, in their order, without atomics: the same bits in every run and on every device.
    Raises ValueError (shapes) and TypeError (dtypes). No host synchronisation.
    """
    return torch.ops.torchvox.gather_points(features, idx, channels_first=channels_first)
