# SPDX-License-Identifier: Apache-2.0
"""The gradient of distances to neighbors."""

import torch

from .grouping import NEIGHBORS, neighbors, packed
from .op_info import HALVES, Call, OpInfo, cast, generator, in_dtypes


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

OPS = [
    OpInfo(
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
]
