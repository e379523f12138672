# SPDX-License-Identifier: Apache-2.0
"""Neighbors of queries, within a radius or the nearest, and groups of their features."""

from typing import Mapping, NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import Fill, Sequence
from torchvox.ops.conventions import Options, options_of

__all__ = [
    "BallGroups",
    "BallNeighbors",
    "Neighbors",
    "ball_query",
    "group_mlp_max",
    "knn",
    "query_and_group",
    "three_nn",
]


_PYTORCH3D: Options = {"dist_order": "loop", "fill": "pad", "core_dist2": -1.0}
BALL_QUERY_CONVENTIONS: Mapping[str, Options] = {
    "torchvox": {},
    "mmcv": {},
    "pointnet2": {"core_dist2": -1.0},  # Pointnet2_PyTorch
    "openpcdet": {"core_dist2": -1.0},
    "pointcept": {"core_dist2": 1e-5, "fill": "pad"},
    "pytorch3d": _PYTORCH3D,
    "torch_cluster": {**_PYTORCH3D, "radius2": lambda radius: radius * radius},  # in double
    "pyg_lib": {**_PYTORCH3D, "radius2": lambda radius: radius * radius},
}
GROUP_CONVENTIONS: Mapping[str, Options] = {
    "torchvox": {},
    "mmcv": {},
    "pointnet2": {},
    "openpcdet": {},
    "pytorch3d": {"dist_order": "loop"},
    "yanx27": {"closed": True},  # Pointnet_Pointnet2_pytorch
}
KNN_CONVENTIONS: Mapping[str, Options] = {
    "torchvox": {},
    "mmcv": {},
    "pointnet2": {},
    "pytorch3d": {"dist_order": "loop"},
    "torch_cluster": {"dist_order": "loop"},
}


class BallNeighbors(NamedTuple):
    """Result of `ball_query`; packed, [U, k] and [U].

    dist2: [B, M, k] float32, float64 for float64 points: squared distances; 0 past the count.
    idx: [B, M, k] int32, ascending; past the count as the convention says.
    count: [B, M] int32, hits kept.
    """

    dist2: Tensor
    idx: Tensor
    count: Tensor


def ball_query(
    points: Tensor,
    query: Tensor,
    radius: float,
    k: int,
    *,
    min_radius: float = 0.0,
    fill: Optional[Fill] = None,
    convention: str = "torchvox",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    local_index: bool = False,
) -> BallNeighbors:
    """The first k points, by index, in a ball around every query. Not the nearest: see `knn`.

    points: [B, N, D] float16, bfloat16, float32 or float64, D >= 1, N < 2^31; any strides. Halves
        are widened first. query: [B, M, D] of the same dtype. A point that is not finite is
        not a neighbor; a query that is not finite has none. With offsets, packed clouds: points
        [T, D] and query [U, D], T and U < 2^31.
    radius: a point at squared distance d is a hit when d < radius * radius, rounded as the distance
        is. min_radius: hits have d >= min_radius * min_radius too; points at distance 0 are hits
        all the same.
    k: neighbors per query. fill: what follows the hits of a row: "first" repeats the first hit, 0
        where there is none; "pad" puts -1. None: as the convention says.
    convention: a library whose neighbors these are, bit for bit: a name of
        BALL_QUERY_CONVENTIONS, "mmcv", "pointnet2", "openpcdet", "pointcept", "pytorch3d",
        "torch_cluster" or "pyg_lib"; "torchvox" fills with "first".
    lengths, query_lengths: [B] int32 or int64, points and queries of each cloud that exist, clamped
        to N and M. None: all.
    batch_offsets, query_batch_offsets: [B + 1] int32 or int64, non-decreasing, on the points'
        device: cloud b owns points batch_offsets[b] to batch_offsets[b + 1] and queries
        query_batch_offsets[b] to query_batch_offsets[b + 1]. Clamped to the sizes, never read on
        the host. A query outside query_batch_offsets has no neighbors.
    local_index: idx counts from the first point of its cloud, as it always does of padded clouds,
        instead of row 0 of points. With "first", an empty ball names row 0 of its cloud, or without
        local_index -1 for a cloud without points.

    Returns `BallNeighbors`. Rows past query_lengths are those of an empty ball. dist2 is
    differentiable in points and query.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]])
    >>> torchvox.ball_query(points, query=points[:, :1], radius=2.0, k=2).idx
    tensor([[[0, 1]]], dtype=torch.int32)
    """
    options = {**options_of("ball_query", BALL_QUERY_CONVENTIONS, convention)}
    if "radius2" in options:
        options["radius2"] = options["radius2"](radius)
    if fill is not None:
        options["fill"] = fill
    dist2, idx, count = torch.ops.torchvox.ball_query(
        points,
        query,
        radius,
        k,
        min_radius=min_radius,
        lengths=lengths,
        query_lengths=query_lengths,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
        **options,
    )
    return BallNeighbors(dist2, idx, count)


