# SPDX-License-Identifier: Apache-2.0
"""Point-wise networks: the same small MLP for every row. Rows are channel-last, so that each layer
is one matrix product and its batch norm needs no transposing copy."""

from typing import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SharedLayer(nn.Module):
    """Linear, batch norm and ReLU: rows [R, C] to [R, out_channels].

    bias: of the linear map. It changes nothing that batch norm does not undo, but some checkpoints
    have one.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias)
        self.norm = nn.BatchNorm1d(out_channels)

    def forward(self, rows: Tensor) -> Tensor:
        return F.relu(self.norm(self.linear(rows)))


class FoldedLayer(nn.Module):
    """A `SharedLayer` in evaluation with its batch norm folded into weight and bias.

    Computes in the dtype of the weight, whatever the rows have.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.weight.dtype)
        if torch.is_grad_enabled():
            return F.relu(F.linear(rows, self.weight, self.bias))
        # One kernel on the GPU; it has no gradient.
        return torch._addmm_activation(self.bias, rows, self.weight.t())

    def extra_repr(self) -> str:
        return f"in_features={self.weight.size(1)}, out_features={self.weight.size(0)}"


class SharedMLP(nn.Module):
    """Layers of `SharedLayer`: [..., in_channels] to [..., channels[-1]]."""

    def __init__(self, in_channels: int, channels: Sequence[int], *, bias: bool = False) -> None:
        super().__init__()
        if not channels:
            raise ValueError("SharedMLP: channels must name at least one layer, got none")
        widths = [int(in_channels), *(int(c) for c in channels)]
        self.layers = nn.ModuleList(
            SharedLayer(widths[i], widths[i + 1], bias=bias) for i in range(len(channels))
        )
        self.in_channels = widths[0]
        self.out_channels = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        for layer in self.layers:
            rows = layer(rows)
        return rows.unflatten(0, x.shape[:-1])
