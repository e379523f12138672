# SPDX-License-Identifier: Apache-2.0
"""Interpolation between the three nearest points."""

from dataclasses import replace

import torch
from torch import Tensor

from .grouping import (
    PACKED_FEATURES_ERRORS,
    features_of,
    gradcheck_features,
    gradcheck_packed,
    group_call,
    neighbors,
    packed_group,
)
from .op_info import Call, OpInfo, backward_call, cast, generator, in_dtypes


def weights_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=generator(seed + 7))


def interpolate_call(n: int, seed: int = 0, **options) -> Call:
    return {**group_call(n, seed), "weight": weights_of(2, 15, 3, seed=seed), **options}


def packed_interpolate(n: int = 40, seed: int = 0, **options) -> Call:
    return {**packed_group(n, seed), "weight": weights_of(30, 3, seed=seed), **options}


def interpolate_gradcheck(channels_first: bool = False) -> Call:
    return {
        "features": gradcheck_features(channels_first=channels_first),
        "idx": neighbors(4, 9),
        "weight": weights_of(2, 4, 3).double(),
        "channels_first": channels_first,
    }


INTERPOLATE_SAMPLE_INPUTS = {
    "channels first": lambda: {
        **interpolate_call(40),
        "features": features_of(40).mT.contiguous(),
        "idx": neighbors(15, 40).long(),
        "channels_first": True,
    },
    "forty channels": lambda: {**interpolate_call(40), "features": features_of(40, 0, 40)},
    **in_dtypes(lambda: interpolate_call(40), "features", "weight"),
    "float16, weights float32": lambda: cast(interpolate_call(40), features=torch.half),
    "float64, weights float32": lambda: cast(interpolate_call(40), features=torch.double),
}
INTERPOLATE_GRADCHECK = {
    "channels last": interpolate_gradcheck,
    "channels first": lambda: interpolate_gradcheck(True),
}


def interpolate_backward_call(n: int, seed: int = 0, **options) -> Call:
    grad = torch.randn(2, 15, 5, generator=generator(seed + 1))
    return {"grad": grad, **interpolate_call(n, seed), **options}


LEAVES = ("features", "weight")
INTERPOLATE = OpInfo(
    "three_interpolate",
    interpolate_call,
    varying={"features": 1},
    sample_inputs=INTERPOLATE_SAMPLE_INPUTS,
    gradients=LEAVES,
    gradcheck_inputs=INTERPOLATE_GRADCHECK,
    backward_kernels=5,
    plans=("interpolate_cpu",),
)
INTERPOLATE_OPS = [
    INTERPOLATE,
    replace(
        INTERPOLATE,
        call=packed_interpolate,
        layout="packed",
        varying={"features": 0},
        sample_inputs={"local index": lambda: packed_interpolate(local_index=True)},
        gradcheck_inputs={"rows": lambda: gradcheck_packed(weight=weights_of(30, 3).double())},
        error_inputs=PACKED_FEATURES_ERRORS,
        kernels=2,
    ),
    OpInfo(
        "_three_interpolate_backward",
        interpolate_backward_call,
        varying={"features": 1},
        sample_inputs={
            **{
                name: lambda make=make: backward_call("three_interpolate", make(), *LEAVES)
                for name, make in INTERPOLATE_SAMPLE_INPUTS.items()
            },
            "features only": lambda: interpolate_backward_call(40, for_weight=False),
            "weight only": lambda: interpolate_backward_call(40, for_features=False),
        },
        kernels=5,
        plans=("inverse_index", "interpolate_cpu"),
    ),
]


def some_distances(n: int, seed: int = 0) -> Tensor:
    """[2, n, 3]: ascending, some 0, some infinite, some rows of no neighbor at all."""
    dist2 = torch.rand(2, n, 3, generator=generator(seed)).sort().values
    dist2[:, ::5, 0] = 0
    dist2[:, 1::7, 2] = float("inf")
    dist2[:, 3::11] = float("inf")
    return dist2


def weights_call(n: int, seed: int = 0) -> Call:
    return {"dist2": some_distances(n, seed)}


