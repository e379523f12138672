# SPDX-License-Identifier: Apache-2.0
"""Sparse convolution: tables of neighbors, products over them, batch norm and pooling of rows.

Lists of three are in the order of the columns of `indices`, (z, y, x). K is the volume of a kernel
and k = (kz * Ky + ky) * Kx + kx an offset in it. C rows are a capacity, of which the first
num_valid[0] are in use, all of them without it; no content of the others matters.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import Sequence

__all__ = [
    "SparseConvMap",
    "SparseMap",
    "SparseNorm",
    "SparsePool",
    "sparse_batch_norm",
    "sparse_conv",
    "sparse_conv_map",
    "sparse_max_pool",
    "sparse_subm_map",
]


class SparseMap(NamedTuple):
    """Result of `sparse_subm_map`, int32.

    neighbors: [K, C], the row at each offset of each row; -1: none.
    counts: [B + 1, 4], of the call and of each sample: active rows, the same, pairs in the table,
        rows skipped.
    """

    neighbors: Tensor
    counts: Tensor


class SparseConvMap(NamedTuple):
    """Result of `sparse_conv_map`, int32, with C' rows for the outputs of all B samples.

    out_indices: [C', 4] (b, z, y, x), ascending; -1 in unused rows.
    neighbors: [K, C'], the input row at each offset of each output row; -1: none.
    inverse: [K, C], the output row that has the input row at each offset; -1: none.
    counts: [B + 1, 4], of the call and of each sample: rows kept, rows found, pairs in the table,
        inputs skipped. As num_valid it says how many output rows are in use.
    """

    out_indices: Tensor
    neighbors: Tensor
    inverse: Tensor
    counts: Tensor


class SparseNorm(NamedTuple):
    """Result of `sparse_batch_norm`.

    out: [C, N] in the dtype of the features, 0 in unused rows.
    batch_mean: [N] in the type of the sums, the mean that was used.
    batch_var: [N] likewise, the biased variance.
    """

    out: Tensor
    batch_mean: Tensor
    batch_var: Tensor


class SparsePool(NamedTuple):
    """Result of `sparse_max_pool`.

    out: [C', N] in the dtype of the features, 0 where no row is.
    arg: [C', N] int32, the input row of each value; -1: none.
    """

    out: Tensor
    arg: Tensor


def sparse_subm_map(
    indices: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: Sequence[int],
    *,
    dilation: Optional[Sequence[int]] = None,
    num_valid: Optional[Tensor] = None,
) -> SparseMap:
    """The neighbors of every row among the rows themselves, for submanifold convolutions.

    indices: [C, 4] int32 (b, z, y, x) in any order. A row in use outside the samples or the grid,
        or in the cell of a lower row, is skipped: counted, nobody's neighbor, without neighbors.
    spatial_shape: cells (z, y, x), each at most 2^24, with all samples at most 2^36.
    batch_size: samples, B.
    kernel_size: cells (z, y, x), odd, at most 125 in all, so that K * C is below 2^31.
    dilation: (z, y, x) from 1; None: ones.
    num_valid: int32 or int64, whose first element counts the rows in use; None: all.

    Returns `SparseMap`: neighbors[k, r] is the row at the cell of r +
    (offset k - (kernel_size - 1) / 2) * dilation. Not differentiable.
    Raises ValueError (shapes, limits) and TypeError (dtypes).
    B. Graham, M. Engelcke, L. van der Maaten, *3D semantic segmentation with submanifold sparse
    convolutional networks*, CVPR 2018.
    """
    return SparseMap(
        *torch.ops.torchvox.sparse_subm_map(
            indices, spatial_shape, batch_size, kernel_size, dilation=dilation, num_valid=num_valid
        )
    )


def sparse_conv_map(
    indices: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    kernel_size: Sequence[int],
    *,
    stride: Optional[Sequence[int]] = None,
    padding: Optional[Sequence[int]] = None,
    dilation: Optional[Sequence[int]] = None,
    max_rows: int = -1,
    num_valid: Optional[Tensor] = None,
) -> SparseConvMap:
    """The output cells that a kernel reaches from any row, and which rows each of them reads.

    indices, spatial_shape, batch_size, dilation, num_valid: those of `sparse_subm_map`.
    kernel_size: cells (z, y, x), at most 125 in all, even ones too.
    stride, padding: (z, y, x), from 1 and from 0; None: ones and zeros.
    max_rows: capacity of the output, C'; the cells that come last are dropped, with their pairs.
        -1: as many as C rows can reach, many more than they do.

    Returns `SparseConvMap`. Along each axis the output has the cells of torch's `conv3d`; cell o
    exists where a row lies at o * stride - padding + offset k * dilation for some k. The order of
    the rows has no influence on the order of the outputs. Not differentiable.
    Raises ValueError (shapes, limits, an output without cells) and TypeError (dtypes).
    The sparse convolution of SECOND (Yan et al., Sensors 2018).
    """
    return SparseConvMap(
        *torch.ops.torchvox.sparse_conv_map(
            indices,
            spatial_shape,
            batch_size,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            max_rows=max_rows,
            num_valid=num_valid,
        )
    )


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    neighbors: Tensor,
    *,
    bias: Optional[Tensor] = None,
    residual: Optional[Tensor] = None,
    relu: bool = False,
    inverse: Optional[Tensor] = None,
    submanifold: bool = False,
    num_valid: Optional[Tensor] = None,
) -> Tensor:
    """Bias + residual + the sum over offsets of weight times the row there, for every output row.

    features: [C, I] float16, bfloat16, float32 or float64, the dtype of all floats.
    weight: [O, Kz, Ky, Kx, I], at most 125 offsets.
    neighbors: [K, C'] int32, of `sparse_subm_map` or `sparse_conv_map`; `inverse` of the latter for
        an inverse convolution. An entry that is no row of features is absent.
    bias: [O]. residual: [C', O]. relu: values below 0 become 0. For inference the latter two: with
        a gradient they are an error.
    inverse: [K, C] int32, the other table of the map; needed for a gradient of features alone.
    submanifold: the table is one of `sparse_subm_map`, which needs no other; C' = C.
    num_valid: int32 or int64, whose first element counts the *output* rows in use; None: all.

    Returns [C', O] in the dtype of features, 0 in unused rows. The accumulator starts from the
    bias; offsets ascend, in them channels, each product added by a fused multiply-add in float32
    (float64 for float64), then the residual, ReLU, one rounding. Differentiable in features, weight
    and bias, not twice. Gradients of weight and bias add up segments of 2,048 output rows.
    Raises ValueError (shapes), TypeError (dtypes) and NotImplementedError (gradients).
    Weights as in spconv 2.
    """
    return torch.ops.torchvox.sparse_conv(
        features,
        weight,
        neighbors,
        bias=bias,
        residual=residual,
        relu=relu,
        inverse=inverse,
        submanifold=submanifold,
        num_valid=num_valid,
    )


def sparse_batch_norm(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    *,
    mean: Optional[Tensor] = None,
    var: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
) -> SparseNorm:
    """Batch norm over the rows in use.

    features: [C, N] float16, bfloat16, float32 or float64.
    weight, bias: [N] float32, float64 for float64 features, the type of the sums.
    eps: above 0, added to the variance.
    mean, var: [N] in the type of the sums, for evaluation; None, both: those of the rows in use.
    num_valid: int32 or int64, whose first element counts the rows in use; None: all.

    Returns `SparseNorm`. Sums run in float64 over a tree that depends only on the number of rows in
    use. No rows have mean 0 and variance 0, one row variance 0. Differentiable in features, weight
    and bias, not twice.
    Raises ValueError (shapes, eps), TypeError (dtypes) and NotImplementedError. S. Ioffe, C.
    Szegedy, *Batch normalization*, ICML 2015.
    """
    return SparseNorm(
        *torch.ops.torchvox.sparse_batch_norm(
            features, weight, bias, eps, mean=mean, var=var, num_valid=num_valid
        )
    )


def sparse_max_pool(
    features: Tensor,
    neighbors: Tensor,
    *,
    inverse: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
) -> SparsePool:
    """The largest value of the rows that each output row reads, channel by channel.

    features: [C, N] float16, bfloat16, float32 or float64.
    neighbors: [K, C'], inverse: [K, C] int32, of one map; inverse for a gradient alone.
    num_valid: int32 or int64, whose first element counts the *output* rows in use; None: all.

    Returns `SparsePool`. Of equal values the lowest offset wins, a NaN wins over all.
    Differentiable in features, not twice: the row that won has the gradient (in spconv every row
    that ties).
    Raises ValueError (shapes), TypeError (dtypes) and NotImplementedError (a gradient without
    inverse).
    """
    return SparsePool(
        *torch.ops.torchvox.sparse_max_pool(
            features, neighbors, inverse=inverse, num_valid=num_valid
        )
    )
