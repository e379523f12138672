# SPDX-License-Identifier: Apache-2.0
"""segment_reduce."""

from functools import partial

import torch
from torch import Tensor

from .op_info import Call, OpInfo, backward_call, cloud, generator, gradcheck_cloud, in_dtypes

SEGMENTS = 9
REDUCTIONS = ("sum", "mean", "max", "min")


def offsets_of(entries: int) -> Tensor:
    """Nine segments: the first entry in none, empty ones, half of all entries in one."""
    parts = [1, 1, 2, entries // 8, entries // 8, entries // 2, *[entries * 3 // 4] * 3, entries]
    return torch.tensor(parts)


def segment_call(n: int, seed: int = 0, **options) -> Call:
    return {"src": cloud(n, 5, seed), "offsets": offsets_of(n), **options}


def some_index(entries: int, n: int) -> Tensor:
    """Repeats, and entries that name no row."""
    return torch.randint(-2, n + 2, (entries,), generator=generator(1))


def indexed_call(reduce: str = "sum", n: int = 40, **options) -> Call:
    index = some_index(3 * n, n)
    return segment_call(n, offsets=offsets_of(3 * n).int(), reduce=reduce, index=index, **options)


def gradcheck_call(reduce: str, indexed: bool) -> Call:
    call = {"src": gradcheck_cloud(20), "offsets": offsets_of(20), "reduce": reduce}
    return {**call, "offsets": offsets_of(50), "index": some_index(50, 20)} if indexed else call


def reduce_backward_call(n: int, seed: int = 0, reduce: str = "sum") -> Call:
    """Of n entries over 40 rows."""
    entries = {"offsets": offsets_of(n), "index": some_index(n, 40)}
    return backward_call("segment_reduce", segment_call(40, seed, reduce=reduce, **entries), "src")


def plain_backward_call(reduce: str) -> Call:
    return {**reduce_backward_call(40, reduce=reduce), "index": None}


OPS = [
    OpInfo(
        "segment_reduce",
        segment_call,
        varying={"src": 0},
        sample_inputs={
            **{name: lambda name=name: segment_call(40, reduce=name) for name in REDUCTIONS},
            **{f"{name} of index": lambda name=name: indexed_call(name) for name in REDUCTIONS},
            **in_dtypes(lambda: segment_call(40), "src"),
            "no segments": lambda: segment_call(40, offsets=torch.zeros(1).long()),
            "no columns": lambda: {**segment_call(40), "src": torch.zeros(40, 0)},
            "no rows": lambda: indexed_call("max", src=torch.zeros(0, 5)),
            "in disorder": lambda: segment_call(40, offsets=torch.tensor([30, -9, 90, 2, 35])),
            # Sums of 32 and of 32 such sums, before a rest of 256 and 4; words of 4 channels.
            "long": lambda: {"src": cloud(2308, 4), "offsets": torch.tensor([0, 2308])},
        },
        gradients=("src",),
        gradcheck_inputs={
            f"{name}{', index' * indexed}": partial(gradcheck_call, name, indexed)
            for name in REDUCTIONS
            for indexed in (False, True)
        },
        error_inputs=(
            ("index", torch.zeros(3), TypeError, "index must be int32 or int64"),
            ("index", torch.zeros(3, 1).int(), ValueError, r"index must be \[E\]"),
        ),
    ),
    OpInfo(
        "_segment_reduce_backward",
        reduce_backward_call,
        varying={"index": 0},
        sample_inputs={
            **{name: lambda name=name: plain_backward_call(name) for name in REDUCTIONS},
            **{f"{k} of index": partial(reduce_backward_call, 120, 0, k) for k in REDUCTIONS[1:]},
        },
        kernels=6,
    ),
]  # fmt: skip
