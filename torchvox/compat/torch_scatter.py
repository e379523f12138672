# SPDX-License-Identifier: Apache-2.0
"""torch_scatter 2.1: `scatter`, `segment_csr`, `segment_coo`, their variants, gathers, softmaxes.

Sums are deterministic, in the order of the rows, in float32 for half precision. Everything scripts.
Where torch_scatter reads the device (`index.max()` without `dim_size`, the end of `gather_csr`), so
do these.
"""

from typing import Optional

import torch
from torch import Tensor

import torchvox.ops  # noqa: F401 (registers them)
from torchvox.compat._errors import refuse, stubs
from torchvox.compat._shared import check_index

__all__ = [
    "gather_coo", "gather_csr", "scatter", "scatter_add", "scatter_log_softmax",
    "scatter_logsumexp", "scatter_max", "scatter_mean", "scatter_min", "scatter_softmax",
    "scatter_std", "scatter_sum", "segment_add_coo", "segment_add_csr", "segment_coo",
    "segment_csr", "segment_max_coo", "segment_max_csr", "segment_mean_coo", "segment_mean_csr",
    "segment_min_coo", "segment_min_csr", "segment_sum_coo", "segment_sum_csr",
]  # fmt: skip
NOT_COVERED = "scatter_mul"
PARTLY = {
    "gather_csr segment_csr segment_add_csr segment_sum_csr segment_mean_csr segment_min_csr "
    "segment_max_csr": "indptr of several lines",
    "scatter": "reduce='mul'; out with mean, max or min",
    "segment_coo": "out with mean, max or min",
    "scatter_logsumexp scatter_mean scatter_min scatter_max segment_mean_coo segment_min_coo "
    "segment_max_coo": "out",
}
DIFFERS = {
    "gather_coo": "An index outside is an IndexError on the CPU, and a row of zeros on CUDA.",
    "scatter": "An index outside of the groups is an IndexError on the CPU; on CUDA its row is "
    "left out, where the peer stops with a device assertion or writes elsewhere.",
    "segment_coo": "As scatter.",
    "segment_csr": "A pointer outside of the rows is an IndexError on the CPU, clamped on CUDA.",
    "scatter_mean": "Halves are added in float32 and rounded once; there is no second derivative.",
    "scatter_min scatter_max": "NaN and infinities count; of equal values the first row wins. "
    "Integers are compared as float64, exact below 2^53.",
    "scatter_logsumexp scatter_softmax": "A group of -inf alone is NaN; the subtracted maximum has "
    "no gradient.",
    "scatter_sum": "Halves are added in float32 and rounded once; there is no second derivative. "
    "Integers are added as float64, exact below 2^53.",
}
__getattr__ = stubs("torch_scatter", NOT_COVERED)
MaybeTensor = Optional[Tensor]
MaybeInt = Optional[int]


def _refuse(what: str):
    if torch.jit.is_scripting():
        raise NotImplementedError(what + " is not covered by torchvox.compat")
    else:
        refuse(what)


def _line(index, src, dim: int):
    """The group of each row of src, and 1. If each column has its own index: the group of each
    entry, numbered over all groups of all columns, and the number of columns."""
    while 1 < index.dim() < src.dim():
        index = index.unsqueeze(-1)
    if index.numel() == 0:  # no rows, or no columns
        return index.new_zeros(index.size(dim)), 1
    if index.dim() < 2 or index.numel() == index.size(dim):
        return index.flatten(), 1
    shape = list(src.shape)
    shape[dim] = index.size(dim)
    rows = index.expand(shape).movedim(dim, 0).flatten(1).long()
    columns = rows.size(1)
    return (rows * columns + torch.arange(columns, device=rows.device)).flatten(), columns


def _offsets(name: str, indptr):
    if indptr.numel() != indptr.size(-1):
        _refuse(name + ": an indptr of several lines")
    return indptr.flatten()


def _columns(src, dim: int):
    """src as [N, C] with dim first; integers as float64, in which sums below 2^53 are exact."""
    rows = (src if src.is_floating_point() else src.double()).movedim(dim, 0)
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _shaped(rows, src, dim: int):
    """Rows [R, C] in the shape of src, R along dim."""
    shape = list(src.movedim(dim, 0).shape)
    shape[0] = rows.size(0)
    return rows.reshape(shape).movedim(0, dim).contiguous()