class BallGroups(NamedTuple):
    """Result of `query_and_group`, K being the sum of ks.

    grouped: [B, M, K, D + C], relative coordinates and features.
    idx: [B, M, K] int32.
    count: [B, M, radii] int32, hits of each ball.
    """

    grouped: Tensor
    idx: Tensor
    count: Tensor


def query_and_group(
    points: Tensor,
    query: Tensor,
    features: Optional[Tensor],
    radii: Sequence[float],
    ks: Sequence[int],
    *,
    use_xyz: bool = True,
    normalize_xyz: bool = False,
    features_first: bool = False,
    convention: str = "torchvox",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> BallGroups:
    """The neighborhoods of a PointNet++ level: ball queries, relative coordinates and features.

    points: [B, N, D], query: [B, M, D] as in `ball_query`. features: [B, N, C] float16, bfloat16,
        float32 or float64, or None.
    radii, ks: one ball and its number of neighbors each, at most 8; their slots follow one
        another. Short balls repeat their first hit; an empty ball holds point 0.
    use_xyz: a slot begins with point less query, rounded to the dtype of points; without, it holds
        only features. normalize_xyz: divided by the radius. features_first: coordinates last.
    convention: whose balls these are, a name of GROUP_CONVENTIONS: "mmcv", "pointnet2",
        "openpcdet", "pytorch3d", or "yanx27", which takes points at exactly the radius too.
    lengths, query_lengths: as in `ball_query`.

    Returns `BallGroups`, grouped in the dtype of features, else of points, with the bits of
    `ball_query`, `group_points` and a subtraction.
    grouped is differentiable in points, query and features, by sums in a fixed order without
    atomics: the same bits in every run and on every device. No host synchronization.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).
    """
    grouped, idx, count = torch.ops.torchvox.query_and_group(
        points,
        query,
        features,
        radii,
        ks,
        use_xyz=use_xyz,
        normalize_xyz=normalize_xyz,
        features_first=features_first,
        lengths=lengths,
        query_lengths=query_lengths,
        **options_of("query_and_group", GROUP_CONVENTIONS, convention),
    )
    return BallGroups(grouped, idx, count)


def group_mlp_max(
    points: Tensor,
    query: Tensor,
    features: Optional[Tensor],
    idx: Tensor,
    count: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    use_xyz: bool = True,
    normalize_radius: Optional[float] = None,
    features_first: bool = False,
) -> Tensor:
    """Gather the neighbors of a ball query, apply a small MLP and take the maximum of each ball.

    What a set abstraction computes from `ball_query` and `query_and_group`, linear layers with
    their batch norm fused in, ReLU and a maximum; nothing of size B * M * k is written, and only
    the hits of a ball are computed, not what fills it up.

    points: [B, N, D], query: [B, M, D] as in `ball_query`. features: [B, N, C] of the dtype of
        weights, or None.
    idx: [B, M, k] int32, count: [B, M] int32 of `ball_query`, or one ball of `query_and_group`. The
        first count slots are read; of an empty ball the first. An index outside [0, N) stands for
        zeros, coordinates included.
    weights: 1 to 8 tensors [C_out, C_in] float16, bfloat16, float32 or float64; biases: [C_out]
        each. A layer is max(weight x + bias, 0); x of the first is (point - query, features).
    use_xyz, features_first: which of the two, and in what order, as in `query_and_group`.
    normalize_radius: divides the relative coordinates.

    Returns [B, M, C_out of the last layer] in the dtype of weights; 0 for k = 0. Layers round to
    that dtype; sums are float32, float64 for float64. Deterministic: the same bits each run.
    float32 and float64 have the bits of the CPU; float16 and bfloat16 run on tensor cores from
    compute capability 8.0 on and differ from the CPU by rounding. For inference: raises
    NotImplementedError when an input requires a gradient (outside torch.no_grad()).
    Raises ValueError (shapes, ranges) and TypeError (dtypes).
    """
    return torch.ops.torchvox.group_mlp_max(
        points,
        query,
        features,
        idx,
        count,
        weights,
        biases,
        use_xyz=use_xyz,
        normalize_radius=normalize_radius,
        features_first=features_first,
    )


class Neighbors(NamedTuple):
    """Result of `knn` and `three_nn`, the nearest first; packed, [U, k].

    dist2: [B, M, k] float32, float64 for float64 points: squared distances; +inf without a
        neighbor.
    idx: [B, M, k] int32; -1 without a neighbor.
    """

    dist2: Tensor
    idx: Tensor


def knn(
    points: Tensor,
    query: Tensor,
    k: int,
    *,
    norm: int = 2,
    convention: str = "torchvox",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    local_index: bool = False,
) -> Neighbors:
    """The k points of its cloud that are nearest to each query, nearest first.

    points, query, lengths, query_lengths, batch_offsets, query_batch_offsets, local_index: as in
        `ball_query`.
    k: neighbors per query, any number; more than N is allowed.
    norm: 2, squared distances; 1, sums of absolute differences.
    convention: a library whose distances these are, bit for bit: a name of KNN_CONVENTIONS, "mmcv",
        "pointnet2", "pytorch3d" or "torch_cluster".

    Returns `Neighbors` in ascending order of (distance, index): of equally distant points the lower
    index comes first, also at the k-th place. dist2 is differentiable in points and query, idx is
    not. For D <= 3 in up to float32 a query visits a small part of a large cloud; otherwise all of
    it.
    Raises ValueError (shapes, ranges, options) and TypeError (dtypes).

    >>> points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]])
    >>> torchvox.knn(points, query=points[:, 2:], k=2)
    Neighbors(dist2=tensor([[[0., 4.]]]), idx=tensor([[[2, 1]]], dtype=torch.int32))
    """
    dist2, idx = torch.ops.torchvox.knn(
        points,
        query,
        k,
        norm=norm,
        lengths=lengths,
        query_lengths=query_lengths,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
        **options_of("knn", KNN_CONVENTIONS, convention),
    )
    return Neighbors(dist2, idx)


def three_nn(
    query: Tensor,
    points: Tensor,
    *,
    convention: str = "torchvox",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    local_index: bool = False,
) -> Neighbors:
    """The three nearest points of every query: `knn` with k = 3, the queries first.

    query: [B, M, D] or [U, D]. points: [B, N, D] or [T, D]. The other arguments are those of `knn`.

    Returns `Neighbors`. Distances are squared; the PointNet++ kernels give their roots.
    """
    dist2, idx = torch.ops.torchvox.three_nn(
        query,
        points,
        lengths=lengths,
        query_lengths=query_lengths,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
        **options_of("three_nn", KNN_CONVENTIONS, convention),
    )
    return Neighbors(dist2, idx)
