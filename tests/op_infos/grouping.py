# SPDX-License-Identifier: Apache-2.0
"""Gathering and grouping ops."""

from dataclasses import replace

import torch
from torch import Tensor

from .op_info import (
    HALVES,
    PACKED_ERRORS,
    Call,
    OpInfo,
    cast,
    generator,
    gradcheck_cloud,
    in_dtypes,
    refused,
)

NEIGHBORS = 3
POINTS = 30  # rows of the features, where the call varies another size


def neighbors(queries: int, n: int, seed: int = 0, k: int = NEIGHBORS) -> Tensor:
    """[2, queries, k] int32: repeats, and -1 and n, which are outside."""
    shape = (2, queries, k)
    return torch.randint(-1, n + 1, shape, generator=generator(seed), dtype=torch.int32)


def features_of(n: int, seed: int = 0, channels: int = 5) -> Tensor:
    return torch.randn(2, n, channels, generator=generator(seed))


def gradcheck_features(n: int = 9, channels_first: bool = False) -> Tensor:
    features = torch.stack([gradcheck_cloud(n, 3), gradcheck_cloud(n, 4)[:, 1:]])
    return features.mT.contiguous() if channels_first else features


def packed(n: int, **options) -> Call:
    """Packed clouds of n, 0 and n points with 15, 2 and 13 queries, and offsets of them."""
    return {
        "batch_offsets": torch.tensor([0, n, n, 2 * n], dtype=torch.int32),
        "query_batch_offsets": torch.tensor([0, 15, 17, 30]),
        **options,
    }


def gathers(name: str, *each: int) -> list[OpInfo]:
    """The op that reads the rows that indices [2, M, *each] name, and its backward op."""

    def indices(count: int, n: int, seed: int = 0) -> Tensor:
        shape = (2, count, *each)
        return torch.randint(-1, n + 1, shape, generator=generator(seed), dtype=torch.int32)

    def call(n: int, seed: int = 0, channels: int = 5) -> Call:
        return {"features": features_of(n, seed, channels), "idx": indices(15, n, seed)}

    def backward_call(n: int, seed: int = 0, channels: int = 5) -> Call:
        grad = torch.randn(2, n, *each, channels, generator=generator(seed))
        return {"grad": grad, "idx": indices(n, POINTS, seed), "num_points": POINTS}

    def channels_first(call: Call, name: str) -> Call:
        values = call[name].movedim(-1, 1).contiguous()
        return {**call, name: values, "idx": call["idx"].long(), "channels_first": True}

    def gradcheck() -> Call:
        return {"features": gradcheck_features(), "idx": indices(4, 9)}

    def gradcheck_backward() -> Call:
        idx = indices(4, 9)
        grad = gradcheck_features(idx[0].numel()).view(*idx.shape, 3)
        return {"grad": grad, "idx": idx, "num_points": 9}

    forward = OpInfo(
        name,
        call,
        varying={"features": 1},
        sample_inputs={
            "channels first": lambda: channels_first(call(40), "features"),
            "eight channels": lambda: call(40, channels=8),
            "eight halves": lambda: cast(call(40, channels=8), features=torch.half),
            **in_dtypes(lambda: call(40), "features"),
            "no neighbors": lambda: {**call(40), "idx": indices(15, 40)[:, :0]},
        },
        gradients=("features",),
        gradcheck_inputs={
            "channels last": gradcheck,
            "channels first": lambda: channels_first(gradcheck(), "features"),
        },
        supports_gradgrad=True,
        backward_kernels=4,
    )
    backward = OpInfo(
        f"_{name}_backward",
        backward_call,
        varying={"grad": 1, "idx": 1},
        sample_inputs={
            "channels first": lambda: channels_first(backward_call(15), "grad"),
            "eight channels": lambda: backward_call(40, channels=8),
            **in_dtypes(lambda: backward_call(40), "grad"),
            # Runs of 256: one point takes 300 gradients or more.
            "one point": lambda: {**backward_call(300), "idx": indices(300, POINTS) * 0 + 1},
        },
        gradients=("grad",),
        gradcheck_inputs={"float64": gradcheck_backward},
        supports_gradgrad=True,
        kernels=5,
        plans=("inverse_index",),
    )
    return [forward, backward]


GATHER, GROUP = gathers("gather_points"), gathers("group_points", NEIGHBORS)


def group_call(n: int, seed: int = 0) -> Call:
    return GROUP[0].call(n, seed)