def _results(reduced, arg, src, dim: int, add_to: MaybeTensor = None):
    """The results as torch_scatter returns them: -1 of `arg` becomes the size of dim."""
    result = _shaped(reduced.to(src.dtype), src, dim)
    if arg.dim() == 2:
        arg = _shaped(arg.long().masked_fill(arg < 0, src.size(dim)), src, dim)
    return result if add_to is None else add_to.add_(result), arg


def _groups(name: str, index, dim: int, out: MaybeTensor, size: MaybeInt, reduce: str):
    """The number of groups."""
    if reduce == "mul":
        _refuse(name + ": reduce='mul'")
    if out is not None:
        if reduce != "sum":
            _refuse(name + ": out with " + reduce)
        size = out.size(dim)
    elif size is None:
        size = int(index.max()) + 1 if index.numel() > 0 else 0
    check_index(name, index, 0, size)
    return size


def _scatter(
    src, index, dim: int, out: MaybeTensor, dim_size: MaybeInt, reduce: str, floor: bool = True
):
    size = _groups("scatter", index, dim, out, dim_size, reduce)
    line, lines = _line(index, src, dim)
    rows = _columns(src, dim)
    if lines > 1:
        if size * lines >= 2**31:
            raise ValueError(
                "scatter: dim_size x columns must be below 2^31 where columns have an index of "
                "their own, got " + str(size * lines)
            )
        rows = rows.reshape(-1, 1)
    reduced, arg = torch.ops.torchvox.voxel_scatter(
        rows, line.clamp(-1, 2**31 - 1).int(), size * lines, reduce
    )
    if lines > 1:
        reduced, arg = reduced.view(size, lines), torch.div(arg, lines, rounding_mode="floor")
        arg = arg.view(size, lines) if arg.dim() == 2 else arg
    if floor and not src.is_floating_point():
        reduced = reduced.floor()  # of a mean; segments round it to zero, as the peer's do
    return _results(reduced, arg, src, dim, out)


