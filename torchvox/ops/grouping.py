# SPDX-License-Identifier: Apache-2.0
"""Features of neighbors: gathering, interpolation, reduction."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from torchvox.ops.annotations import Reduction, Weight

__all__ = [
    "gather_points",
    "group_points",
    "interpolate_features",
    "interpolation_weights",
    "neighbor_rows",
    "segment_reduce",
    "three_interpolate",
]


def group_points(
    features: Tensor,
    idx: Tensor,
    *,
    channels_first: bool = False,
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    local_index: bool = False,
) -> Tensor:
    """The features of neighbors: out[b, m, j] = features[b, idx[b, m, j]].

    features: [B, N, C] float16, bfloat16, float32 or float64; [B, C, N] with channels_first. With
        offsets, packed clouds: [T, C], T < 2^31.
    idx: [B, M, k] int32 or int64, such as ball_query and knn give; packed, [U, k]. An index outside
        its cloud, such as -1, gives a zero row and passes no gradient on.
    batch_offsets, query_batch_offsets: packed clouds as in `ball_query`, whose points are the rows
        of the features, whose queries those of idx. Not with channels_first.
    local_index: idx counts from the first row of its cloud, as it always does of padded clouds,
        instead of row 0 of the features.

    Returns [B, M, k, C], or [B, C, M, k] with channels_first, in the dtype of the features; packed,
    [U, k, C]. Differentiable in features, to any order. The gradient of a point is the sum over the
    entries of idx that name it, in their order, without atomics. The gradient needs N and M * k
    below 2^31.
    Raises ValueError (shapes) and TypeError (dtypes).

    >>> features = torch.tensor([[[1.0], [2.0], [4.0]]])
    >>> torchvox.group_points(features, torch.tensor([[[2, 0], [1, -1]]])).squeeze(-1)
    tensor([[[4., 1.],
             [2., 0.]]])
    """
    return torch.ops.torchvox.group_points(
        features,
        idx,
        channels_first=channels_first,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
    )


def neighbor_rows(
    idx: Tensor,
    num_points: int,
    *,
    count: Optional[Tensor] = None,
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    local_index: bool = False,
) -> Tensor:
    """The row that each entry of `idx` names, -1 where it names none.

    idx: [B, M, k], or [U, k] of packed clouds, int32 or int64. num_points: rows of the features: N,
        or T of packed clouds. < 2^31.
    count: [B, M] or [U] int32 or int64, such as ball_query gives: entries from there on name no
        row. So the repeats that fill a ball become -1, which every gather turns into zeros.
    batch_offsets, query_batch_offsets, local_index: packed clouds, as in `group_points`; the rows
        are those of the packed features, whichever indices come in.

    Returns int32 in the shape of idx: the index, or -1 when it is outside [0, num_points), outside
    its cloud, or past its count. Not differentiable.
    Raises ValueError (shapes) and TypeError (dtypes).
    """
    return torch.ops.torchvox.neighbor_rows(
        idx,
        num_points,
        count=count,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
    )


def three_interpolate(
    features: Tensor,
    idx: Tensor,
    weight: Tensor,
    *,
    channels_first: bool = False,
    batch_offsets: Optional[Tensor] = None,
    query_batch_offsets: Optional[Tensor] = None,
    local_index: bool = False,
) -> Tensor:
    """Weighted sums of the features of three neighbors.

    features: [B, N, C] float16, bfloat16, float32 or float64; [B, C, N] with channels_first;
        packed, [T, C].
    idx: [B, M, 3] int32 or int64; an index outside its cloud reads zeros and passes no gradient on.
    weight: [B, M, 3] float32, or the dtype of the features. Packed, idx and weight are [U, 3].
    batch_offsets, query_batch_offsets, local_index: packed clouds, as in `group_points`.

    Returns [B, M, C], or [B, C, M], packed [U, C], in the dtype of the features: fma(w2, f2,
    fma(w0, f0, w1 * f1)), in float32 for halves. Differentiable once, in features and weight,
    without atomics. The gradient of the features needs N and 3 * M below 2^31.
    Raises ValueError (shapes) and TypeError (dtypes).

    >>> features, idx = torch.tensor([[[1.0], [2.0], [4.0]]]), torch.tensor([[[0, 1, 2]]])
    >>> torchvox.three_interpolate(features, idx, torch.tensor([[[0.5, 0.25, 0.25]]]))
    tensor([[[2.]]])
    """
    return torch.ops.torchvox.three_interpolate(
        features,
        idx,
        weight,
        channels_first=channels_first,
        batch_offsets=batch_offsets,
        query_batch_offsets=query_batch_offsets,
        local_index=local_index,
    )


def interpolation_weights(dist2: Tensor, *, eps: float = 1e-8, weight: Weight = "dist") -> Tensor:
    """Weights of the three nearest points, from their squared distances.

    dist2: [.., 3] float32 or float64, such as three_nn gives.
    weight: "dist": 1 / (sqrt(dist2) + eps); "dist2": 1 / (dist2 + eps). eps > 0.

    Returns [.., 3] in the dtype of dist2: these, divided by their sum in index order. A point that
    is not there (dist2 infinite) weighs 0; where none is, all weigh 0. Differentiable once; the
    gradient of the root at 0 is taken as 0.
    Raises ValueError (shapes, options) and TypeError (dtype).
    """
    return torch.ops.torchvox.interpolation_weights(dist2, eps=eps, weight=weight)


def interpolate_features(
    query: Tensor,
    points: Tensor,
    features: Tensor,
    *,
    eps: float = 1e-8,
    weight: Weight = "dist",
    lengths: Optional[Tensor] = None,
    query_lengths: Optional[Tensor] = None,
) -> Tensor:
    """Features of the points, interpolated to the queries from the three nearest points of each:
    `three_nn`, `interpolation_weights` and `three_interpolate` in one call.

    query: [B, M, D], points: [B, N, D], of one dtype, as `three_nn` takes them. features: [B, N, C]
        of any floating dtype.
    eps, weight: as in `interpolation_weights`.
    lengths, query_lengths: [B] int32 or int64, points and queries of each cloud that exist.

    Returns [B, M, C] in the dtype of the features. Fewer than three points share the weight; a
    query without any, or past its length, gets zeros. Weights are made in float32, float64 for
    float64 points, and rounded to float32 unless the features are float64. Differentiable once, in
    features, and through the weights in query and points. The bits are those of the three ops one
    after another, on every device.
    Raises ValueError (shapes, options) and TypeError (dtypes).
    """
    return torch.ops.torchvox.interpolate_features(
        query,
        points,
        features,
        eps=eps,
        weight=weight,
        lengths=lengths,
        query_lengths=query_lengths,
    )


def gather_points(features: Tensor, idx: Tensor, *, channels_first: bool = False) -> Tensor:
    """The rows of `features` that `idx` names: out[b, m] = features[b, idx[b, m]].

    features: [B, N, C] float16, bfloat16, float32 or float64; [B, C, N] with channels_first.
    idx: [B, M] int32 or int64. An index outside [0, N), such as the -1 that pads a sample, gives a
        zero row and passes no gradient on.

    Returns [B, M, C], or [B, C, M] with channels_first, in the dtype of the features.
    Differentiable in features, to any order. The gradient of a point is the sum over the samples
    that took it, in their order, without atomics. The gradient needs B * N and B * M below 2^31.
    Raises ValueError (shapes) and TypeError (dtypes).

    >>> features = torch.tensor([[[1.0], [2.0], [4.0]]])
    >>> torchvox.gather_points(features, torch.tensor([[2, 0]])).squeeze(-1)
    tensor([[4., 1.]])
    """
    return torch.ops.torchvox.gather_points(features, idx, channels_first=channels_first)


def segment_reduce(
    src: Tensor, offsets: Tensor, reduce: Reduction = "sum", *, index: Optional[Tensor] = None
) -> Tuple[Tensor, Tensor]:
    """Reduces rows over segments in CSR form: segment r has the rows offsets[r] to offsets[r + 1]
    of `src`, or those that index[offsets[r]:offsets[r + 1]] names.

    src: [N, ..] float16, bfloat16, float32 or float64.
    offsets: [R + 1] int32 or int64, clamped to the rows (entries of index), never read on the host.
        Segments may overlap or leave rows out; one that would end before it begins is empty.
    reduce: "sum", "mean", "max" or "min". Sums run in the order of the entries as a base-32
        cascade, in float32 (float64 for float64), rounded once. max and min propagate NaN as
        torch.amax does; among equals, and -0.0 equals +0.0, the lowest row wins.
    index: [E] int32 or int64: rows by entry, repeats allowed. An entry outside [0, N) is left out
        and does not count in a mean: a padded list [M, k] with -1 is
        `index=idx.flatten(), offsets=k * torch.arange(M + 1)`.

    Returns (out [R, ..] in the dtype of src, arg): arg is [R, ..] int32, the row of src that won,
    for max and min, and [0] for sum and mean. A segment without rows is 0, its arg -1.
    Differentiable once in src, without atomics; max and min pass their gradient only to `arg`.
    Without index each row takes that of one segment, found by a search of `offsets`: they should
    ascend. N, E < 2^31 - 1; the gradient of max and min with index needs N * C and R * C below
    2^31.
    Raises ValueError (shapes, options) and TypeError (dtypes).

    >>> torchvox.segment_reduce(torch.tensor([1.0, 2, 4]), torch.tensor([0, 2, 3]), "mean")[0]
    tensor([1.5000, 4.0000])
    """
    if not torch.is_tensor(src) or src.is_nested or src.dim() in (0, 2):
        return torch.ops.torchvox.segment_reduce(src, offsets, reduce, index=index)
    rows = src.flatten(1) if src.dim() > 2 else src.unsqueeze(-1)
    out, arg = torch.ops.torchvox.segment_reduce(rows, offsets, reduce, index=index)
    shape = list(src.shape)
    shape[0] = out.size(0)
    return out.reshape(shape), arg.reshape(shape) if arg.dim() == 2 else arg