def packed_group(n: int = 40, seed: int = 0, **options) -> Call:
    idx = torch.randint(-1, 2 * n + 1, (30, NEIGHBORS), generator=generator(seed))
    return {"features": features_of(n, seed).flatten(0, 1), "idx": idx, **packed(n), **options}


def gradcheck_packed(**options) -> Call:
    return packed_group(9, features=gradcheck_features().flatten(0, 1), **options)


PACKED_FEATURES_ERRORS = (
    *PACKED_ERRORS,
    ("channels_first", True, ValueError, "channels_first must be False"),
)
PACKED_GROUP = replace(
    GROUP[0],
    call=packed_group,
    layout="packed",
    varying={"features": 0},
    sample_inputs={
        "local index": lambda: packed_group(local_index=True),
        "float16": lambda: packed_group(features=features_of(40).flatten(0, 1).half()),
    },
    gradcheck_inputs={
        "rows": gradcheck_packed,
        "local index": lambda: gradcheck_packed(local_index=True),
    },
    error_inputs=PACKED_FEATURES_ERRORS,
    kernels=2,
)


def rows_call(n: int, seed: int = 0) -> Call:
    return {
        "idx": neighbors(n, POINTS, seed),
        "num_points": POINTS,
        "count": torch.randint(-1, 5, (2, n), generator=generator(seed)),
    }


ROWS_OPS = [
    OpInfo(
        "neighbor_rows",
        rows_call,
        varying={"idx": 1, "count": 1},
        sample_inputs={
            "no count": lambda: {"idx": neighbors(40, POINTS).long(), "num_points": POINTS},
            "packed": lambda: {
                "idx": packed_group(POINTS)["idx"],
                "num_points": 2 * POINTS,
                **packed(POINTS),
            },
            "packed, local": lambda: {
                "idx": packed_group(POINTS)["idx"],
                "num_points": 2 * POINTS,
                "count": torch.full((30,), 2, dtype=torch.int32),
                **packed(POINTS, local_index=True),
            },
        },
        error_inputs=(
            ("idx", lambda t: t[0, 0], ValueError, r"idx must be \[U, k\] or \[B, M, k\]"),
            *refused("local_index", ValueError,
                     "local_index must come with batch_offsets and query_batch_offsets", True),
        ),
    )
]  # fmt: skip


def distance_call(n: int, seed: int = 0, **options) -> Call:
    g = generator(seed)
    return {
        "grad_dist2": torch.randn(2, 15, NEIGHBORS, generator=g),
        "points": torch.randn(2, n, 3, generator=g),
        "query": torch.randn(2, 15, 3, generator=g),
        "idx": neighbors(15, n, seed),
        **options,
    }


def ragged_distance_call(n: int, **options) -> Call:
    batch = distance_call(n)
    flat = {k: v.flatten(0, 1) if k != "idx" else v[0] for k, v in batch.items()}
    return {
        **flat,
        "idx": torch.cat([batch["idx"][0], batch["idx"][1].long()]),
        **packed(n),
        **options,
    }


DISTANCE_SAMPLE_INPUTS = {
    "norm 1": lambda: distance_call(40, norm=1),
    "count": lambda: distance_call(40, count=torch.randint(-1, 5, (2, 15), generator=generator(1))),
    "ragged": lambda: ragged_distance_call(40, local_index=True),
    "ragged global": lambda: ragged_distance_call(40),
    "points only": lambda: distance_call(40, for_query=False),
    "query only": lambda: distance_call(40, for_points=False),
    "no neighbors": lambda: {
        **distance_call(40),
        "grad_dist2": torch.zeros(2, 15, 0),
        "idx": neighbors(15, 40, k=0),
    },
    **in_dtypes(lambda: distance_call(40), "points", "query", dtypes=HALVES),
    "float64": lambda: cast(
        distance_call(40), **dict.fromkeys(("grad_dist2", "points", "query"), torch.double)
    ),
}

DISTANCE = OpInfo(
    "_neighbor_distance_backward",
    distance_call,
    varying={"points": 1},
    sample_inputs=DISTANCE_SAMPLE_INPUTS,
    error_inputs=(
        ("points", lambda t: t[0, 0], ValueError, r"points must be \[B, N, D\] or \[T, D\]"),
        ("norm", 3, ValueError, "norm must be 1 or 2"),
        ("local_index", True, ValueError, "local_index must come with batch_offsets"),
    ),
    kernels=5,
    plans=("inverse_index",),
)
OPS = [*GATHER, *GROUP, PACKED_GROUP, *ROWS_OPS, DISTANCE]
