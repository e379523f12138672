# SPDX-License-Identifier: Apache-2.0
"""One tensor in many memory layouts. The values stay; strides and offsets change."""

import torch
from torch import Tensor


def strided(t: Tensor) -> Tensor:
    """Every second element along every dimension of a larger buffer."""
    if t.dim() == 0:
        return offset(t)
    buffer = torch.full([2 * n + 1 for n in t.shape], 77, dtype=t.dtype, device=t.device)
    view = buffer[tuple(slice(1, None, 2) for _ in t.shape)]
    return view.copy_(t)


def row_strided(t: Tensor) -> Tensor:
    """The leading part of longer rows, with an odd stride."""
    if t.dim() == 0:
        return offset(t)
    buffer = torch.full([*t.shape[:-1], t.shape[-1] + 3], 77, dtype=t.dtype, device=t.device)
    return buffer[..., : t.shape[-1]].copy_(t)


def transposed(t: Tensor) -> Tensor:
    """Dimensions stored in reverse order."""
    order = list(range(t.dim()))[::-1]
    return t.permute(order).contiguous().permute(order)


def offset(t: Tensor) -> Tensor:
    """Contiguous, but three elements into its storage: not aligned to 16 bytes."""
    buffer = torch.full([t.numel() + 3], 77, dtype=t.dtype, device=t.device)
    return buffer[3:].view(t.shape).copy_(t)


LAYOUTS = {
    "strided": strided,
    "row strided": row_strided,
    "transposed": transposed,
    "offset": offset,
}


def expandable(t: Tensor) -> Tensor:
    """The tensor with its first row in every row."""
    return t[:1].expand_as(t) if t.dim() and t.size(0) else t
