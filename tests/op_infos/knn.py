# SPDX-License-Identifier: Apache-2.0
"""k nearest neighbors."""

from collections.abc import Callable
from dataclasses import replace

import torch

from .op_info import (
    DTYPES,
    PACKED_ERRORS,
    Call,
    OpInfo,
    cast,
    cloud,
    generator,
    gradcheck_cloud,
    in_dtypes,
)
from .sampling import batch_of_clouds

QUERIES = 21


def queries(seed: int = 0, dimensions: int = 3) -> torch.Tensor:
    """[2, QUERIES, D]: points of the clouds among them, so that distances of 0 occur."""
    some = batch_of_clouds(2 * QUERIES, seed, dimensions)[:, ::2].clone()
    some[:, 1::3] += torch.rand(some[:, 1::3].shape, generator=generator(seed))
    return some


def knn_call(n: int, seed: int = 0) -> Call:
    return {
        "points": batch_of_clouds(n, seed),
        "query": queries(seed),
        "k": 5,
        "lengths": torch.tensor([n, n - n // 4]),
    }


def knn(dimensions: int = 3, **options) -> Call:
    points, query = batch_of_clouds(40, dimensions=dimensions), queries(dimensions=dimensions)
    return {"points": points, "query": query, "k": 5, **options}


def packed_knn(n: int = 40, seed: int = 0, **options) -> Call:
    return {
        "points": cloud(n, 3, seed),
        "query": queries(seed).reshape(-1, 3),
        "batch_offsets": torch.tensor([0, n // 3, n // 3, n]),
        "query_batch_offsets": torch.tensor([2, 12, 15, 38]),
        "k": 4,
        **options,
    }


DOUBLE = {"points": torch.double, "query": torch.double}
KNN_SAMPLE_INPUTS = {
    "loop": lambda: knn(dist_order="loop"),
    "norm 1": lambda: knn(norm=1),
    "norm 1, float64": lambda: cast(knn(norm=1), **DOUBLE),
    "query lengths": lambda: knn(query_lengths=torch.tensor([0, 99], dtype=torch.int32)),
    "one neighbor": lambda: knn(k=1),
    "more than a warp": lambda: knn(k=33),
    "more than the points": lambda: knn(k=130),
    "one dimension": lambda: knn(1),
    "two dimensions": lambda: knn(2),
    "seven dimensions": lambda: knn(7),
    **in_dtypes(knn, "points", "query"),
    "no neighbors": lambda: knn(k=0),
    "no queries": lambda: {**knn(), "query": torch.zeros(2, 0, 3)},
    "no clouds": lambda: {**knn(), "points": torch.zeros(0, 5, 3), "query": torch.zeros(0, 4, 3)},
}
PACKED_SAMPLE_INPUTS = {
    "local index": lambda: packed_knn(local_index=True),
    "norm 1": lambda: packed_knn(norm=1),
    "loop, many": lambda: packed_knn(dist_order="loop", k=40),
    "float64": lambda: cast(packed_knn(), **DOUBLE),
}
OFFSETS = torch.zeros(3, dtype=torch.int32)
BATCH_ERRORS = (
    ("batch_offsets", OFFSETS, ValueError, r"points must be \[T, D\] with D >= 1"),
    ("lengths", torch.zeros(3, dtype=torch.int32), ValueError, r"lengths must be \[B\]"),
    ("query_lengths", torch.zeros(3, dtype=torch.int32), ValueError, "query_lengths must be"),
)
NORM_ERROR = ("norm", 3, ValueError, "norm must be 1 or 2")


def gradcheck_call(clouds: int, **options) -> Call:
    """A call in float64 without ties: one cloud, or two."""
    spread = torch.stack([gradcheck_cloud(9, 3), gradcheck_cloud(12, 3)[:9] + 0.1])[:clouds]
    query = torch.stack([gradcheck_cloud(5, 3), gradcheck_cloud(5, 4)[:, 1:]])[:clouds] + 0.037
    return {"points": spread, "query": query, "k": 4, **options}


def gradcheck_packed(**options) -> Call:
    call = gradcheck_call(2)
    return {
        "points": call["points"].flatten(0, 1),
        "query": call["query"].flatten(0, 1),
        "batch_offsets": torch.tensor([0, 3, 18]),
        "query_batch_offsets": torch.tensor([0, 3, 10], dtype=torch.int32),
        "k": 3,
        **options,
    }


KNN_GRADCHECK = {
    "squared": lambda: gradcheck_call(2, lengths=torch.tensor([9, 4])),
    "norm 1": lambda: gradcheck_call(1, norm=1),
}
PACKED_GRADCHECK = {
    "rows": gradcheck_packed,
    "local index": lambda: gradcheck_packed(local_index=True),
    "norm 1": lambda: gradcheck_packed(norm=1),
}


PADDED = OpInfo(
    "knn",
    knn_call,
    varying={"points": 1},
    sample_inputs=KNN_SAMPLE_INPUTS,
    gradients=("points", "query"),
    gradcheck_inputs=KNN_GRADCHECK,
    error_inputs=(*BATCH_ERRORS, NORM_ERROR),
    backward_kernels=6,
    plans=("knn_kernel", "knn_order", "knn_cpu"),
)
PACKED = replace(
    PADDED,
    call=packed_knn,
    layout="packed",
    varying={"points": 0},
    sample_inputs=PACKED_SAMPLE_INPUTS,
    gradcheck_inputs=PACKED_GRADCHECK,
    error_inputs=(NORM_ERROR, *PACKED_ERRORS),
    kernels=8,  # a memset, order, boxes, queries, search
)


def three(make: Callable[..., Call]) -> Callable[..., Call]:
    return lambda *args: {k: v for k, v in make(*args).items() if k not in ("k", "norm")}


def three_nn(knn: OpInfo, *samples: str) -> OpInfo:
    return replace(
        knn,
        name="three_nn",
        call=three(knn.call),
        sample_inputs={name: three(knn.sample_inputs[name]) for name in samples},
        gradcheck_inputs={
            name: three(make) for name, make in knn.gradcheck_inputs.items() if name != "norm 1"
        },
        error_inputs=tuple(row for row in knn.error_inputs if row != NORM_ERROR),
        backward_kernels=5,
    )


OPS = [
    PADDED,
    PACKED,
    three_nn(PADDED, "loop", "query lengths", "two dimensions", *DTYPES, "no clouds"),
    three_nn(PACKED, "local index", "float64"),
]
