# SPDX-License-Identifier: Apache-2.0
"""How the peers write batches of clouds, and what torchvox's ops read."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

HALVES = (torch.float16, torch.bfloat16)


def offsets_of_ends(ends: Tensor) -> Tensor:
    """[B + 1] offsets from [B] ends, without the leading 0."""
    return F.pad(ends, (1, 0))


def floats(values: Any) -> Sequence[float]:
    """Sizes and ranges, which come as lists, tuples, arrays or tensors."""
    return values.tolist() if hasattr(values, "tolist") else values


def widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALVES else tensor


def from_bottom(boxes: Tensor) -> Tensor:
    """Boxes whose z is that of the bottom, with that of the center."""
    return torch.cat(
        [boxes[..., :2], boxes[..., 2:3] + boxes[..., 5:6] / 2, boxes[..., 3:]], dim=-1
    )


def rows_of(features: Tensor, idx: Tensor) -> Tensor:
    """[M, k, C] of [N, C] by [M, k]; an index outside gives zeros and takes no gradient."""
    return torch.ops.torchvox.group_points(features[None], idx[None])[0]


def scattered(grad: Tensor, idx: Tensor, rows: int) -> Tensor:
    """The gradient of `rows_of`: [N, C] of [M, k, C]."""
    return torch.ops.torchvox._group_points_backward(grad[None], idx[None], rows)[0]
