# SPDX-License-Identifier: Apache-2.0
"""All neighbors within a radius."""

import torch

from .ball_query import packed_ball
from .op_info import PACKED_ERRORS, Call, OpInfo, in_dtypes

CAPACITY = 90


def radius_call(n: int = 40, seed: int = 0, **options) -> Call:
    call = {**packed_ball(n, seed), "capacity": CAPACITY, **options}
    del call["k"]
    return call


def one_cloud(**options) -> Call:
    return {**radius_call(**options), "batch_offsets": None, "query_batch_offsets": None}


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
    "two dimensions": lambda: radius_call(
        radius=3.0, **{k: radius_call()[k][:, :2] for k in ("points", "query")}
    ),
    **in_dtypes(lambda: radius_call(radius=3.0), "points", "query"),
    "no queries": lambda: {**one_cloud(), "query": torch.zeros(0, 3)},
    "no points": lambda: {**one_cloud(), "points": torch.zeros(0, 3)},
}

OPS = [
    OpInfo(
        "radius_neighbors",
        radius_call,
        sample_inputs=RADIUS_SAMPLE_INPUTS,
        error_inputs=(*PACKED_ERRORS,),
        huge={"capacity": 1 << 50},
        kernels=5,  # count, two of the sum, offsets, write
        plans=("ball_kernel", "ball_cpu"),
    )
]
