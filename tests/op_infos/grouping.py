# SPDX-License-Identifier: Apache-2.0
"""Grouping ops."""

import torch
from torch import Tensor

from .op_info import (
    HALVES,
    PACKED_ERRORS,
    Call,
    OpInfo,
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


# ---------------------------------------------------------------------------------- group_points


def group_call(n: int, seed: int = 0) -> Call:
    return {"features": features_of(n, seed), "idx": neighbors(15, n, seed)}


def group_in(dtype: torch.dtype, channels: int = 5) -> Call:
    return {**group_call(40), "features": features_of(40, 0, channels).to(dtype)}


def group_channels_first() -> Call:
    return {
        "features": features_of(40).mT.contiguous(),
        "idx": neighbors(15, 40).long(),
        "channels_first": True,
    }


def packed_group(n: int = 40, seed: int = 0, **options) -> Call:
    idx = torch.randint(-1, 2 * n + 1, (30, NEIGHBORS), generator=generator(seed))
    return {"features": features_of(n, seed).flatten(0, 1), "idx": idx, **packed(n), **options}


def gradcheck_packed(**options) -> Call:
    return packed_group(9, features=gradcheck_features().flatten(0, 1), **options)


GROUP_SAMPLE_INPUTS = {
    "channels first": group_channels_first,
    "eight channels": lambda: group_in(torch.float32, 8),
    "eight halves": lambda: group_in(torch.float16, 8),
    "bfloat16": lambda: group_in(torch.bfloat16),
    "float64": lambda: group_in(torch.float64),
    "no neighbors": lambda: {**group_call(40), "idx": neighbors(15, 40, k=0)},
}
PACKED_SAMPLE_INPUTS = {
    "local index": lambda: packed_group(local_index=True),
    "float16": lambda: packed_group(features=features_of(40).flatten(0, 1).half()),
}
GROUP_GRADCHECK = {
    "channels last": lambda: {"features": gradcheck_features(), "idx": neighbors(4, 9)},
    "channels first": lambda: {
        "features": gradcheck_features(channels_first=True),
        "idx": neighbors(4, 9),
        "channels_first": True,
    },
}
PACKED_GRADCHECK = {
    "rows": gradcheck_packed,
    "local index": lambda: gradcheck_packed(local_index=True),
}


def group_backward_call(n: int, seed: int = 0) -> Call:
    return {
        "grad": torch.randn(2, n, NEIGHBORS, 5, generator=generator(seed)),
        "idx": neighbors(n, POINTS, seed),
        "num_points": POINTS,
    }


GROUP_BACKWARD_SAMPLE_INPUTS = {
    "channels first": lambda: {
        "grad": torch.randn(2, 5, 15, NEIGHBORS, generator=generator(2)),
        "idx": neighbors(15, POINTS).long(),
        "num_points": POINTS,
        "channels_first": True,
    },
    "eight channels": lambda: {
        **group_backward_call(40),
        "grad": torch.randn(2, 40, NEIGHBORS, 8, generator=generator(2)),
    },
    **in_dtypes(lambda: group_backward_call(40), "grad", dtypes=HALVES),
    # Chunks of 256: one point takes 900 gradients.
    "one point": lambda: {
        **group_backward_call(300),
        "idx": torch.ones(2, 300, NEIGHBORS, dtype=torch.int32),
    },
}


PACKED_FEATURES_ERRORS = (
    *PACKED_ERRORS,
    ("channels_first", True, ValueError, "channels_first must be False"),
)
GROUP_OPS = [
    OpInfo(
        "group_points",
        group_call,
        varying={"features": 1},
        sample_inputs=GROUP_SAMPLE_INPUTS,
        gradients=("features",),
        gradcheck_inputs=GROUP_GRADCHECK,
        supports_gradgrad=True,
        kernels=1,
        backward_kernels=4,
    ),
    OpInfo(
        "group_points",
        packed_group,
        layout="packed",
        varying={"features": 0},
        sample_inputs=PACKED_SAMPLE_INPUTS,
        gradients=("features",),
        gradcheck_inputs=PACKED_GRADCHECK,
        supports_gradgrad=True,
        error_inputs=PACKED_FEATURES_ERRORS,
        kernels=2,
        backward_kernels=4,
    ),
    OpInfo(
        "_group_points_backward",
        group_backward_call,
        varying={"grad": 1, "idx": 1},
        sample_inputs=GROUP_BACKWARD_SAMPLE_INPUTS,
        gradients=("grad",),
        gradcheck_inputs={
            "float64": lambda: {
                "grad": gradcheck_features(12).unflatten(1, (4, 3)),
                "idx": neighbors(4, 9),
                "num_points": 9,
            }
        },
        supports_gradgrad=True,
        kernels=5,
        backward_kernels=1,
        plans=("inverse_index",),
    ),
]

# -------------------------------------------------------------------------------- neighbor_rows


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
        kernels=1,
    )
]  # fmt: skip

OPS = [*GROUP_OPS, *ROWS_OPS]
