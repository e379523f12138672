# SPDX-License-Identifier: Apache-2.0
"""Ball queries, and all neighbors within a radius."""

from dataclasses import replace

import torch
from torch import Tensor

from .op_info import PACKED_ERRORS, Call, OpInfo, cast, cloud, generator, in_dtypes
from .sampling import batch_of_clouds

QUERIES = 9


def queries(seed: int = 0, dimensions: int = 3) -> Tensor:
    """[2, QUERIES, dimensions]: near points of the cloud of this seed, not all finite."""
    return batch_of_clouds(5 * QUERIES, seed, dimensions)[:, 3::5]


def ball_call(n: int, seed: int = 0) -> Call:
    return {
        "points": batch_of_clouds(n, seed),
        "query": queries(seed),
        "radius": 2.0,
        "k": 6,
        "lengths": torch.tensor([n, n - n // 4]),
    }


def ball(dimensions: int = 3, **options) -> Call:
    points, query = batch_of_clouds(40, dimensions=dimensions), queries(dimensions=dimensions)
    return {"points": points, "query": query, "radius": 2.0, "k": 6, **options}


OPTIONS = {
    "loop": {"dist_order": "loop"},
    "closed": {"closed": True, "radius2": 4.0},
    "shell": {"min_radius": 1.5, "core_dist2": -1.0, "fill": "pad"},
    "core": {"min_radius": 1.5, "core_dist2": 0.25},
    "everything": {"radius": float("inf")},
    "one": {"k": 1},
    "none": {"k": 0},
}


def packed_ball(n: int = 40, seed: int = 0, **options) -> Call:
    return {
        "points": cloud(n, 3, seed),
        "query": cloud(5 * QUERIES, 3, seed)[3::5],
        "batch_offsets": torch.tensor([0, n // 3, n // 3, n]),
        "query_batch_offsets": torch.tensor([1, 4, 5, 8]),
        "radius": 2.0,
        "k": 6,
        **options,
    }


BALL_SAMPLE_INPUTS = {
    **{name: lambda options=options: ball(**options) for name, options in OPTIONS.items()},
    "lengths": lambda: ball(
        lengths=torch.tensor([0, 99], dtype=torch.int32), query_lengths=torch.tensor([5, 7])
    ),
    "two dimensions": lambda: ball(2),
    "seven dimensions": lambda: ball(7, radius=5.0),
    **in_dtypes(ball, "points", "query"),
    "no queries": lambda: {**ball(), "query": torch.zeros(2, 0, 3)},
    "no clouds": lambda: {**ball(), "points": torch.zeros(0, 5, 3), "query": torch.zeros(0, 4, 3)},
}
PACKED_SAMPLE_INPUTS = {
    **{name: lambda options=options: packed_ball(**options) for name, options in OPTIONS.items()},
    "local index": lambda: packed_ball(local_index=True),
    "float16": lambda: cast(packed_ball(), points=torch.half, query=torch.half),
    "float64": lambda: packed_ball(points=cloud(40, 5).double(), query=cloud(9, 5).double()),
}


def gradcheck_ball(**options) -> Call:
    """In float64, with a radius in the widest gap between the distances about the median."""
    g = generator(0)
    points, query = (torch.randn(2, n, 3, dtype=torch.float64, generator=g) for n in (15, 6))
    dist = torch.cdist(points, query).flatten().sort().values
    some = dist[60:110]
    widest = int(some.diff().argmax())
    radius = float(some[widest : widest + 2].mean())
    return {"points": points, "query": query, "radius": radius, "k": 7, **options}


def gradcheck_packed(**options) -> Call:
    call = gradcheck_ball()
    return {
        **call,
        "points": call["points"].flatten(0, 1),
        "query": call["query"].flatten(0, 1),
        "batch_offsets": torch.tensor([0, 15, 30]),
        "query_batch_offsets": torch.tensor([0, 6, 12]),
        **options,
    }


GRADCHECK = {"first": gradcheck_ball, "pad": lambda: gradcheck_ball(fill="pad", dist_order="loop")}
PACKED_GRADCHECK = {
    "rows": gradcheck_packed,
    "local index": lambda: gradcheck_packed(local_index=True),
}

OFFSETS = torch.zeros(3, dtype=torch.int32)

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


PADDED = OpInfo(
    "ball_query",
    ball_call,
    varying={"points": 1},
    sample_inputs=BALL_SAMPLE_INPUTS,
    gradients=("points", "query"),
    gradcheck_inputs=GRADCHECK,
    error_inputs=(
        ("lengths", OFFSETS, ValueError, r"lengths must be \[B\]"),
        ("query_lengths", torch.zeros(2), TypeError, "query_lengths must be int32 or int64"),
    ),
    backward_kernels=6,  # rows, count, scan, place, points, queries
    plans=("ball_kernel", "ball_cpu"),
)
OPS = [
    PADDED,
    replace(
        PADDED,
        call=packed_ball,
        layout="packed",
        varying={"points": 0},
        sample_inputs=PACKED_SAMPLE_INPUTS,
        gradcheck_inputs=PACKED_GRADCHECK,
        error_inputs=(
            ("lengths", OFFSETS, ValueError, "lengths must be None with batch_offsets"),
            *PACKED_ERRORS,
        ),
    ),
    OpInfo(
        "radius_neighbors",
        radius_call,
        sample_inputs=RADIUS_SAMPLE_INPUTS,
        error_inputs=PACKED_ERRORS,
        huge={"capacity": 1 << 50},
        kernels=5,  # count, two of the sum, offsets, write
        plans=("ball_kernel", "ball_cpu"),
    ),
]
