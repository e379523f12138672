# SPDX-License-Identifier: Apache-2.0
"""Grouping ops."""

import torch
from torch import Tensor

import torchvox

from .op import Call, Op, generator, smooth_cloud, some_gradient

NEIGHBOURS = 3
POINTS = 30  # rows of the features, where the call varies another size
HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def neighbours(queries: int, n: int, seed: int = 0, k: int = NEIGHBOURS) -> Tensor:
    """[2, queries, k] int32: repeats, and -1 and n, which are outside."""
    shape = (2, queries, k)
    return torch.randint(-1, n + 1, shape, generator=generator(seed), dtype=torch.int32)


def features_of(n: int, seed: int = 0, channels: int = 5) -> Tensor:
    return torch.randn(2, n, channels, generator=generator(seed))


def smooth_features(n: int = 9, channels_first: bool = False) -> Tensor:
    features = torch.stack([smooth_cloud(n, 3), smooth_cloud(n, 4)[:, 1:]])
    return features.mT.contiguous() if channels_first else features


def rows_of(features: Tensor, idx: Tensor) -> Tensor:
    """[B, M, k, C] by torch operations, of features [B, N, C]."""
    n, flat = features.size(1), idx.long().flatten(1)
    inside = (flat >= 0) & (flat < n)
    at = flat.clamp(0, n - 1)[:, :, None].expand(-1, -1, features.size(2))
    return (features.gather(1, at) * inside[:, :, None]).unflatten(1, idx.shape[1:])


def packed(n: int, **options) -> Call:
    """Packed clouds of n, 0 and n points with 15, 2 and 13 queries, and offsets of them."""
    return {
        "ptr": torch.tensor([0, n, n, 2 * n], dtype=torch.int32),
        "query_ptr": torch.tensor([0, 15, 17, 30]),
        **options,
    }


# ---------------------------------------------------------------------------------- group_points


def group_call(n: int, seed: int = 0) -> Call:
    return {"features": features_of(n, seed), "idx": neighbours(15, n, seed)}


def group_in(dtype: torch.dtype, channels: int = 5) -> Call:
    return {**group_call(40), "features": features_of(40, 0, channels).to(dtype)}


def group_channels_first() -> Call:
    return {
        "features": features_of(40).mT.contiguous(),
        "idx": neighbours(15, 40).long(),
        "channels_first": True,
    }


GROUP_CASES = {
    "channels first": group_channels_first,
    "eight channels": lambda: group_in(torch.float32, 8),
    "eight halves": lambda: group_in(torch.float16, 8),
    "bfloat16": lambda: group_in(torch.bfloat16),
    "float64": lambda: group_in(torch.float64),
    "no neighbours": lambda: {**group_call(40), "idx": neighbours(15, 40, k=0)},
}
GROUP_SMOOTH = {
    "channels last": lambda: {"features": smooth_features(), "idx": neighbours(4, 9)},
    "channels first": lambda: {
        "features": smooth_features(channels_first=True),
        "idx": neighbours(4, 9),
        "channels_first": True,
    },
}


def group_formula(call: Call, outs: tuple) -> tuple:
    if not call.get("channels_first"):
        return (rows_of(call["features"], call["idx"]),)
    return (rows_of(call["features"].mT, call["idx"]).movedim(-1, 1),)


def group_backward_call(n: int, seed: int = 0) -> Call:
    return {
        "grad": torch.randn(2, n, NEIGHBOURS, 5, generator=generator(seed)),
        "idx": neighbours(n, POINTS, seed),
        "num_points": POINTS,
    }


GROUP_BACKWARD_CASES = {
    "channels first": lambda: {
        "grad": torch.randn(2, 5, 15, NEIGHBOURS, generator=generator(2)),
        "idx": neighbours(15, POINTS).long(),
        "num_points": POINTS,
        "channels_first": True,
    },
    "eight channels": lambda: {
        **group_backward_call(40),
        "grad": torch.randn(2, 40, NEIGHBOURS, 8, generator=generator(2)),
    },
    **{
        name: lambda dtype=dtype: {
            **group_backward_call(40),
            "grad": group_backward_call(40)["grad"].to(dtype),
        }
        for name, dtype in HALF.items()
    },
    # Chunks of 256: one point takes 900 gradients.
    "one point": lambda: {
        **group_backward_call(300),
        "idx": torch.ones(2, 300, NEIGHBOURS, dtype=torch.int32),
    },
}


