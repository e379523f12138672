# SPDX-License-Identifier: Apache-2.0
"""Sampling and gathering ops."""

import torch
from torch import Tensor

from .op_info import NAN, Call, OpInfo, cloud, generator, gradcheck_cloud, in_dtypes, refused

SAMPLES = 12


def batch_of_clouds(n: int, seed: int = 0, dimensions: int = 3) -> Tensor:
    return torch.stack([cloud(n, dimensions, seed), cloud(n, dimensions, seed + 1)])


def fps_call(n: int, seed: int = 0) -> Call:
    return fps(batch_of_clouds(n, seed), lengths=torch.tensor([n, n - n // 4]))


def fps(points: Tensor | None = None, **options) -> Call:
    points = batch_of_clouds(40) if points is None else points
    return {"points": points, "num_samples": SAMPLES, **options}


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
    **in_dtypes(fps, "points"),
    "one dimension": lambda: fps(batch_of_clouds(40, dimensions=1)),
    "all but the origin": lambda: fps(skip_origin=True, nonfinite="last", start=4),
    "no start": lambda: fps(start_idx=torch.tensor([2**32 + 5, -(2**40)])),
    "no samples": lambda: {**fps(), "num_samples": 0},
    "no clouds": lambda: fps(torch.zeros(0, 5, 3)),
}


def away_from_three_dimensions(*shape: int) -> tuple:
    clouds = ({"points": torch.ones(*shape, d), "skip_origin": True} for d in (1, 2, 4))
    return refused("points", ValueError, "skip_origin|D = 3", *clouds)


FPS_ERRORS = (
    *refused("tie_block", ValueError, "tie_block must be", 0, -1024, 3, 48, 1023, 2048),
    ("nonfinite", {"nonfinite": "last", "exhausted": "repeat"}, ValueError, "exhausted|nonfinite"),
    ("start_idx", torch.ones(9, 2).long(), ValueError, "start_idx must"),
)
LISTS_ERRORS = (
    *(
        (k, torch.ones(2), TypeError, f"{k} must be int32 or int64")
        for k in ("counts", "start_idx")
    ),
    *(("counts", torch.zeros(shape).int(), ValueError, "counts must be") for shape in ((3,), ())),
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
    "no candidates": lambda: {**ragged_call(40), "points": cloud(40, 3) * NAN},
    "repeat none": lambda: {**ragged_call(40), "points": cloud(40) * NAN, "exhausted": "repeat"},
    "one dimension": lambda: {**ragged_call(40), "points": cloud(40, 1)},
    "int32": lambda: {k: v.int() if "offsets" in k else v for k, v in ragged_call(40).items()},
    **in_dtypes(lambda: ragged_call(40), "points"),
    "five dimensions": lambda: {**ragged_call(40), "points": cloud(40, 5)},
}


def with_dist_call(b: int, seed: int = 0, **options) -> Call:
    """[b, 12, 12]: many ties, some not finite, some negative zeros."""
    distances = torch.randint(0, 9, (b, SAMPLES, SAMPLES), generator=generator(seed)) / 2
    distances[:, 3, 4], distances[:, 5, ::3], distances[1::2, 2] = NAN, float("inf"), -0.0
    lengths = (torch.arange(b) * 5 + 7) % (SAMPLES + 2)
    return {"distances": distances, "num_samples": 9, "lengths": lengths, **options}


WITH_DIST_SAMPLE_INPUTS = {
    "no lengths": lambda: with_dist_call(3, lengths=None, start=2),
    "int32": lambda: with_dist_call(2, lengths=torch.tensor([-1, 99], dtype=torch.int32), start=11),
    "mmcv ties": lambda: with_dist_call(20, tie="mmcv", init_dist=1e10),
    "few threads": lambda: with_dist_call(20, tie="mmcv", tie_block=4, init_dist=-1.0),
    "one sample": lambda: with_dist_call(2, num_samples=1),
    "no samples": lambda: with_dist_call(2, num_samples=0),
    "no points": lambda: {"distances": torch.zeros(2, 0, 0), "num_samples": 3},
    "no clouds": lambda: {"distances": torch.zeros(0, 4, 4), "num_samples": 3},
}

FPS_OPS = [
    OpInfo(
        "furthest_point_sample",
        fps_call,
        varying={"points": 1},
        sample_inputs=FPS_SAMPLE_INPUTS,
        error_inputs=(*FPS_ERRORS, *away_from_three_dimensions(2, 40), *LISTS_ERRORS),
        kernels=1,
        plans=("fps_kernel", "fps_members", "fps_cpu"),
    ),
    OpInfo(
        "furthest_point_sample_ragged",
        ragged_call,
        sample_inputs=RAGGED_SAMPLE_INPUTS,
        error_inputs=(*FPS_ERRORS, *away_from_three_dimensions(40)),
        kernels=3,  # the unused slots, and clouds of up to 128 and 1024 tie codes
        plans=("fps_kernel", "fps_members", "fps_cpu"),
    ),
    OpInfo(
        "furthest_point_sample_with_dist",
        with_dist_call,
        varying={"distances": 0, "lengths": 0},
        sample_inputs=WITH_DIST_SAMPLE_INPUTS,
        error_inputs=refused("tie_block", ValueError, "tie_block must be", 48, 2048),
        huge={"num_samples": 1 << 50},
        kernels=1,
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
    **in_dtypes(lambda: gather_call(40), "features"),
    "no indices": lambda: {**gather_call(40), "idx": torch.zeros(2, 0, dtype=torch.int64)},
}
TWICE = torch.stack([gradcheck_cloud(9, 3)] * 2)
GATHER_GRADCHECK = {
    "channels last": lambda: {"features": TWICE, "idx": some_indices(12, 9)},
    "channels first": lambda: {
        "features": TWICE.mT.contiguous(), "idx": some_indices(12, 9), "channels_first": True
    },
}  # fmt: skip


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
    **in_dtypes(lambda: gather_backward_call(40), "grad"),
    # Runs of 256: one point takes 700 gradients.
    "one point": lambda: {
        **gather_backward_call(700),
        "idx": torch.ones(2, 700, dtype=torch.int32),
    },
}


GATHER_OPS = [
    OpInfo(
        "gather_points",
        gather_call,
        varying={"features": 1},
        sample_inputs=GATHER_SAMPLE_INPUTS,
        gradients=("features",),
        gradcheck_inputs=GATHER_GRADCHECK,
        supports_gradgrad=True,
        kernels=1,
        backward_kernels=4,
    ),
    OpInfo(
        "_gather_points_backward",
        gather_backward_call,
        varying={"grad": 1, "idx": 1},
        sample_inputs=GATHER_BACKWARD_SAMPLE_INPUTS,
        gradients=("grad",),
        gradcheck_inputs={
            "float64": lambda: {
                "grad": torch.stack([gradcheck_cloud(12, 3)] * 2),
                "idx": some_indices(12, 9),
                "num_points": 9,
            }
        },
        supports_gradgrad=True,
        kernels=5,
        backward_kernels=1,
        plans=("inverse_index",),
    ),
]

OPS = [*FPS_OPS, *GATHER_OPS]
