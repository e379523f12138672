# SPDX-License-Identifier: Apache-2.0
"""Sampling and gathering ops."""

import torch
from torch import Tensor

from .op_info import Call, OpInfo, cloud, generator, gradcheck_cloud

SAMPLES = 12


def batch_of_clouds(n: int, seed: int = 0, dimensions: int = 3) -> Tensor:
    return torch.stack([cloud(n, dimensions, seed), cloud(n, dimensions, seed + 1)])


def fps_call(n: int, seed: int = 0) -> Call:
    return {
        "points": batch_of_clouds(n, seed),
        "num_samples": SAMPLES,
        "lengths": torch.tensor([n, n - n // 4]),
    }


def fps(points: Tensor | None = None, **options) -> Call:
    return {
        "points": batch_of_clouds(40) if points is None else points,
        "num_samples": SAMPLES,
        **options,
    }


FPS_OPTIONS = {
    "loop": {"dist_order": "loop"},
    "mmcv ties": {"tie": "mmcv", "tie_block": 16, "init_dist2": 1e10},
    "repeat": {"exhausted": "repeat", "skip_origin": True},
    "nonfinite last": {"nonfinite": "last", "start": 3},
}
FPS_SAMPLE_INPUTS = {
    **{name: lambda options=options: fps(**options) for name, options in FPS_OPTIONS.items()},
    "counts": lambda: fps(
        counts=torch.tensor([5, 99], dtype=torch.int32), start_idx=torch.tensor([4, 50])
    ),
    "start sets": lambda: fps(start_idx=torch.tensor([[1, 2, 2], [3, -1, 9]], dtype=torch.int32)),
    "two dimensions": lambda: fps(batch_of_clouds(40, dimensions=2)),
    "seven dimensions": lambda: fps(batch_of_clouds(40, dimensions=7)),
    "float16": lambda: fps(batch_of_clouds(40).half()),
    "bfloat16": lambda: fps(batch_of_clouds(40).bfloat16()),
    "float64": lambda: fps(batch_of_clouds(40).double()),
    "no samples": lambda: {**fps(), "num_samples": 0},
    "no clouds": lambda: fps(torch.zeros(0, 5, 3)),
}
FPS_ERRORS = (
    ("points", lambda t: t.int(), TypeError, "points must be float"),
    ("points", lambda t: t[None], ValueError, r"points must be \["),
    ("start", -1, ValueError, "start must"),
    ("tie", "highest", ValueError, "tie must be"),
    ("tie_block", 48, ValueError, "tie_block must be"),
    ("dist_order", "fast", ValueError, "dist_order must be"),
    ("exhausted", "stop", ValueError, "exhausted must be"),
    ("nonfinite", "first", ValueError, "nonfinite must be"),
)


def ragged_call(n: int, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 3, seed),
        "batch_offsets": torch.tensor([0, n // 3, n // 3, n]),
        "out_offsets": torch.tensor([0, 5, 7, 16]),
        "max_total": 20,
    }


RAGGED_SAMPLE_INPUTS = {
    **{
        name: lambda options=options: {**ragged_call(40), **options}
        for name, options in FPS_OPTIONS.items()
    },
    "local index": lambda: {**ragged_call(40), "local_index": True},
    "float16": lambda: {**ragged_call(40), "points": cloud(40, 3).half()},
    "float64": lambda: {**ragged_call(40), "points": cloud(40, 5).double()},
}

FPS_OPS = [
    OpInfo(
        "furthest_point_sample",
        fps_call,
        varying={"points": 1},
        sample_inputs=FPS_SAMPLE_INPUTS,
        error_inputs=(
            *FPS_ERRORS,
            ("num_samples", -1, ValueError, "num_samples must"),
            ("lengths", torch.zeros(3, dtype=torch.int32), ValueError, r"lengths must be \[B\]"),
            ("lengths", torch.zeros(2), TypeError, "lengths must be int32 or int64"),
        ),
        kernels=1,
    ),
    OpInfo(
        "furthest_point_sample_ragged",
        ragged_call,
        varying={"points": 0},
        sample_inputs=RAGGED_SAMPLE_INPUTS,
        error_inputs=(
            *FPS_ERRORS,
            ("max_total", -1, ValueError, "max_total must"),
            ("batch_offsets", lambda t: t[None], ValueError, r"batch_offsets must be"),
            ("out_offsets", lambda t: t[1:], ValueError, r"out_offsets must be"),
            (
                "batch_offsets",
                lambda t: t.float(),
                TypeError,
                "batch_offsets must be int32 or int64",
            ),
        ),
        kernels=3,  # the unused slots, and clouds of up to 128 and 1024 tie codes
    ),
]

# ---------------------------------------------------------------------------------------- gather


def some_indices(count: int, n: int, seed: int = 0) -> Tensor:
    """[2, count] int32: repeats, and -1 and n, which are outside."""
    return torch.randint(-1, n + 1, (2, count), generator=generator(seed), dtype=torch.int32)


def gather_call(n: int, seed: int = 0) -> Call:
    features = torch.randn(2, n, 5, generator=generator(seed))
    return {"features": features, "idx": some_indices(15, n, seed)}


def channels_first() -> Call:
    return {
        "features": torch.randn(2, 5, 40, generator=generator(2)),
        "idx": some_indices(15, 40).long(),
        "channels_first": True,
    }


GATHER_SAMPLE_INPUTS = {
    "channels first": channels_first,
    "float16": lambda: {**gather_call(40), "features": gather_call(40)["features"].half()},
    "bfloat16": lambda: {**gather_call(40), "features": gather_call(40)["features"].bfloat16()},
    "float64": lambda: {**gather_call(40), "features": gather_call(40)["features"].double()},
    "no indices": lambda: {**gather_call(40), "idx": torch.zeros(2, 0, dtype=torch.int64)},
}
GATHER_GRADCHECK = {
    "channels last": lambda: {
        "features": torch.stack([gradcheck_cloud(9, 3)] * 2),
        "idx": some_indices(12, 9),
    },
    "channels first": lambda: {
        "features": torch.stack([gradcheck_cloud(9, 3).T] * 2).contiguous(),
        "idx": some_indices(12, 9),
        "channels_first": True,
    },
}


def gather_formula(call: Call, outs: tuple) -> tuple:
    features, idx = call["features"], call["idx"].long()
    rows = features.mT if call.get("channels_first") else features
    inside = (idx >= 0) & (idx < rows.size(1))
    at = idx.clamp(0, rows.size(1) - 1)[:, :, None].expand(-1, -1, rows.size(2))
    out = rows.gather(1, at) * inside[:, :, None]
    return (out.mT if call.get("channels_first") else out,)


GATHERED_POINTS = 30


def gather_backward_call(n: int, seed: int = 0) -> Call:
    return {
        "grad": torch.randn(2, n, 5, generator=generator(seed)),
        "idx": some_indices(n, GATHERED_POINTS, seed),
        "num_points": GATHERED_POINTS,
    }


GATHER_BACKWARD_SAMPLE_INPUTS = {
    "channels first": lambda: {
        "grad": torch.randn(2, 5, 15, generator=generator(2)),
        "idx": some_indices(15, GATHERED_POINTS).long(),
        "num_points": GATHERED_POINTS,
        "channels_first": True,
    },
    "float16": lambda: {
        **gather_backward_call(40),
        "grad": gather_backward_call(40)["grad"].half(),
    },
    # Runs of 256: one point takes 700 gradients.
    "one point": lambda: {
        **gather_backward_call(700),
        "idx": torch.ones(2, 700, dtype=torch.int32),
    },
}


def gather_backward_formula(call: Call, outs: tuple) -> tuple:
    idx = call["idx"].long()
    outside = call["num_points"]
    at = torch.where((idx < 0) | (idx > outside), outside, idx)
    rows = [
        torch.zeros(outside + 1, 3, dtype=torch.float64).index_add(0, i, g)[:outside]
        for i, g in zip(at, call["grad"], strict=True)
    ]
    return (torch.stack(rows),)


GATHER_OPS = [
    OpInfo(
        "gather_points",
        gather_call,
        varying={"features": 1},
        sample_inputs=GATHER_SAMPLE_INPUTS,
        gradients=("features",),
        differentiable=(0,),
        gradcheck_inputs=GATHER_GRADCHECK,
        formula=gather_formula,
        supports_gradgrad=True,
        error_inputs=(
            ("features", lambda t: t.int(), TypeError, "features must be float"),
            ("features", lambda t: t[0], ValueError, r"features must be \[B, N, C\]"),
            ("idx", lambda t: t.float(), TypeError, "idx must be int32 or int64"),
            ("idx", lambda t: t[0], ValueError, r"idx must be \[B, M\]"),
            ("idx", lambda t: t[:1], ValueError, r"idx must be \[B, M\]"),
        ),
        kernels=1,
        backward_kernels=4,
    ),
    OpInfo(
        "_gather_points_backward",
        gather_backward_call,
        varying={"grad": 1, "idx": 1},
        sample_inputs=GATHER_BACKWARD_SAMPLE_INPUTS,
        gradients=("grad",),
        differentiable=(0,),
        gradcheck_inputs={
            "float64": lambda: {
                "grad": torch.stack([gradcheck_cloud(12, 3)] * 2),
                "idx": some_indices(12, 9),
                "num_points": 9,
            }
        },
        formula=gather_backward_formula,
        supports_gradgrad=True,
        error_inputs=(
            ("grad", lambda t: t.int(), TypeError, "grad must be float"),
            ("grad", lambda t: t[:, 1:], ValueError, "grad must have the M of idx"),
            ("idx", lambda t: t.float(), TypeError, "idx must be int32 or int64"),
            ("num_points", -1, ValueError, "num_points must not be negative"),
        ),
        kernels=5,
        backward_kernels=1,
    ),
]

OPS = [*FPS_OPS, *GATHER_OPS]
