# SPDX-License-Identifier: Apache-2.0
"""query_and_group and its gradient."""

import torch

from .ball_query import gradcheck_ball, queries
from .op_info import Call, OpInfo, backward_call, cast, generator, in_dtypes, refused
from .sampling import batch_of_clouds


def group_call(n: int, seed: int = 0, channels: int = 5) -> Call:
    return {
        "points": batch_of_clouds(n, seed),
        "query": queries(seed),
        "features": torch.randn(2, n, channels, generator=generator(seed)),
        "radii": [1.0, 3.0],
        "ks": [3, 5],
        "lengths": torch.tensor([n, n - n // 4]),
    }


def group(n: int = 40, **options) -> Call:
    return {**group_call(n), **options}


GROUP_SAMPLE_INPUTS = {
    "no features": lambda: group(features=None),
    "features first": lambda: group(features_first=True, closed=True, dist_order="loop"),
    "normalized": lambda: group(normalize_xyz=True),
    "six radii": lambda: group(radii=[0.5, 1.0, 1.5, 2.0, 3.0, 4.0], ks=[1, 2, 3, 1, 0, 4]),
    "query lengths": lambda: group(query_lengths=torch.tensor([3, 99], dtype=torch.int32)),
    "two dimensions": lambda: group(points=batch_of_clouds(40, 0, 2), query=queries(0, 2)),
    "no slots": lambda: group(ks=[0, 0]),
    **in_dtypes(lambda: group(normalize_xyz=True), "points", "query", "features"),
    "bfloat16 features": lambda: cast(group(), features=torch.bfloat16),
    "float64 points": lambda: cast(group(), points=torch.double, query=torch.double),
    "no queries": lambda: group(query=torch.zeros(2, 0, 3)),
}

LAYOUT_ERRORS = (
    ("radii", [1.0, -1.0], ValueError, "radii must be >= 0"),
    ("ks", [3], ValueError, "ks must be one number a radius"),
    ("ks", [3, -1], ValueError, "ks must be >= 0"),
)


def gradcheck_group(**options) -> Call:
    call = gradcheck_ball()
    radius = call.pop("radius")
    del call["k"]
    features = torch.randn(2, 15, 4, dtype=torch.float64, generator=generator(1))
    return {**call, "features": features, "radii": [radius], "ks": [7], **options}


GRADCHECK = {
    "plain": gradcheck_group,
    "normalized": lambda: gradcheck_group(normalize_xyz=True, features_first=True),
}


def group_backward_call(n: int, seed: int = 0, **options) -> Call:
    names = [name for name in ("points", "query") if options.get("use_xyz", True)]
    forward = {**group_call(n, seed), **options}
    return backward_call("query_and_group", forward, *names, "features")


FEATURES_ALONE = {"for_points": False, "for_query": False}
BACKWARD_SAMPLE_INPUTS = {
    "normalized": lambda: group_backward_call(40, normalize_xyz=True, features_first=True),
    "points only": lambda: {**group_backward_call(40), "for_query": False, "for_features": False},
    "features only": lambda: group_backward_call(40) | FEATURES_ALONE,
    "features alone": lambda: group_backward_call(40, use_xyz=False) | FEATURES_ALONE,
    "mixed": lambda: cast(group_backward_call(40), grad=torch.bfloat16),
    "float16": lambda: cast(
        group_backward_call(40, points=batch_of_clouds(40).half(), query=queries().half()),
        grad=torch.half,
    ),
}

OPS = [
    OpInfo(
        "query_and_group",
        group_call,
        varying={"points": 1, "features": 1},
        sample_inputs=GROUP_SAMPLE_INPUTS,
        gradients=("points", "query", "features"),
        gradcheck_inputs=GRADCHECK,
        error_inputs=(
            *LAYOUT_ERRORS,
            ("features", {"features": None, "use_xyz": False}, ValueError, "features must"),
            ("radii", {"radii": [0.1] * 9, "ks": [3] * 9}, ValueError, "radii must be 1 to 8"),
            *refused("radii", ValueError, "radii must be > 0",
                     *({"radii": [1.0, r], "normalize_xyz": True} for r in (0.0, 1e-46))),
        ),
        kernels=2,
        backward_kernels=8,
        plans=("ball_kernel", "ball_cpu"),
    ),
    OpInfo(
        "_query_and_group_backward",
        group_backward_call,
        varying={"points": 1},
        sample_inputs=BACKWARD_SAMPLE_INPUTS,
        error_inputs=(
            *LAYOUT_ERRORS,
            ("use_xyz", False, ValueError, "for_points and for_query must be False"),
        ),
        kernels=8,
        plans=("inverse_index",),
    ),
]  # fmt: skip
