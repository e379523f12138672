# SPDX-License-Identifier: Apache-2.0
"""Sampling modules."""

from typing import Final, Optional, Tuple

import torch
from torch import Tensor, nn


class FurthestPointSample(nn.Module):
    """`torchvox.furthest_point_sample` with its options fixed.

    forward(points [B, N, D], lengths [B] or None, counts [B] or None, start_idx [B] or [B, s] or
    None) returns (idx [B, num_samples], dist2 [B, num_samples]).
    """

    num_samples: Final[int]
    start: Final[int]
    tie: Final[str]
    tie_block: Final[int]
    dist_order: Final[str]
    exhausted: Final[str]
    nonfinite: Final[str]
    skip_origin: Final[bool]
    init_dist2: Final[float]

    def __init__(
        self,
        num_samples: int,
        *,
        start: int = 0,
        tie: str = "lowest",
        tie_block: int = 1024,
        dist_order: str = "pn2",
        exhausted: str = "distinct",
        nonfinite: str = "skip",
        skip_origin: bool = False,
        init_dist2: Optional[float] = None,
    ) -> None:
        super().__init__()
        self.num_samples = int(num_samples)
        self.start = int(start)
        self.tie = tie
        self.tie_block = int(tie_block)
        self.dist_order = dist_order
        self.exhausted = exhausted
        self.nonfinite = nonfinite
        self.skip_origin = bool(skip_origin)
        self.init_dist2 = float("inf") if init_dist2 is None else float(init_dist2)

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
        return f"num_samples={self.num_samples}, tie={self.tie!r}, exhausted={self.exhausted!r}"