def group_backward_formula(call: Call, outs: tuple) -> tuple:
    features = torch.zeros(2, call["num_points"], 3, dtype=torch.float64, requires_grad=True)
    out = rows_of(features, call["idx"])
    return torch.autograd.grad(out, features, call["grad"], create_graph=True)


def group_ragged_call(n: int, seed: int = 0, **options) -> Call:
    idx = torch.randint(-1, 2 * n + 1, (30, NEIGHBOURS), generator=generator(seed))
    return {"features": features_of(n, seed).flatten(0, 1), "idx": idx, **packed(n), **options}


def ragged_smooth() -> Call:
    return {"features": smooth_features().flatten(0, 1), "idx": group_ragged_call(9)["idx"],
            **packed(9)}  # fmt: skip


def ragged_inside(call: Call) -> Tensor:
    """idx, -1 where it is outside its cloud, as a batch of one."""
    return torchvox.reference.neighbour_rows(
        call["idx"], len(call["features"]), ptr=call["ptr"], query_ptr=call["query_ptr"]
    )[None]


def group_ragged_formula(call: Call, outs: tuple) -> tuple:
    return (rows_of(call["features"][None], ragged_inside(call))[0],)


FEATURES_REFUSALS = (
    ("features", lambda t: t.int(), TypeError, "features must be float"),
    ("features", lambda t: t[0], ValueError, r"features must be \["),
    ("idx", lambda t: t.float(), TypeError, "idx must be int32 or int64"),
    ("idx", lambda t: t[0], ValueError, r"idx must be \["),
)
OFFSETS_REFUSALS = (
    ("ptr", lambda t: t.float(), TypeError, "ptr must be int32 or int64"),
    ("ptr", lambda t: t[None], ValueError, r"ptr must be \[B \+ 1\]"),
    ("query_ptr", lambda t: t[1:], ValueError, r"query_ptr must be \[B \+ 1\], as ptr"),
)
GROUP_OPS = [
    Op(
        "group_points",
        group_call,
        varying={"features": 1},
        cases=GROUP_CASES,
        gradients=("features",),
        differentiable=(0,),
        smooth=GROUP_SMOOTH,
        formula=group_formula,
        twice=True,
        refusals=(
            *FEATURES_REFUSALS,
            ("idx", lambda t: t[:1], ValueError, r"idx must be \[B, M, k\] with the B of features"),
        ),
        kernels=1,
        backward_kernels=5,
    ),
    Op(
        "_group_points_backward",
        group_backward_call,
        varying={"grad": 1, "idx": 1},
        cases=GROUP_BACKWARD_CASES,
        gradients=("grad",),
        differentiable=(0,),
        smooth={
            "float64": lambda: {
                "grad": smooth_features(12).unflatten(1, (4, 3)),
                "idx": neighbours(4, 9),
                "num_points": 9,
            }
        },
        formula=group_backward_formula,
        twice=True,
        refusals=(
            ("grad", lambda t: t.int(), TypeError, "grad must be float"),
            ("grad", lambda t: t[:, 1:], ValueError, "grad must have the M and k of idx"),
            ("idx", lambda t: t.float(), TypeError, "idx must be int32 or int64"),
            ("num_points", -1, ValueError, "num_points must not be negative"),
        ),
        kernels=5,
        backward_kernels=1,
    ),
    Op(
        "group_points_ragged",
        group_ragged_call,
        varying={"features": 0},
        cases={
            "local index": lambda: group_ragged_call(40, local_index=True),
            "float16": lambda: {
                **group_ragged_call(40),
                "features": group_ragged_call(40)["features"].half(),
            },
        },
        gradients=("features",),
        differentiable=(0,),
        smooth={"float64": ragged_smooth},
        formula=group_ragged_formula,
        twice=True,
        refusals=(*FEATURES_REFUSALS, *OFFSETS_REFUSALS),
        kernels=2,
        backward_kernels=5,
    ),
]