def gradcheck_distances() -> Tensor:
    return 0.1 + torch.rand(2, 6, 3, generator=generator(0), dtype=torch.float64)


def weights_backward_call(n: int, seed: int = 0, **options) -> Call:
    dist2 = some_distances(n, seed)
    return {"grad": torch.randn(2, n, 3, generator=generator(seed)), "dist2": dist2, **options}


WEIGHTS_ERRORS = (
    ("eps", 2e-39, ValueError, "at least 1e-38"),  # 1 / eps would be infinite
)
WEIGHTS_OPS = [
    OpInfo(
        "interpolation_weights",
        weights_call,
        varying={"dist2": 1},
        sample_inputs={
            "squared": lambda: {**weights_call(40), "eps": 0.25, "weight": "dist2"},
            "float64": lambda: {"dist2": some_distances(40).double()},
        },
        gradients=("dist2",),
        gradcheck_inputs={
            "distance": lambda: {"dist2": gradcheck_distances()},
            "squared": lambda: {"dist2": gradcheck_distances(), "eps": 0.25, "weight": "dist2"},
        },
        error_inputs=WEIGHTS_ERRORS,
    ),
    OpInfo(
        "_interpolation_weights_backward",
        weights_backward_call,
        varying={"grad": 1, "dist2": 1},
        sample_inputs={"squared": lambda: weights_backward_call(40, eps=0.25, weight="dist2")},
        error_inputs=WEIGHTS_ERRORS,
    ),
]


def interpolate_features_call(n: int, seed: int = 0, **options) -> Call:
    g = generator(seed)
    return {
        "query": torch.randn(2, 15, 3, generator=g),
        "points": torch.randn(2, n, 3, generator=g),
        "features": features_of(n, seed),
        **options,
    }


def coincident() -> Call:
    """Queries that lie on points."""
    call = interpolate_features_call(40)
    return {**call, "query": call["points"][:, :15].clone()}


INTERPOLATE_FEATURES_SAMPLE_INPUTS = {
    "two points": lambda: interpolate_features_call(2),
    "coincident": coincident,
    "squared": lambda: interpolate_features_call(40, eps=0.25, weight="dist2"),
    "lengths": lambda: interpolate_features_call(
        40, lengths=torch.tensor([2, 0]), query_lengths=torch.tensor([9, 15], dtype=torch.int32)
    ),
    **{
        name: lambda dtypes=dtypes: cast(interpolate_features_call(40), **dtypes)
        for name, dtypes in {
            "half features": {"features": torch.half},
            "float64 points": {"query": torch.double, "points": torch.double},
            "float64 features": {"features": torch.double},
            "half points": dict.fromkeys(("query", "points", "features"), torch.bfloat16),
        }.items()
    },
}


def interpolate_features_gradcheck(**options) -> Call:
    g = generator(4)
    return {
        "query": torch.rand(2, 4, 3, generator=g, dtype=torch.float64),
        "points": torch.rand(2, 9, 3, generator=g, dtype=torch.float64),
        "features": gradcheck_features(),
        **options,
    }


INTERPOLATE_FEATURES_OPS = [
    OpInfo(
        "interpolate_features",
        interpolate_features_call,
        varying={"points": 1, "features": 1},
        sample_inputs=INTERPOLATE_FEATURES_SAMPLE_INPUTS,
        gradients=("features", "query", "points"),
        gradcheck_inputs={
            "distance": interpolate_features_gradcheck,
            "squared": lambda: interpolate_features_gradcheck(eps=0.25, weight="dist2"),
        },
        error_inputs=(
            ("lengths", torch.zeros(3, dtype=torch.int32), ValueError, r"lengths must be \[B\]"),
            ("query_lengths", torch.zeros(2), TypeError, "query_lengths must be int32 or int64"),
        ),
        kernels=2,
        backward_kernels=11,
        plans=("interpolate_cpu",),
    )
]

OPS = [*INTERPOLATE_OPS, *WEIGHTS_OPS, *INTERPOLATE_FEATURES_OPS]
