# SPDX-License-Identifier: Apache-2.0
"""Parts of the PointNet++ models: levels over one sampling of the cloud, propagation, head."""

from itertools import pairwise
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox._util.errors import expect
from torchvox.models.conventions import Conventions, Net
from torchvox.nn.feature_propagation import FeaturePropagation
from torchvox.nn.set_abstraction import SetAbstraction, sample_centers, without_padding
from torchvox.nn.shared_mlp import SharedLayer


class Head(nn.Module):
    """Hidden layers with dropout, then the scores: [..., C] to [..., num_classes] float32."""

    def __init__(self, in_channels: int, net: Net, num_classes: int, rules: Conventions) -> None:
        super().__init__()
        widths = [in_channels, *net.head]
        self.layers = nn.ModuleList(SharedLayer(a, b, bias=rules.bias) for a, b in pairwise(widths))
        self.dropouts = nn.ModuleList(nn.Dropout(p) for p in net.dropout)
        self.scores = nn.Linear(widths[-1], num_classes)
        self.log_softmax = rules.log_softmax

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        for layer, dropout in zip(self.layers, self.dropouts):  # noqa: B905 (TorchScript)
            rows = dropout(layer(rows))
        scores = self.scores(rows.to(self.scores.weight.dtype)).float()
        if self.log_softmax:
            scores = F.log_softmax(scores, -1)
        return scores.unflatten(0, x.shape[:-1])


class PointNet2(nn.Module):
    """Base of the three models: levels of set abstraction over one sampling of the cloud."""

    def __init__(self, net: Net, rules: Conventions, in_channels: int, xyz_features: bool) -> None:
        super().__init__()
        expect(in_channels >= 3, "in_channels counts x, y and z too: at least 3", in_channels)
        self.in_channels = int(in_channels)
        self.first_feature = 0 if xyz_features else 3
        self.start = rules.start
        self.skip_origin = rules.skip_origin
        self.levels = nn.ModuleList()
        self.feature_channels: List[int] = [self.in_channels - self.first_feature]
        same = ("use_xyz", "closed", "start", "skip_origin", "bias")
        options = {name: getattr(rules, name) for name in same}
        for level in net.levels:
            options["features_first"] = rules.scales_features_first and len(level.channels) > 1
            balls = level.points, level.radii, level.neighbors
            channels = self.feature_channels[-1], level.channels
            self.levels.append(SetAbstraction(*balls, *channels, **options))
            self.feature_channels.append(level.out_channels)
        counts = [level.points for level in net.levels if level.points is not None]
        fewer = counts and counts == sorted(counts, reverse=True)
        expect(bool(fewer), "levels must have ever fewer points", counts)
        if any(level.points is None for level in net.levels[:-1]):
            raise ValueError("only the last of the levels may take all points")
        self.num_centers = counts[0]
        self._config: Dict[str, Any] = {}

    def encode(
        self, points: Tensor, lengths: Optional[Tensor]
    ) -> Tuple[List[Tensor], List[Tensor], List[Tensor]]:
        """Coordinates and features of every level, level 0 the points themselves (their features
        may have no column), and how many points each has when lengths are given."""
        if points.dim() != 3 or points.size(2) != self.in_channels:
            raise ValueError(f"points must be [B, N, {self.in_channels}], got {list(points.shape)}")
        # A point with a column that is not finite does not exist, as in the detectors.
        finite = torch.isfinite(points).all(-1, keepdim=True)
        points = without_padding(torch.where(finite, points, float("nan")), lengths)
        xyz = points[:, :, :3]
        rows = points[:, :, self.first_feature :]
        features: Optional[Tensor] = rows if rows.size(2) > 0 else None
        random = self.start == "random" or (self.start == "random_train" and self.training)
        centers = sample_centers(xyz, self.num_centers, lengths, random, self.skip_origin)
        all_xyz, all_features = [xyz], [rows]
        sizes: List[Tensor] = []
        if lengths is not None:
            sizes.append(lengths)
        for level in self.levels:
            if level.all_points:
                xyz, features = level(xyz, features, lengths)
            else:
                # A prefix of a furthest point sampling is the sampling of that prefix.
                xyz, features = level(
                    xyz, features, lengths, centers.narrow(1, 0, level.num_points)
                )
            all_xyz.append(xyz)
            all_features.append(features)
            if lengths is not None:
                lengths = lengths.clamp(max=level.num_points)
                sizes.append(lengths)
        return all_xyz, all_features, sizes

    @torch.jit.unused
    def config(self) -> Dict[str, Any]:
        """Arguments that build the same model, plain types only."""
        return self._config


class PointNet2Propagation(PointNet2):
    """Propagation back to the points, and scores for each."""

    def __init__(
        self, net: Net, rules: Conventions, in_channels: int, skip_channels: int, num_classes: int
    ) -> None:
        super().__init__(net, rules, in_channels, rules.xyz_features)
        count = len(net.propagation)
        rule = f"propagation must have one entry per level, {len(net.levels)}"
        expect(count == len(net.levels), rule, count)
        self.propagation = nn.ModuleList()
        channels = self.feature_channels[-1]
        skips = [skip_channels, *self.feature_channels[1:-1]]
        for skip, widths in zip(reversed(skips), net.propagation, strict=True):
            options = {name: getattr(rules, name) for name in ("weight", "skip_first", "bias")}
            up = FeaturePropagation(channels + skip, widths, **options)
            self.propagation.append(up)
            channels = up.out_channels
        self.head = Head(channels, net, num_classes, rules)

    def decode(
        self,
        xyz: List[Tensor],
        features: List[Tensor],
        sizes: List[Tensor],
        skip: Optional[Tensor],
        lengths: Optional[Tensor],
    ) -> Tensor:
        """Scores [B, N, classes]; 0 past the lengths."""
        at = len(xyz) - 1
        rows = features[at]
        for up in self.propagation:
            beside: Optional[Tensor] = skip
            if at > 1:
                beside = features[at - 1]
            count: Optional[Tensor] = None
            if at < len(sizes):
                count = sizes[at]
            rows = up(xyz[at - 1], xyz[at], beside, rows, count)
            at -= 1
        return without_padding(self.head(rows), lengths)
