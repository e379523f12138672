# SPDX-License-Identifier: Apache-2.0
"""torch_scatter's functions by its documented conventions."""

import pytest
import torch

from torchvox.compat import torch_scatter as ours

REDUCTIONS = ["sum", "mean", "min", "max"]
each_reduction = pytest.mark.parametrize("reduce", REDUCTIONS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
each_case = pytest.mark.parametrize(
    ("shape", "dim"), [((40,), -1), ((40, 3), 0), ((3, 40), -1), ((2, 40, 3), 1), ((40, 2, 2), 0)]
)
INDEX = torch.randint(0, 9, (40,), generator=torch.Generator().manual_seed(0)) // 2 * 2


def values(shape, dtype=torch.float64):
    found = torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(1))
    return found.to(dtype) / 4 if dtype.is_floating_point else found


def slow(src, index, dim, size, reduce, rounding="floor"):
    """(out, arg) a group at a time; empty groups are 0, their arg the size of dim. rounding: of a
    mean of integers."""
    rows = src.movedim(dim, 0)
    out = torch.zeros((size, *rows.shape[1:]), dtype=src.dtype)
    arg = torch.full(out.shape, len(rows))
    for group in index.unique().tolist():
        members = (index == group).nonzero()[:, 0]
        if reduce in ("min", "max"):
            best = getattr(rows[members], reduce)(0).values
            first = (rows[members] == best).long().argmax(0)
            out[group], arg[group] = best, members[first]
        else:
            total = rows[members].sum(0)
            whole = torch.div(total, len(members), rounding_mode=rounding)
            mean = total / len(members) if src.is_floating_point() else whole
            out[group] = mean if reduce == "mean" else total
    return out.movedim(0, dim), arg.movedim(0, dim)


def calls(module, index, size, reduce, dim):
    """The ways to the same reduction, of a sorted index: functions of src."""
    lines = [1] * dim + [-1]
    indptr = torch.searchsorted(index, torch.arange(size + 1)).view(lines)
    return {
        "scatter": lambda src: getattr(module, f"scatter_{reduce}")(src, index, dim, None, size),
        "csr": lambda src: getattr(module, f"segment_{reduce}_csr")(src, indptr),
        "coo": lambda src: getattr(module, f"segment_{reduce}_coo")(src, index.view(lines), None,
                                                                    size),
        "by name": lambda src: module.scatter(src, index, dim, None, size, reduce),
        "csr by name": lambda src: module.segment_csr(src, indptr, None, reduce),
        "coo by name": lambda src: module.segment_coo(src, index.view(lines), None, size, reduce),
    }  # fmt: skip


@each_reduction
@each_dtype
@each_case
def test_every_reduction_over_every_dim(shape, dim, dtype, reduce):
    src, dim = values(shape, dtype), dim % len(shape)
    index = INDEX.sort().values
    for name, call in calls(ours, index, 11, reduce, dim).items():
        found, rounding = call(src), "trunc" if name[0] == "c" else "floor"
        want = slow(src, index, dim, 11, reduce, rounding)
        if isinstance(found, tuple):
            torch.testing.assert_close(found[1], want[1])
            found = found[0]
        torch.testing.assert_close(found, want[0], msg=name)
    unsorted = getattr(ours, f"scatter_{reduce}")(src, INDEX, dim)
    unsorted = unsorted[0] if isinstance(unsorted, tuple) else unsorted
    size = int(INDEX.max()) + 1
    torch.testing.assert_close(unsorted, slow(src, INDEX, dim, size, reduce)[0])


@each_reduction
@each_dtype
@pytest.mark.parametrize(("shape", "dim"), [((40, 3), 0), ((3, 40), -1), ((2, 40, 3), 1)])
def test_columns_may_have_groups_of_their_own(shape, dim, dtype, reduce):
    src, dim = values(shape, dtype), dim % len(shape)
    rows = src.movedim(dim, 0)
    index = torch.stack([INDEX.roll(i) for i in range(rows[0].numel())], 1).view(rows.shape)
    index, size = index.movedim(0, dim), int(INDEX.max()) + 1
    found = getattr(ours, f"scatter_{reduce}")(src, index, dim)
    lines = (one.movedim(dim, 0).flatten(1).unbind(1) for one in (src, index))
    wanted = [slow(*pair, 0, size, reduce) for pair in zip(*lines, strict=True)]
    for i, one in enumerate(found if isinstance(found, tuple) else [found]):
        want = torch.stack([pair[i] for pair in wanted], 1).view(size, *rows.shape[1:])
        torch.testing.assert_close(one, want.movedim(0, dim))
    if dim == len(shape) - 1:
        by_line, order = getattr(ours, f"segment_{reduce}_coo"), index.sort(dim).values
        sums = ours.scatter_sum(src, order, dim), by_line(src, order)
        assert reduce != "sum" or torch.equal(*sums)
        assert torch.equal(ours.gather_coo(src, index), src.gather(dim, index))


@each_reduction
def test_gradients(reduce):
    src = torch.randperm(80, generator=torch.Generator().manual_seed(2)).view(40, 2).double()
    src.requires_grad_()
    index = INDEX.sort().values
    for call in calls(ours, index, 11, reduce, 0).values():

        def first(x, call=call):
            found = call(x)
            return found[0] if isinstance(found, tuple) else found

        assert torch.autograd.gradcheck(first, src)
