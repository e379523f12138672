# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view modules."""

from typing import Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from torchvox.ops.annotations import Orientation


class BEVMaxHeight(nn.Module):
    """`torchvox.bev_max_height` with its grid fixed; float32 output.

    forward(points [N, C], batch_offsets [B + 1] or None, num_valid [B] or None) returns
    (height [B, H, W], counts [B + 1, 4]).
    """

    def __init__(
        self,
        point_cloud_range: Sequence[float],
        size: Sequence[int],
        orientation: Orientation = "grid",
        fill: float = 0.0,
    ) -> None:
        super().__init__()
        self.point_cloud_range = [float(v) for v in point_cloud_range]
        self.size = [int(n) for n in size]
        self.orientation = orientation
        self.fill = float(fill)

    def forward(
        self,
        points: Tensor,
        batch_offsets: Optional[Tensor] = None,
        num_valid: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        height, counts = torch.ops.torchvox.bev_max_height(
            points,
            self.point_cloud_range,
            self.size,
            batch_offsets=batch_offsets,
            num_valid=num_valid,
            orientation=self.orientation,
            fill=self.fill,
        )
        return height, counts

    def extra_repr(self) -> str:
        return f"range={self.point_cloud_range}, size={self.size}, orientation={self.orientation!r}"
