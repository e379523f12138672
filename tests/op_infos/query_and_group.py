# SPDX-License-Identifier: Apache-2.0
"""query_and_group, its gradient, and group_mlp_max over the balls of a small scene."""

from itertools import pairwise

import torch
from torch import Tensor

import torchvox

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


CHANNELS = 5


def layers(widths: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of these widths, inputs first."""
    g = generator(4)
    sizes = list(pairwise(widths))
    weights = [torch.randn(b, a, generator=g) / max(a, 1) ** 0.5 for a, b in sizes]
    return weights, [torch.randn(b, generator=g) * 0.1 for _, b in sizes]


def mlp_call(
    n: int, seed: int = 0, widths: tuple[int, ...] = (8, 12), dimensions: int = 3, fill="first"
) -> Call:
    points, query = batch_of_clouds(n, seed, dimensions), queries(seed, dimensions)
    lengths = torch.tensor([n, n - n // 4])
    _, idx, count = torchvox.ball_query(points, query, 2.0, 6, fill=fill, lengths=lengths)
    weights, biases = layers([dimensions + CHANNELS, *widths])
    return {
        "points": points,
        "query": query,
        "features": torch.randn(2, n, CHANNELS, generator=generator(seed)),
        "idx": idx,
        "count": count,
        "weights": weights,
        "biases": biases,
    }


def mlp(n: int = 40, **options) -> Call:
    return {**mlp_call(n), **options}


def first_weight(columns: slice) -> Call:
    """Without the other columns of the first layer."""
    weights = mlp_call(1)["weights"]
    return {"weights": [weights[0][:, columns].contiguous(), *weights[1:]]}


MLP_SAMPLE_INPUTS = {
    "one layer": lambda: mlp_call(40, widths=(33,)),
    "wide": lambda: mlp_call(40, widths=(70, 20, 131)),
    "eight layers": lambda: mlp_call(40, widths=(3, 4, 5, 6, 7, 6, 5, 4)),
    "no outputs": lambda: mlp_call(40, widths=(4, 0)),
    "no features": lambda: mlp(features=None, **first_weight(slice(0, 3))),
    "features alone": lambda: mlp(use_xyz=False, **first_weight(slice(3, None))),
    "features first": lambda: mlp(features_first=True),
    "normalized": lambda: mlp(normalize_radius=0.3),
    "padded": lambda: mlp_call(40, fill="pad"),
    "one slot": lambda: mlp(idx=mlp_call(40)["idx"][..., :1]),
    "no slots": lambda: mlp(idx=torch.zeros(2, 9, 0, dtype=torch.int32)),
    "two dimensions": lambda: mlp_call(40, dimensions=2),
    "float64": lambda: cast(
        mlp(normalize_radius=0.3),
        **dict.fromkeys(("points", "query", "features", "weights", "biases"), torch.double),
    ),
    "float64 points": lambda: cast(mlp(), points=torch.double, query=torch.double),
    "float16 points": lambda: cast(mlp(normalize_radius=0.3), points=torch.half, query=torch.half),
    "no queries": lambda: mlp(
        query=torch.zeros(2, 0, 3),
        idx=torch.zeros(2, 0, 6, dtype=torch.int32),
        count=torch.zeros(2, 0, dtype=torch.int32),
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
    OpInfo(
        "group_mlp_max",
        mlp_call,
        varying={"points": 1, "features": 1},
        sample_inputs=MLP_SAMPLE_INPUTS,
        error_inputs=(
            ("count", lambda t: t[..., None], ValueError, r"count must be \[B, M\]"),
            ("weights", lambda ts: ts[:1], ValueError, "biases must be one tensor a weight"),
            ("weights", lambda ts: [ts[0][:, 1:], ts[1]], ValueError, r"weights\[0\] must have"),
            ("weights", lambda ts: [ts[0], ts[1][:, 1:]], ValueError, "per output of the layer"),
            ("weights", lambda ts: [ts[0], ts[1].half()], TypeError, "weights must have one dtype"),
        ),
        inference=True,
        kernels=2,
        plans=("group_mlp_cpu",),
    ),
]  # fmt: skip
