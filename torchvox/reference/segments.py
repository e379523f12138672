# SPDX-License-Identifier: Apache-2.0
"""segment_reduce, written as its definition: one segment after another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from torchvox.reference.arithmetic import cascade_sum, extreme, from_working, to_working
from torchvox.reference.definition import define_op

__all__ = ["segment_reduce"]


@define_op
def segment_reduce(
    src: Tensor, offsets: Tensor, reduce: str, *, index: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(out [R, C], arg): arg is [R, C] int32 for max and min, else of shape [0]."""
    values = to_working(src)
    named = np.arange(len(values)) if index is None else index.numpy()
    bounds = offsets.clamp(0, len(named)).tolist()
    shape = (len(bounds) - 1, values.shape[1])
    out = np.zeros(shape, values.dtype)
    arg = np.full(shape if reduce in ("max", "min") else (0,), -1, np.int32)
    for s, (begin, end) in enumerate(pairwise(bounds)):
        rows = named[begin:end]
        inside = (rows >= 0) & (rows < len(values))
        if reduce in ("sum", "mean"):
            listed = np.zeros((len(rows), shape[1]), values.dtype)  # places of rows outside add 0
            listed[inside] = values[rows[inside]]
            out[s] = cascade_sum(listed)
            if reduce == "mean" and inside.any():
                out[s] /= values.dtype.type(inside.sum())
        elif inside.any():
            candidates = np.unique(rows[inside])
            out[s], rank = extreme(values[candidates], largest=reduce == "max")
            arg[s] = candidates[rank]
    return from_working(out, src.dtype), torch.from_numpy(arg)
