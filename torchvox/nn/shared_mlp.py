# SPDX-License-Identifier: Apache-2.0
"""Point-wise networks: the same small MLP for every row. Rows are channel-last, so that each layer
is one matrix product and its batch norm needs no transposing copy."""

from typing import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def widened(weight: Tensor, columns: int, front: bool) -> Tensor:
    """The weight with as many columns as the rows have, zeros for those that pad them."""
    more = columns - weight.size(1)
    if more == 0:
        return weight
    return F.pad(weight, [more, 0] if front else [0, more])


class SharedLayer(nn.Module):
    """Linear, batch norm and ReLU: rows [R, C] to [R, out_channels].

    bias: of the linear map. It changes nothing that batch norm does not undo, but some checkpoints
    have one. Rows may have more columns than in_channels; the extra ones are ignored: the last
    ones, or with pad_front the first.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, bias: bool = False, pad_front: bool = False
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias)
        self.norm = nn.BatchNorm1d(out_channels)
        self.pad_front = pad_front

    def forward(self, rows: Tensor) -> Tensor:
        kind = self.linear.weight.dtype
        if (rows.dtype == torch.float64) != (kind == torch.float64):  # autocast casts no float64
            raise TypeError(f"SharedMLP: points must be {kind} as the weights, got {rows.dtype}")
        weight = widened(self.linear.weight, rows.size(1), self.pad_front)
        return F.relu(self.norm(F.linear(rows, weight, self.linear.bias)))


class FusedLayer(nn.Module):
    """A `SharedLayer` in evaluation with its batch norm fused into weight and bias.

    Computes in the dtype of the weight, whatever the rows have.
    """

    def __init__(self, weight: Tensor, bias: Tensor, pad_front: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.pad_front = pad_front

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.weight.dtype)
        weight = widened(self.weight, rows.size(1), self.pad_front)
        if torch.is_grad_enabled() and rows.requires_grad:
            return F.relu(F.linear(rows, weight, self.bias))
        # One kernel on the GPU; it has no gradient.
        return torch._addmm_activation(self.bias, rows, weight.t())

    def extra_repr(self) -> str:
        return f"in_features={self.weight.size(1)}, out_features={self.weight.size(0)}"


class SharedMLP(nn.Module):
    """Layers of `SharedLayer`: [..., in_channels] to [..., channels[-1]]."""

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        *,
        bias: bool = False,
        pad_front: bool = False,
    ) -> None:
        super().__init__()
        if not channels:
            raise ValueError("SharedMLP: channels must name at least one layer, got none")
        widths = [int(in_channels), *(int(c) for c in channels)]
        self.layers = nn.ModuleList(
            SharedLayer(widths[i], widths[i + 1], bias=bias, pad_front=pad_front)
            for i in range(len(channels))
        )
        self.in_channels = widths[0]
        self.channels = widths[1:]
        self.out_channels = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        for layer in self.layers:
            rows = layer(rows)
        return rows.unflatten(0, x.shape[:-1])
