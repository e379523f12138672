# SPDX-License-Identifier: Apache-2.0
"""All neighbors within a radius."""

import torch

from .ball_query import ERRORS, packed_ball
from .op_info import PACKED_ERRORS, Call, OpInfo

CAPACITY = 90


def radius_call(n: int = 40, seed: int = 0, **options) -> Call:
    call = {**packed_ball(n, seed), "capacity": CAPACITY, **options}
    del call["k"]
    return call


def one_cloud(**options) -> Call:
    return {**radius_call(**options), "batch_offsets": None, "query_batch_offsets": None}


def radius_in(dtype: torch.dtype, dimensions: int) -> Call:
    call = radius_call(40)
    rows = {k: call[k][:, :dimensions].to(dtype) for k in ("points", "query")}
    return {**call, **rows, "radius": 3.0}


RADIUS_SAMPLE_INPUTS = {
    "loop": lambda: radius_call(dist_order="loop"),
    "closed": lambda: radius_call(closed=True, radius2=4.0),
    "shell": lambda: radius_call(min_radius=1.5, core_dist2=-1.0),
    "core": lambda: radius_call(min_radius=1.5, core_dist2=0.25),
    "everything": lambda: radius_call(radius=float("inf")),
    "too little room": lambda: radius_call(capacity=7),
    "no room": lambda: radius_call(capacity=0),
    "no distances": lambda: radius_call(return_dist2=False),
    "one cloud": one_cloud,
    "two dimensions": lambda: radius_in(torch.float32, 2),
    "float16": lambda: radius_in(torch.float16, 3),
    "bfloat16": lambda: radius_in(torch.bfloat16, 3),
    "float64": lambda: radius_in(torch.float64, 3),
    "no queries": lambda: {**one_cloud(), "query": torch.zeros(0, 3)},
    "no points": lambda: {**one_cloud(), "points": torch.zeros(0, 3)},
}

OPS = [
    OpInfo(
        "radius_neighbors",
        radius_call,
        varying={"points": 0},
        sample_inputs=RADIUS_SAMPLE_INPUTS,
        error_inputs=(
            *(error for error in ERRORS if error[0] not in ("k", "fill")),
            *PACKED_ERRORS,
            ("capacity", -1, ValueError, "capacity must be >= 0"),
        ),
        huge={"capacity": 1 << 50},
        kernels=5,  # count, two of the sum, offsets, write
        plans=("ball_kernel", "ball_cpu"),
    ),
]