# -------------------------------------------------------------------------------- neighbour_rows


def rows_call(n: int, seed: int = 0) -> Call:
    return {
        "idx": neighbours(n, POINTS, seed),
        "num_points": POINTS,
        "count": torch.randint(-1, 5, (2, n), generator=generator(seed)),
    }


ROWS_OPS = [
    Op(
        "neighbour_rows",
        rows_call,
        varying={"idx": 1, "count": 1},
        cases={
            "no count": lambda: {"idx": neighbours(40, POINTS).long(), "num_points": POINTS},
            "packed": lambda: {
                "idx": group_ragged_call(POINTS)["idx"],
                "num_points": 2 * POINTS,
                **packed(POINTS),
            },
            "packed, local": lambda: {
                "idx": group_ragged_call(POINTS)["idx"],
                "num_points": 2 * POINTS,
                "count": torch.full((30,), 2, dtype=torch.int32),
                **packed(POINTS, local_index=True),
            },
        },
        refusals=(
            ("idx", lambda t: t.float(), TypeError, "idx must be int32 or int64"),
            ("idx", lambda t: t[0, 0], ValueError, r"idx must be \[B, M, k\]"),
            ("num_points", -1, ValueError, "num_points must not be negative"),
            ("count", lambda t: t.float(), TypeError, "count must be int32 or int64"),
            ("count", lambda t: t[:1], ValueError, "count must be one number a query"),
            ("local_index", True, ValueError, "local_index must come with ptr and query_ptr"),
        ),
        kernels=1,
    ),
]

# ----------------------------------------------------------------------------- three_interpolate


def weights_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=generator(seed + 7))


def interpolate_call(n: int, seed: int = 0, **options) -> Call:
    return {**group_call(n, seed), "weight": weights_of(2, 15, 3, seed=seed), **options}


def interpolate_in(dtype: torch.dtype, weight: torch.dtype) -> Call:
    call = interpolate_call(40)
    return {**call, "features": call["features"].to(dtype), "weight": call["weight"].to(weight)}


def interpolate_smooth(channels_first: bool = False) -> Call:
    return {
        "features": smooth_features(channels_first=channels_first),
        "idx": neighbours(4, 9),
        "weight": weights_of(2, 4, 3).double(),
        "channels_first": channels_first,
    }


INTERPOLATE_CASES = {
    "channels first": lambda: {
        **interpolate_call(40),
        "features": features_of(40).mT.contiguous(),
        "idx": neighbours(15, 40).long(),
        "channels_first": True,
    },
    "forty channels": lambda: {**interpolate_call(40), "features": features_of(40, 0, 40)},
    "float16": lambda: interpolate_in(torch.float16, torch.float16),
    "float16, weights float32": lambda: interpolate_in(torch.float16, torch.float32),
    "bfloat16": lambda: interpolate_in(torch.bfloat16, torch.bfloat16),
    "float64": lambda: interpolate_in(torch.float64, torch.float64),
    "float64, weights float32": lambda: interpolate_in(torch.float64, torch.float32),
}
INTERPOLATE_SMOOTH = {
    "channels last": interpolate_smooth,
    "channels first": lambda: interpolate_smooth(True),
}


def interpolate_formula(call: Call, outs: tuple) -> tuple:
    features = call["features"].mT if call["channels_first"] else call["features"]
    out = (rows_of(features, call["idx"]) * call["weight"][..., None]).sum(2)
    return (out.mT if call["channels_first"] else out,)


def interpolate_backward_call(n: int, seed: int = 0, **options) -> Call:
    grad = torch.randn(2, 15, 5, generator=generator(seed + 1))
    return {"grad": grad, **interpolate_call(n, seed), **options}


def interpolate_backward_of(name: str) -> Call:
    call = INTERPOLATE_CASES[name]()
    return {"grad": some_gradient(torchvox.three_interpolate(**call)), **call}


def interpolate_ragged_call(n: int, seed: int = 0, **options) -> Call:
    return {**group_ragged_call(n, seed), "weight": weights_of(30, 3, seed=seed), **options}


