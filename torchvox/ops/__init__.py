# SPDX-License-Identifier: Apache-2.0
"""Typed public functions over `torch.ops.torchvox.*`, re-exported as `torchvox.<name>`."""

from torchvox.ops.bev import (
    BEVHeight,
    BEVHeightWithIndex,
    bev_affine,
    bev_max_height,
    bev_max_height_with_index,
)

__all__ = [
    "BEVHeight",
    "BEVHeightWithIndex",
    "bev_affine",
    "bev_max_height",
    "bev_max_height_with_index",
]
