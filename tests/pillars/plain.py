# SPDX-License-Identifier: Apache-2.0
"""The pillar feature net as published code writes it: padded rows, Linear, BatchNorm1d, max."""

import torch
from op_infos.pillars import decorate
from torch import Tensor, nn
from torch.nn import functional as F

import torchvox


class PlainNet(nn.Module):
    """Over [V, P, F] padded points; with the parameters of a PillarFeatureNet."""

    def __init__(self, net: torchvox.nn.PillarFeatureNet) -> None:
        super().__init__()
        self.net = net
        self.linears, self.norms = nn.ModuleList(), nn.ModuleList()
        for layer in net.pfn_layers:
            weight = layer.linear.weight
            linear = nn.Linear(weight.size(1), weight.size(0), bias=False)
            linear.weight.data.copy_(weight.data)
            norm = nn.BatchNorm1d(weight.size(0), eps=layer.norm.eps, momentum=layer.norm.momentum)
            norm.load_state_dict(layer.norm.state_dict())
            self.linears.append(linear)
            self.norms.append(norm)
        self.to(net.pfn_layers[0].linear.weight.dtype)

    def forward(self, padded: Tensor, indices: Tensor, num_points: Tensor, batch: int) -> Tensor:
        """Of the rows in use alone."""
        filled = torch.arange(padded.size(1))[None] < num_points[:, None]
        options = {name: getattr(self.net, name) for name in ("center_axes", "legacy")}
        call = {"indices": indices, **options}
        call |= {k: getattr(self.net, k) for k in ("voxel_size", "point_cloud_range")}
        rows = decorate(padded, filled, call)
        counts = filled if self.net.pad_semantics == "none" else torch.ones_like(filled)
        for i, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            y = linear(rows)
            normed = torch.zeros_like(y)
            normed[counts] = F.relu(norm(y[counts]))  # relu >= 0: the zeros never win
            best = normed.max(1)[0] if len(y) else y.new_zeros(0, y.size(2))
            if i < len(self.linears) - 1:
                rows = torch.cat([normed, best[:, None].expand_as(normed)], -1)
        nx, ny = self.net.size
        b, _, y, x = indices.long().unbind(1)
        canvas = best.new_zeros(batch, ny, nx, best.size(1)).index_put((b, y, x), best)
        return canvas.permute(0, 3, 1, 2)

    def gradients(self) -> list[Tensor]:
        pairs = zip(self.linears, self.norms, strict=True)
        return [p.grad for linear, norm in pairs for p in (linear.weight, norm.weight, norm.bias)]


def fused_gradients(net: torchvox.nn.PillarFeatureNet) -> list[Tensor]:
    layers = net.pfn_layers
    return [p.grad for la in layers for p in (la.linear.weight, la.norm.weight, la.norm.bias)]


def running(norms) -> list[Tensor]:
    return [getattr(n, name) for n in norms for name in ("running_mean", "running_var")]