def interpolate_ragged_formula(call: Call, outs: tuple) -> tuple:
    rows = rows_of(call["features"][None], ragged_inside(call))[0]
    return ((rows * call["weight"][..., None]).sum(1),)


WEIGHT_REFUSALS = (
    ("weight", lambda t: t.double(), TypeError, "weight must be float32 or of the dtype"),
    ("weight", lambda t: t[..., :2], ValueError, r"weight must be \["),
    ("weight", lambda t: t[0], ValueError, r"weight must be \["),
)
INTERPOLATE_OPS = [
    Op(
        "three_interpolate",
        interpolate_call,
        varying={"features": 1},
        cases=INTERPOLATE_CASES,
        gradients=("features", "weight"),
        differentiable=(0,),
        smooth=INTERPOLATE_SMOOTH,
        formula=interpolate_formula,
        refusals=(
            *FEATURES_REFUSALS,
            *WEIGHT_REFUSALS,
            ("idx", lambda t: t[..., :2], ValueError, r"idx must be \[B, M, 3\]"),
            ("idx", lambda t: t[:1], ValueError, r"idx must be \[B, M, 3\] with the B of features"),
        ),
        kernels=1,
        backward_kernels=6,
    ),
    Op(
        "_three_interpolate_backward",
        interpolate_backward_call,
        varying={"features": 1},
        cases={
            **{name: lambda name=name: interpolate_backward_of(name) for name in INTERPOLATE_CASES},
            "features only": lambda: interpolate_backward_call(40, for_weight=False),
            "weight only": lambda: interpolate_backward_call(40, for_features=False),
        },
        refusals=(
            *FEATURES_REFUSALS,
            *WEIGHT_REFUSALS,
            ("grad", lambda t: t.double(), TypeError, "grad must have the dtype of features"),
            ("grad", lambda t: t[:, 1:], ValueError, "grad must have the shape of the output"),
        ),
        kernels=6,
    ),
    Op(
        "three_interpolate_ragged",
        interpolate_ragged_call,
        varying={"features": 0},
        cases={"local index": lambda: interpolate_ragged_call(40, local_index=True)},
        gradients=("features", "weight"),
        differentiable=(0,),
        smooth={
            "float64": lambda: {**ragged_smooth(), "weight": weights_of(30, 3).double()},
        },
        formula=interpolate_ragged_formula,
        refusals=(*FEATURES_REFUSALS, *OFFSETS_REFUSALS, *WEIGHT_REFUSALS),
        kernels=2,
        backward_kernels=6,
    ),
]

# ------------------------------------------------------------------------- interpolation_weights


def some_distances(n: int, seed: int = 0) -> Tensor:
    """[2, n, 3]: ascending, some 0, some infinite, some rows of no neighbour at all."""
    dist2 = torch.rand(2, n, 3, generator=generator(seed)).sort().values
    dist2[:, ::5, 0] = 0
    dist2[:, 1::7, 2] = float("inf")
    dist2[:, 3::11] = float("inf")
    return dist2


def weights_call(n: int, seed: int = 0) -> Call:
    return {"dist2": some_distances(n, seed)}


def weights_formula(call: Call, outs: tuple) -> tuple:
    d = call["dist2"] if call.get("weight") == "dist2" else call["dist2"].sqrt()
    inverse = 1 / (d + call.get("eps", 1e-8))
    return (inverse / inverse.sum(-1, keepdim=True),)


def smooth_distances() -> Tensor:
    return 0.1 + torch.rand(2, 6, 3, generator=generator(0), dtype=torch.float64)


def weights_backward_call(n: int, seed: int = 0, **options) -> Call:
    dist2 = some_distances(n, seed)
    return {"grad": torch.randn(2, n, 3, generator=generator(seed)), "dist2": dist2, **options}


