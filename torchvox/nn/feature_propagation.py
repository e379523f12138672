# SPDX-License-Identifier: Apache-2.0
"""Feature propagation: from the centers of a level back to the points they were chosen from."""

from typing import Optional, Sequence

import torch
from torch import Tensor, nn

from torchvox.nn.shared_mlp import SharedMLP
from torchvox.ops.annotations import Weight


class FeaturePropagation(nn.Module):
    """PointNet++ feature propagation (Qi et al., 2017).

    Each point takes the mean of the features of its three nearest centers, weighted by the inverse
    distance, beside its own `skip` features; a shared MLP follows.

    in_channels: of the centers' features and the skip features together. channels: layer widths.
    weight: "dist", 1 / (d + eps), or "dist2", 1 / (d^2 + eps). skip_first: [skip, interpolated]
        instead of [interpolated, skip]. bias: see `SharedLayer`.

    forward(xyz [B, N, 3], centers [B, S, 3], skip [B, N, C1] or None, features [B, S, C2],
    lengths [B] or None: of the centers) returns [B, N, channels[-1]]. A single center is spread
    over all points without a search.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        weight: Weight = "dist",
        eps: float = 1e-8,
        skip_first: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if weight not in ("dist", "dist2"):
            raise ValueError(f"FeaturePropagation: weight must be dist or dist2, got {weight!r}")
        self.weight = weight
        self.eps = float(eps)
        self.skip_first = bool(skip_first)
        self.mlp = SharedMLP(in_channels, channels, bias=bias)
        self.out_channels = self.mlp.out_channels

    def forward(
        self,
        xyz: Tensor,
        centers: Tensor,
        skip: Optional[Tensor],
        features: Tensor,
        lengths: Optional[Tensor] = None,
    ) -> Tensor:
        if features.size(1) == 1:
            rows = features.expand(-1, xyz.size(1), -1)
        else:
            rows = torch.ops.torchvox.interpolate_features(
                xyz, centers, features, eps=self.eps, weight=self.weight, lengths=lengths
            )
        if skip is not None:
            skip = skip.to(rows.dtype)
            rows = torch.cat([skip, rows] if self.skip_first else [rows, skip], -1)
        return self.mlp(rows)

    def extra_repr(self) -> str:
        return f"weight={self.weight!r}, skip_first={self.skip_first}"
