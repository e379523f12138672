# SPDX-License-Identifier: Apache-2.0
"""Set abstraction: centers of a cloud, and for each a feature of the ball about it."""

from typing import Final, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvox._util.errors import expect
from torchvox.nn.shared_mlp import SharedMLP

ALIGNED = 8  # columns: 16 bytes of a half type, below which tensor cores cannot be fed directly
STARTS = ("first", "random", "random_train")


def random_starts(xyz: Tensor, lengths: Optional[Tensor]) -> Tensor:
    """One start per cloud, [B] int64, uniform in [0, length)."""
    draw = torch.rand(xyz.size(0), dtype=torch.float64, device=xyz.device)
    size = torch.full_like(draw, float(xyz.size(1)))
    if lengths is not None:
        size = torch.minimum(size, lengths.to(torch.float64))
    return torch.minimum(draw * size, size - 1).clamp(min=0).long()  # rounding may reach the size


def sample_centers(
    xyz: Tensor, count: int, lengths: Optional[Tensor], random_start: bool, skip_origin: bool
) -> Tensor:
    """[B, count, 3], the furthest point samples of each cloud; of a cloud with fewer points, its
    first one again and again. The first m centers are the samples of all of them, for any m."""
    start_idx: Optional[Tensor] = None
    if random_start:
        start_idx = random_starts(xyz, lengths)
    idx, _ = torch.ops.torchvox.furthest_point_sample(
        xyz,
        count,
        lengths=lengths,
        start_idx=start_idx,
        exhausted="repeat",
        skip_origin=skip_origin,
    )
    return torch.ops.torchvox.gather_points(xyz, idx)


def maximum(rows: Tensor, dim: int) -> Tensor:
    """Over one dimension, which goes. amax() is the faster one, but its gradient is the slower."""
    return rows.max(dim)[0] if torch.is_grad_enabled() else rows.amax(dim)


def without_padding(rows: Tensor, lengths: Optional[Tensor]) -> Tensor:
    """Zeros past the lengths in rows [B, N, C]: whatever lies there cannot reach a result."""
    if lengths is None:
        return rows
    slot = torch.arange(rows.size(1), device=rows.device)
    return rows.masked_fill((slot >= lengths[:, None])[:, :, None], 0.0)


