# SPDX-License-Identifier: Apache-2.0
"""Pillars to pseudo images: the fused layer of a pillar feature net, its moments, a scatter."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import PadSemantics, Sequence

__all__ = ["PillarNorm", "pillar_encode", "pillar_moments", "pillar_norm", "pillar_scatter"]


class PillarNorm(NamedTuple):
    """Result of `pillar_norm`, in the dtype of weight.

    folded_weight: [O, D], for `pillar_encode`.
    folded_bias: [O], for `pillar_encode`.
    mean: [O].
    var: [O], unbiased, as running statistics take it.
    """

    folded_weight: Tensor
    folded_bias: Tensor
    mean: Tensor
    var: Tensor


def pillar_encode(
    points: Tensor,
    indices: Tensor,
    num_points: Tensor,
    point_voxel: Tensor,
    point_slot: Tensor,
    weight: Tensor,
    bias: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_points: int,
    batch_size: int,
    *,
    center_axes: int = 3,
    legacy: bool = False,
    pad_semantics: PadSemantics = "reference",
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """Decorate points, apply a linear layer and ReLU, maximize over each pillar, lay out a canvas.

    points: [N, F] float16, bfloat16, float32 or float64, F >= 3: x, y, z in meters, other features.
    indices [V, 4], num_points [V], point_voxel [N], point_slot [N]: int32, of `voxel_map` with the
        same points, grid and max_points. The grid has one cell along z.
    weight: [O, D], bias: [O], of one floating dtype, batch norm fused in. A decorated point has
        D = F + 3 + center_axes columns: its own, its offset to the mean of the pillar's stored
        points, its offset to the pillar's center.
    max_points: slots of a pillar; -1: no limit.
    batch_size: samples of the canvas. Rows of other samples, and rows of -1, are skipped.
    center_axes: 2 (x, y) or 3 coordinates of the offset to the center.
    legacy: the offset to the center takes the place of the point's first center_axes columns.
    pad_semantics: "reference": a pillar with empty slots also maximizes over relu(bias), as the
        zero rows of padded pillars make it do; "none": only over its points.
    out_dtype: of the canvas; None: that of weight.

    Returns [B, O, ny, nx] with the strides of torch.channels_last: 0 in cells without a pillar; of
    rows with one cell, the lowest. Computed in float32, in float64 when points or weight are. A NaN
    among a channel's values wins. Differentiable in weight and bias, not twice; points that require
    a gradient are an error. Among equal values the first point has the gradient, empty slots only
    if they exceed every point.
    Raises ValueError (shapes, ranges, options), TypeError (dtypes) and NotImplementedError.
    PointPillars (Lang et al., CVPR 2019), with the conventions of OpenPCDet and mmdetection3d.
    """
    return torch.ops.torchvox.pillar_encode(
        points,
        indices,
        num_points,
        point_voxel,
        point_slot,
        weight,
        bias,
        voxel_size,
        point_cloud_range,
        max_points,
        batch_size,
        center_axes=center_axes,
        legacy=legacy,
        pad_semantics=pad_semantics,
        out_dtype=out_dtype,
    )


def pillar_moments(
    points: Tensor,
    indices: Tensor,
    num_points: Tensor,
    point_voxel: Tensor,
    point_slot: Tensor,
    voxel_size: Sequence[float],
    point_cloud_range: Sequence[float],
    max_points: int,
    *,
    center_axes: int = 3,
    legacy: bool = False,
    pad_semantics: PadSemantics = "reference",
) -> Tensor:
    """First and second moments of the decorated points: all that batch norm behind a linear layer
    needs to know of them.

    The arguments are those of `pillar_encode`, F at most 24. Returns the upper triangle, row by
    row, of the sum of g g^T over the stored points, g = (1, decorated point): [(D + 1)(D + 2) / 2]
    float64, the number of rows N, the sum of the D columns, then that of their products. With
    pad_semantics="reference" and a max_points N counts every slot of every pillar.
    Moments of several calls, or of several processes, add up.

    Sums run over a tree that depends only on the number of points. Without a gradient: inputs that
    require one are an error.
    Raises ValueError, TypeError, NotImplementedError.
    """
    return torch.ops.torchvox.pillar_moments(
        points,
        indices,
        num_points,
        point_voxel,
        point_slot,
        voxel_size,
        point_cloud_range,
        max_points,
        center_axes=center_axes,
        legacy=legacy,
        pad_semantics=pad_semantics,
    )


def pillar_norm(
    moments: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float
) -> PillarNorm:
    """Fuse the batch norm of a batch, known by its moments, into the linear layer in front of it.

    moments: [(D + 1)(D + 2) / 2] float64, of `pillar_moments` or the sum of several.
    weight: [O, D], gamma, beta: [O], of one floating dtype: the layer, scale and shift of the norm.
    eps: above 0, added to the variance.

    Returns `PillarNorm`. Computed in float64. No rows have mean 0 and variance 0, one row variance
    0. Differentiable in weight, gamma and beta, not twice, through folded_weight and folded_bias:
    with the gradients of `pillar_encode` these are the gradients of batch norm in training. Moments
    that require a gradient are an error.
    Raises ValueError (shapes, eps), TypeError (dtypes) and NotImplementedError. S. Ioffe, C.
    Szegedy, *Batch normalization*, ICML 2015.
    """
    return PillarNorm(*torch.ops.torchvox.pillar_norm(moments, weight, gamma, beta, eps))


def pillar_scatter(feats: Tensor, indices: Tensor, batch_size: int, size: Sequence[int]) -> Tensor:
    """Rows of pillar features to a canvas.

    feats: [V, C] float16, bfloat16, float32 or float64. indices: [V, 4] int32 (batch, z, y, x); z
        is ignored, rows outside the canvas, among them those of -1, are skipped.
    batch_size: samples. size: (nx, ny).

    Returns [B, C, ny, nx] in the dtype of feats with the strides of torch.channels_last, 0 in cells
    without a row; of rows with one cell, the lowest. Differentiable in feats, not twice: a gather.
    Raises ValueError (shapes, ranges) and TypeError (dtypes).
    """
    return torch.ops.torchvox.pillar_scatter(feats, indices, batch_size, size)
