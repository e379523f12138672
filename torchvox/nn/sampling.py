# SPDX-License-Identifier: Apache-2.0
"""Sampling modules."""

from typing import Optional, Tuple

import torch
from torch import Tensor, nn

from torchvox.ops.annotations import Nonfinite
from torchvox.ops.conventions import options_of
from torchvox.ops.sampling import FURTHEST_POINT_SAMPLE_CONVENTIONS


class FurthestPointSample(nn.Module):
    """`torchvox.furthest_point_sample` with its options fixed.

    forward(points [B, N, D], lengths [B] or None, counts [B] or None, start_idx [B] or [B, s] or
    None) returns (idx [B, num_samples], dist2 [B, num_samples]).
    """

    def __init__(
        self,
        num_samples: int,
        *,
        start: int = 0,
        nonfinite: Nonfinite = "skip",
        convention: str = "torchvox",
    ) -> None:
        super().__init__()
        self.num_samples = int(num_samples)
        self.start = int(start)
        self.nonfinite = nonfinite
        self.convention = convention
        options = options_of("FurthestPointSample", FURTHEST_POINT_SAMPLE_CONVENTIONS, convention)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(
        self,
        points: Tensor,
        lengths: Optional[Tensor] = None,
        counts: Optional[Tensor] = None,
        start_idx: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        idx, dist2 = torch.ops.torchvox.furthest_point_sample(
            points,
            self.num_samples,
            lengths=lengths,
            counts=counts,
            start=self.start,
            start_idx=start_idx,
            tie=self.tie,
            tie_block=self.tie_block,
            dist_order=self.dist_order,
            exhausted=self.exhausted,
            nonfinite=self.nonfinite,
            skip_origin=self.skip_origin,
            init_dist2=self.init_dist2,
        )
        return idx, dist2

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, convention={self.convention!r}"
