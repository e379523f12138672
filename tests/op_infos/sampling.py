# SPDX-License-Identifier: Apache-2.0
"""Sampling ops."""

import torch
from torch import Tensor

from .op_info import NAN, Call, OpInfo, cloud, generator, in_dtypes, refused

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

OPS = [
    OpInfo(
        "furthest_point_sample",
        fps_call,
        varying={"points": 1},
        sample_inputs=FPS_SAMPLE_INPUTS,
        error_inputs=(*FPS_ERRORS, *away_from_three_dimensions(2, 40), *LISTS_ERRORS),
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
    ),
]