class SetAbstraction(nn.Module):
    """PointNet++ set abstraction (Qi et al., 2017), with one or several scales.

    Centers are furthest point samples; about each, the neighbors in a ball, their coordinates
    relative to the center beside their features, go through a shared MLP; the maximum over the ball
    is the feature of the center. Several scales are concatenated.

    num_points: centers S. None: one group of all points, with absolute coordinates; then `radii`
        and `neighbors` stay empty and `channels` holds one scale.
    radii, neighbors, channels: one radius, one k and one list of layer widths per scale.
    in_channels: C, of the features; 0 without any.
    use_xyz: coordinates beside the features. features_first: [features, xyz] instead of
        [xyz, features]. normalize_xyz: relative coordinates divided by the radius.
    closed: points at exactly the radius belong to the ball.
    start: first center: "first" point, "random", or "random_train": random in training and the
        first in evaluation. skip_origin: points with |p|^2 <= 1e-3 are not centers.
    bias: see `SharedLayer`.

    forward(xyz [B, N, 3], features [B, N, C] or None, lengths [B] or None, centers [B, S, 3] or
    None) returns (centers [B, S, 3], features [B, S, sum of the last widths]); for all points S is
    1 and the center is the origin. `centers` saves the sampling when they are known. Points past a
    length do not exist. A ball without points, as the references have it, holds point 0; the
    feature of all points of an empty cloud is 0. Batch norm counts every row of every ball, the
    repeats that fill a ball included, as the references do.
    """

    __constants__ = ("fused_op",)  # fuse() sets it
    all_points: Final[bool]
    radii: List[float]
    neighbors: List[int]
    fused_op: bool
    dtype: Optional[torch.dtype]

    def __init__(
        self,
        num_points: Optional[int],
        radii: Sequence[float],
        neighbors: Sequence[int],
        in_channels: int,
        channels: Sequence[Sequence[int]],
        *,
        use_xyz: bool = True,
        features_first: bool = False,
        normalize_xyz: bool = False,
        closed: bool = False,
        start: str = "first",
        skip_origin: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        scales = 1 if num_points is None else len(radii)
        width, me = int(in_channels) + (3 if use_xyz else 0), "SetAbstraction:"
        good = len(radii) == len(neighbors) == (0 if num_points is None else scales)
        rule = "radii and neighbors must have one entry per scale, none for all points"
        expect(good, f"{me} {rule}", (list(radii), list(neighbors)))
        good, rule = 0 < scales == len(channels), f"the widths of {max(scales, 1)} scales"
        expect(good, f"{me} channels must hold {rule}", [list(widths) for widths in channels])
        expect(start in STARTS, f"{me} start must be one of {STARTS}", start)
        expect(width > 0, f"{me} use_xyz must be True without features", use_xyz)
        self.num_points = 1 if num_points is None else int(num_points)
        self.all_points = num_points is None
        self.radii = [float(r) for r in radii]
        self.neighbors = [int(k) for k in neighbors]
        self.in_channels = int(in_channels)
        self.use_xyz = bool(use_xyz)
        self.features_first = bool(features_first)
        self.normalize_xyz = bool(normalize_xyz)
        self.closed = bool(closed)
        self.start = start
        self.skip_origin = bool(skip_origin)
        self.padding = -width % ALIGNED
        self.dtype = None  # of the rows; None: that of the features
        self.fused_op = False  # the layers are fused, and of a half type
        self.mlps = nn.ModuleList(
            SharedMLP(width, widths, bias=bias, pad_front=self.features_first)
            for widths in channels
        )
        self.out_channels = sum(mlp.out_channels for mlp in self.mlps)

    def forward(
        self,
        xyz: Tensor,
        features: Optional[Tensor] = None,
        lengths: Optional[Tensor] = None,
        centers: Optional[Tensor] = None,
    ) -> Tuple[Tensor, Tensor]:
        if self.all_points:
            origin = torch.zeros(xyz.size(0), 1, 3, dtype=xyz.dtype, device=xyz.device)
            return origin, self.pool_all(xyz, features, lengths)
        if centers is None:
            random = self.start == "random" or (self.start == "random_train" and self.training)
            centers = sample_centers(xyz, self.num_points, lengths, random, self.skip_origin)
        return centers, self.pool_balls(xyz, features, lengths, centers)

    def pool_balls(
        self, xyz: Tensor, features: Optional[Tensor], lengths: Optional[Tensor], centers: Tensor
    ) -> Tensor:
        """[B, S, sum of the last widths]: group, MLP and maximum of every scale."""
        if self.fused_op:
            gradient = xyz.requires_grad or (features is not None and features.requires_grad)
            if xyz.is_cuda and not (gradient and torch.is_grad_enabled()):
                return self.pool_fused(xyz, features, lengths, centers)
        grouped, _, _ = torch.ops.torchvox.query_and_group(
            xyz,
            centers,
            self.columns(xyz, features),
            self.radii,
            self.neighbors,
            use_xyz=self.use_xyz,
            normalize_xyz=self.normalize_xyz,
            features_first=self.features_first,
            closed=self.closed,
            lengths=lengths,
        )
        balls = torch.split(grouped, self.neighbors, 2)
        pooled = [maximum(mlp(balls[scale]), 2) for scale, mlp in enumerate(self.mlps)]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)

    def pool_fused(
        self, xyz: Tensor, features: Optional[Tensor], lengths: Optional[Tensor], centers: Tensor
    ) -> Tensor:
        """The same in one kernel a scale after the ball query: no row is written."""
        kind = self.dtype
        if features is not None and kind is not None:
            features = features.to(kind)
        pooled: List[Tensor] = []
        for scale, mlp in enumerate(self.mlps):
            radius = self.radii[scale]
            _, idx, count = torch.ops.torchvox.ball_query(
                xyz, centers, radius, self.neighbors[scale], closed=self.closed, lengths=lengths
            )
            weights = [layer.weight for layer in mlp.layers]
            biases = [layer.bias for layer in mlp.layers]
            divisor: Optional[float] = radius if self.normalize_xyz else None
            pooled.append(
                torch.ops.torchvox.group_mlp_max(
                    xyz,
                    centers,
                    features,
                    idx,
                    count,
                    weights,
                    biases,
                    use_xyz=self.use_xyz,
                    normalize_radius=divisor,
                    features_first=self.features_first,
                )
            )
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)

    def pool_all(
        self, xyz: Tensor, features: Optional[Tensor], lengths: Optional[Tensor]
    ) -> Tensor:
        """[B, 1, last width] over all points; ReLU leaves nothing below the 0 of absent ones."""
        rows = xyz
        columns = self.columns(xyz, features)
        if columns is not None:
            rows = columns
            if self.use_xyz:
                near = xyz.to(columns.dtype)
                rows = torch.cat([columns, near] if self.features_first else [near, columns], -1)
        for mlp in self.mlps:
            rows = mlp(rows)
        return maximum(without_padding(rows, lengths), 1)[:, None]

    def columns(self, xyz: Tensor, features: Optional[Tensor]) -> Optional[Tensor]:
        """What stands beside the coordinates of a row: the features and, on the GPU, zeros. There a
        matrix product over rows of an odd number of columns takes twice as long."""
        if features is not None and self.dtype is not None:
            features = features.to(self.dtype)
        if self.padding == 0 or not xyz.is_cuda:
            return features
        if features is None:
            kind = xyz.dtype if self.dtype is None else self.dtype
            return torch.zeros(
                xyz.size(0), xyz.size(1), self.padding, dtype=kind, device=xyz.device
            )
        return F.pad(features, [self.padding, 0] if self.features_first else [0, self.padding])

    def extra_repr(self) -> str:
        if self.all_points:
            return "all points"
        return f"num_points={self.num_points}, radii={self.radii}, neighbors={self.neighbors}"
