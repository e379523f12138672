# SPDX-License-Identifier: Apache-2.0
"""Sparse convolution: tables of neighbors, products over them, batch norm and pooling of rows.

Lists of three are (z, y, x), as the columns of `indices`. K is the volume of a kernel. C rows are a
capacity, of which the first num_valid[0] are in use, all of them without it; no content of the
others matters. docs/sparse.md says exactly what each op computes.
"""

from typing import NamedTuple, Optional

import torch
from torch import Tensor

from torchvox.ops.annotations import Sequence

__all__ = [
    "SparseConvMap", "SparseMap", "SparseNorm", "SparsePool", "sparse_batch_norm", "sparse_conv",
    "sparse_conv_map", "sparse_max_pool", "sparse_schedule", "sparse_subm_map",
]  # fmt: skip


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
    """`SparseMap`: the neighbors of every row among the rows themselves, for submanifold
    convolutions (Graham et al., CVPR 2018).

    indices: [C, 4] int32 (b, z, y, x) in any order. A row in use outside the samples or the grid,
        or in the cell of a lower row, is skipped: counted, nobody's neighbor, without neighbors.
    spatial_shape: cells, each at most 2^24, with all samples at most 2^36. batch_size: samples, B.
    kernel_size: cells, odd, at most 125 in all, K * C below 2^31. dilation: from 1; None: ones.
    num_valid: int32 or int64, whose first element counts the rows in use; None: all.

    Not differentiable. Raises ValueError (shapes, limits) and TypeError (dtypes).
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
    """`SparseConvMap`: the output cells that a kernel reaches from any row, and which rows each of
    them reads. The grid of the output is that of torch's `conv3d`.

    kernel_size, stride, padding: of three each, kernels even too; None: ones and zeros.
    max_rows: capacity of the output, C'; the cells that come last are dropped, with their pairs.
        -1: as many as C rows can reach, many more than they do.
    The others: those of `sparse_subm_map`, and its errors.

    Not differentiable. Raises ValueError where the output has no cells, too.
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


def sparse_schedule(neighbors: Tensor, kernel_size: Sequence[int]) -> Tensor:
    """[S] int32: in which order, and in what tiles, a GPU takes the rows of a table. It is for
    `sparse_conv`, spares it work in every call and changes no value; S follows from the table's
    shape.

    neighbors: [K, C'] int32, either table of a map. kernel_size: of the map, K offsets.

    Not differentiable. Raises ValueError (shapes), TypeError (dtypes).
    """
    return torch.ops.torchvox.sparse_schedule(neighbors, kernel_size)


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
    schedule: Optional[Tensor] = None,
    inverse_schedule: Optional[Tensor] = None,
    num_valid: Optional[Tensor] = None,
) -> Tensor:
    """[C', O]: bias + residual + the sum over offsets of weight times the row there, in the dtype
    of features, 0 in unused rows.

    features: [C, I] float16, bfloat16, float32 or float64, the dtype of all floats.
    weight: [O, Kz, Ky, Kx, I], as of spconv 2, at most 125 offsets.
    neighbors: [K, C'] int32, of `sparse_subm_map` or `sparse_conv_map`; `inverse` of the latter for
        an inverse convolution. An entry that is no row of features is absent.
    bias: [O]. residual: [C', O]. relu: values below 0 become 0. For inference the latter two: with
        a gradient they are an error.
    inverse: [K, C] int32, the other table of the map; needed for a gradient of features alone.
    submanifold: the table is one of `sparse_subm_map`, which needs no other; C' = C.
    schedule, inverse_schedule: `sparse_schedule` of neighbors and of inverse, for speed on a GPU;
        those of other tables give wrong values.
    num_valid: as everywhere, of the *output* rows.

    Differentiable in features, weight and bias, not twice. Raises ValueError (shapes), TypeError
    (dtypes) and NotImplementedError (gradients).
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
        schedule=schedule,
        inverse_schedule=inverse_schedule,
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
    """`SparseNorm`: batch norm over the rows in use.

    features: [C, N] float16, bfloat16, float32 or float64.
    weight, bias: [N] float32, float64 for float64 features, the type of the sums.
    eps: above 0, added to the variance.
    mean, var: [N] in the type of the sums, for evaluation; None, both: those of the rows in use,
        0 where there are none.

    Differentiable in features, weight and bias, not twice. Raises ValueError (shapes, eps),
    TypeError (dtypes) and NotImplementedError.
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
    """`SparsePool`: the largest value of the rows that each output row reads, channel by channel. A
    NaN wins over all, of equal values the lowest offset.

    features: [C, N] float16, bfloat16, float32 or float64.
    neighbors: [K, C'], inverse: [K, C] int32, of one map; inverse for a gradient alone.
    num_valid: as everywhere, of the *output* rows.

    Differentiable in features, not twice. Raises ValueError (shapes), TypeError (dtypes) and
    NotImplementedError (a gradient without inverse).
    """
    return SparsePool(
        *torch.ops.torchvox.sparse_max_pool(
            features, neighbors, inverse=inverse, num_valid=num_valid
        )
    )