WEIGHTS_REFUSALS = (
    ("dist2", lambda t: t.half(), TypeError, "dist2 must be float32 or float64"),
    ("dist2", lambda t: t[..., :2], ValueError, r"dist2 must be \[.., 3\]"),
    ("eps", 0.0, ValueError, "eps must be finite and positive"),
    ("eps", float("nan"), ValueError, "eps must be finite and positive"),
    ("weight", "squared", ValueError, "weight must be 'dist' or 'dist2'"),
)
WEIGHTS_OPS = [
    Op(
        "interpolation_weights",
        weights_call,
        varying={"dist2": 1},
        cases={
            "squared": lambda: {**weights_call(40), "eps": 0.25, "weight": "dist2"},
            "float64": lambda: {"dist2": some_distances(40).double()},
        },
        gradients=("dist2",),
        differentiable=(0,),
        smooth={
            "distance": lambda: {"dist2": smooth_distances()},
            "squared": lambda: {"dist2": smooth_distances(), "eps": 0.25, "weight": "dist2"},
        },
        formula=weights_formula,
        refusals=WEIGHTS_REFUSALS,
        kernels=1,
        backward_kernels=1,
    ),
    Op(
        "_interpolation_weights_backward",
        weights_backward_call,
        varying={"grad": 1, "dist2": 1},
        cases={"squared": lambda: weights_backward_call(40, eps=0.25, weight="dist2")},
        refusals=(
            *WEIGHTS_REFUSALS,
            ("grad", lambda t: t.double(), TypeError, "grad must have the dtype of dist2"),
            ("grad", lambda t: t[:, 1:], ValueError, "grad must have the shape of dist2"),
        ),
        kernels=1,
    ),
]

# ----------------------------------------------------------------------- gradients of distances


def distance_call(n: int, seed: int = 0, **options) -> Call:
    g = generator(seed)
    return {
        "grad_dist2": torch.randn(2, 15, NEIGHBOURS, generator=g),
        "points": torch.randn(2, n, 3, generator=g),
        "query": torch.randn(2, 15, 3, generator=g),
        "idx": neighbours(15, n, seed),
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


def distance_in(dtype: torch.dtype) -> Call:
    call = distance_call(40)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        **call,
        "grad_dist2": call["grad_dist2"].to(wide),
        "points": call["points"].to(dtype),
        "query": call["query"].to(dtype),
    }


DISTANCE_CASES = {
    "norm 1": lambda: distance_call(40, norm=1),
    "count": lambda: distance_call(40, count=torch.randint(-1, 5, (2, 15), generator=generator(1))),
    "ragged": lambda: ragged_distance_call(40, local_index=True),
    "ragged global": lambda: ragged_distance_call(40),
    "points only": lambda: distance_call(40, for_query=False),
    "query only": lambda: distance_call(40, for_points=False),
    "no neighbours": lambda: {
        **distance_call(40),
        "grad_dist2": torch.zeros(2, 15, 0),
        "idx": neighbours(15, 40, k=0),
    },
    "float16": lambda: distance_in(torch.float16),
    "bfloat16": lambda: distance_in(torch.bfloat16),
    "float64": lambda: distance_in(torch.float64),
}

DISTANCE_OPS = [
    Op(
        "_neighbour_distance_backward",
        distance_call,
        varying={"points": 1},
        cases=DISTANCE_CASES,
        refusals=(
            ("points", lambda t: t.int(), TypeError, "points must be float"),
            ("points", lambda t: t[0, 0], ValueError, r"points must be \[B, N, D\] or \[T, D\]"),
            ("query", lambda t: t.double(), TypeError, "query must have the dtype of points"),
            ("query", lambda t: t[:1], ValueError, "query must have the B of points"),
            ("query", lambda t: t[..., :2], ValueError, "query must have the D of points"),
            ("idx", lambda t: t.float(), TypeError, "idx must be int32 or int64"),
            ("idx", lambda t: t[:, 1:], ValueError, "idx must have a row for each query"),
            ("grad_dist2", lambda t: t.double(), TypeError, "grad_dist2 must be float32"),
            ("grad_dist2", lambda t: t[..., 1:], ValueError, "grad_dist2 must have the shape"),
            ("norm", 3, ValueError, "norm must be 1 or 2"),
            ("local_index", True, ValueError, "local_index must come with ptr"),
        ),
        kernels=6,
    ),
]

OPS = [*GROUP_OPS, *ROWS_OPS, *INTERPOLATE_OPS, *WEIGHTS_OPS, *DISTANCE_OPS]
