# SPDX-License-Identifier: Apache-2.0
"""group_mlp_max over the balls of a small scene."""

from itertools import pairwise

import torch
from torch import Tensor

import torchvox

from .ball_query import queries
from .op_info import Call, OpInfo, cast, generator
from .sampling import batch_of_clouds

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
    )
]