def _gather(src, index, dim: int, out: MaybeTensor = None):
    """src by an index along dim; its gradient is deterministic."""
    line, lines = _line(index, src, dim)
    rows = _columns(src, dim)
    columns, count = rows.size(1), line.size(0) // lines
    rows = rows.reshape(rows.size(0) * lines, columns // lines)
    gathered = torch.ops.torchvox.gather_points(rows[None], line[None]).view(count, columns)
    result = _shaped(gathered.to(src.dtype), src, dim)
    return result if out is None else out.copy_(result)


def scatter_sum(src, index, dim: int = -1, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _scatter(src, index, dim, out, dim_size, "sum")[0]


scatter_add = scatter_sum


def scatter_mean(src, index, dim: int = -1, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _scatter(src, index, dim, out, dim_size, "mean")[0]


def scatter_min(src, index, dim: int = -1, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _scatter(src, index, dim, out, dim_size, "min")


def scatter_max(src, index, dim: int = -1, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _scatter(src, index, dim, out, dim_size, "max")


def scatter(
    src,
    index,
    dim: int = -1,
    out: MaybeTensor = None,
    dim_size: MaybeInt = None,
    reduce: str = "sum",
):
    return _scatter(src, index, dim, out, dim_size, "sum" if reduce == "add" else reduce)[0]


def _segments(src, indptr, out: MaybeTensor, reduce: str):
    dim = indptr.dim() - 1
    line = _offsets("segment_csr", indptr)
    check_index("segment_csr: indptr", line, 0, src.size(dim) + 1)
    reduced, arg = torch.ops.torchvox.segment_reduce(_columns(src, dim), line, reduce)
    result, arg = _results(reduced, arg, src, dim)
    return result if out is None else out.copy_(result), arg


def segment_sum_csr(src, indptr, out: MaybeTensor = None):
    return _segments(src, indptr, out, "sum")[0]


segment_add_csr = segment_sum_csr


def segment_mean_csr(src, indptr, out: MaybeTensor = None):
    return _segments(src, indptr, out, "mean")[0]


def segment_min_csr(src, indptr, out: MaybeTensor = None):
    return _segments(src, indptr, out, "min")


def segment_max_csr(src, indptr, out: MaybeTensor = None):
    return _segments(src, indptr, out, "max")


def segment_csr(src, indptr, out: MaybeTensor = None, reduce: str = "sum"):
    return _segments(src, indptr, out, "sum" if reduce == "add" else reduce)[0]


def gather_csr(src, indptr, out: MaybeTensor = None):
    dim = indptr.dim() - 1
    line = _offsets("gather_csr", indptr)
    if src.size(dim) != line.numel() - 1:
        raise ValueError("gather_csr: indptr must have one entry more than src has rows")
    size: MaybeInt = None if out is None else out.size(dim)
    return _gather(src, torch.repeat_interleave(line.diff(), output_size=size), dim, out)


def _sorted(src, index, out: MaybeTensor, dim_size: MaybeInt, reduce: str):
    dim = index.dim() - 1
    if index.numel() != index.size(dim):
        return _scatter(src, index, dim, out, dim_size, reduce, False)
    line = index.flatten()
    groups = _groups("segment_coo", line, dim, out, dim_size, reduce)
    starts = torch.arange(groups + 1, device=line.device, dtype=line.dtype)
    offsets = torch.searchsorted(line, starts)
    reduced, arg = torch.ops.torchvox.segment_reduce(_columns(src, dim), offsets, reduce)
    return _results(reduced, arg, src, dim, out)


def segment_sum_coo(src, index, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _sorted(src, index, out, dim_size, "sum")[0]


segment_add_coo = segment_sum_coo


def segment_mean_coo(src, index, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _sorted(src, index, out, dim_size, "mean")[0]


def segment_min_coo(src, index, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _sorted(src, index, out, dim_size, "min")


def segment_max_coo(src, index, out: MaybeTensor = None, dim_size: MaybeInt = None):
    return _sorted(src, index, out, dim_size, "max")


def segment_coo(
    src, index, out: MaybeTensor = None, dim_size: MaybeInt = None, reduce: str = "sum"
):
    return _sorted(src, index, out, dim_size, "sum" if reduce == "add" else reduce)[0]


def gather_coo(src, index, out: MaybeTensor = None):
    check_index("gather_coo", index, 0, src.size(index.dim() - 1))
    return _gather(src, index, index.dim() - 1, out)


def _less_maximum(src, index, dim: int, dim_size: MaybeInt):
    if not src.is_floating_point():
        raise ValueError("scatter_softmax: src must be floating point, got " + str(src.dtype))
    largest = scatter_max(src.detach(), index, dim, None, dim_size)[0]
    return src - _gather(largest, index, dim)


def scatter_softmax(src, index, dim: int = -1, dim_size: MaybeInt = None):
    weight = _less_maximum(src, index, dim, dim_size).exp()
    total = scatter_sum(weight, index, dim, None, dim_size)
    return weight / _gather(total, index, dim)


def scatter_log_softmax(src, index, dim: int = -1, eps: float = 1e-12, dim_size: MaybeInt = None):
    less = _less_maximum(src, index, dim, dim_size)
    total = scatter_sum(less.exp(), index, dim, None, dim_size)
    return less - _gather((total + eps).log(), index, dim)


def scatter_logsumexp(
    src,
    index,
    dim: int = -1,
    out: MaybeTensor = None,
    dim_size: MaybeInt = None,
    eps: float = 1e-12,
):
    if out is not None:
        _refuse("scatter_logsumexp: out")
    weight = _less_maximum(src, index, dim, dim_size).exp()
    total = scatter_sum(weight, index, dim, None, dim_size)
    largest, arg = scatter_max(src.detach(), index, dim, None, dim_size)
    return ((total + eps).log() + largest).masked_fill(arg == src.size(dim), 0.0)


def scatter_std(
    src,
    index,
    dim: int = -1,
    out: MaybeTensor = None,
    dim_size: MaybeInt = None,
    unbiased: bool = True,
):
    size = dim_size if out is None else out.size(dim)
    mean = scatter_mean(src, index, dim, None, size)
    centered = src - _gather(mean, index, dim)
    count = scatter_sum(torch.ones_like(src), index, dim, None, size) - int(unbiased)
    total = scatter_sum(centered * centered, index, dim, out, size)
    return (total / (count.clamp(min=1) + 1e-6)).sqrt()
