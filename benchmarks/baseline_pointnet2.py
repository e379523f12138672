# SPDX-License-Identifier: Apache-2.0
"""PointNet++ (classification, one scale) as it is commonly written: baseline ops, torch layers.

Furthest point sampling by one block per cloud (a torch loop on the CPU); balls by expanded
distances, a mask and the k smallest indices, by sorting all of them as yanx27 does or by topk;
neighbors by advanced indexing; 1x1 Conv2d, BatchNorm2d, ReLU and maximum on [B, C, k, S]. Unlike
there, nothing waits for the host, so that it can be captured in a graph.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import baseline_fps


def rows_of(values: Tensor, idx: Tensor) -> Tensor:
    batch = torch.arange(values.size(0), device=values.device)
    return values[batch.view(-1, *[1] * (idx.dim() - 1)), idx]


def furthest_points(xyz: Tensor, count: int) -> Tensor:
    if xyz.is_cuda:
        return baseline_fps.sample(xyz.contiguous(), count).long()
    chosen = torch.zeros(xyz.size(0), count, dtype=torch.long)
    nearest = xyz.new_full(xyz.shape[:2], float("inf"))
    for i in range(1, count):
        last = rows_of(xyz, chosen[:, i - 1])
        nearest = torch.minimum(nearest, (xyz - last[:, None]).square().sum(-1))
        chosen[:, i] = nearest.argmax(1)
    return chosen


def ball(xyz: Tensor, centers: Tensor, radius: float, k: int, by: str) -> Tensor:
    """[B, S, k] indices. by: "sort" or "topk"."""
    n = xyz.size(1)
    with torch.autocast(xyz.device.type, enabled=False):
        d2 = -2 * torch.matmul(centers, xyz.transpose(1, 2))
        d2 += centers.square().sum(-1)[:, :, None]
        d2 += xyz.square().sum(-1)[:, None]
    idx = torch.arange(n, device=xyz.device).expand_as(d2).masked_fill(d2 > radius**2, n)
    idx = idx.topk(k, largest=False, sorted=True)[0] if by == "topk" else idx.sort(-1)[0][..., :k]
    return torch.where(idx == n, idx[..., :1], idx)


class Abstraction(nn.Module):
    def __init__(
        self, count: int | None, radius: float, k: int, channels: int, widths: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.count, self.radius, self.k, self.by = count, radius, k, "sort"
        sizes = [channels + 3, *widths]
        self.convs = nn.ModuleList(nn.Conv2d(sizes[i], c, 1) for i, c in enumerate(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in widths)

    def forward(self, xyz: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.count is None:
            centers = torch.zeros_like(xyz[:, :1])
            grouped = torch.cat([xyz, features], -1)[:, None]
        else:
            centers = rows_of(xyz, furthest_points(xyz, self.count))
            idx = ball(xyz, centers, self.radius, self.k, self.by)
            grouped = rows_of(xyz, idx) - centers[:, :, None]
            if features is not None:
                grouped = torch.cat([grouped, rows_of(features, idx)], -1)
        x = grouped.permute(0, 3, 2, 1)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return centers, x.max(2)[0].permute(0, 2, 1)


class Classifier(nn.Module):
    """forward(points [B, N, 3]) -> log-probabilities [B, classes]."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            [
                Abstraction(512, 0.2, 32, 0, (64, 64, 128)),
                Abstraction(128, 0.4, 64, 128, (128, 128, 256)),
                Abstraction(None, 0.0, 0, 256, (256, 512, 1024)),
            ]
        )
        self.linears = nn.ModuleList([nn.Linear(1024, 512), nn.Linear(512, 256)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(512), nn.BatchNorm1d(256)])
        self.scores = nn.Linear(256, num_classes)

    def take(self, model: nn.Module) -> "Classifier":
        """The weights of a torchvox.models.PointNet2Classifier of the same sizes."""
        theirs = [layer for level in model.levels for layer in level.mlps[0].layers]
        theirs += list(model.head.layers)
        convs = [conv for level in self.levels for conv in level.convs] + list(self.linears)
        norms = [norm for level in self.levels for norm in level.norms] + list(self.norms)
        with torch.no_grad():
            for conv, norm, layer in zip(convs, norms, theirs, strict=True):
                conv.weight.copy_(layer.linear.weight.view_as(conv.weight))
                conv.bias.copy_(layer.linear.bias)
                norm.load_state_dict(layer.norm.state_dict())
        self.scores.load_state_dict(model.head.scores.state_dict())
        return self

    def select(self, by: str) -> "Classifier":
        for level in self.levels:
            level.by = by
        return self

    def forward(self, points: Tensor) -> Tensor:
        xyz, features = points, None
        for level in self.levels:
            xyz, features = level(xyz, features)
        x = features.squeeze(1)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = F.relu(norm(linear(x)))
        return F.log_softmax(self.scores(x).float(), -1)
