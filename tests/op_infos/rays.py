# SPDX-License-Identifier: Apache-2.0
"""Rays through voxels."""

import torch
from torch import Tensor

from .op_info import INF, NAN, POINTS_ERRORS, Call, OpInfo, cloud, generator, in_dtypes, refused

RANGE = [-4.0, -3.0, -2.0, 4.0, 5.0, 2.0]
SIZE = [0.5, 0.4, 1.0]


def sensor(n: int = 1, seed: int = 0) -> Tensor:
    """[n, 3] positions, some on voxel corners, one not finite where there are many."""
    origins = (torch.rand(n, 3, generator=generator(seed + 5)) * 8 - 4).round() / 4
    origins[7::11, 1] = NAN
    return origins


def flags(n: int) -> Tensor:
    """Every sum of the four bits."""
    return (torch.arange(n) % 16).to(torch.uint8)


def ray_arguments(n: int, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 4, seed),
        "origins": sensor(5, seed),
        "origin_index": torch.arange(n) % 6,  # some name no row
        "num_valid": torch.tensor([n - n // 10], dtype=torch.int32),
        "ray_flags": flags(n),
    }


MAP = {"voxel_size": 0.4, "map_origin": [0.1, -0.2, 0.0]}
CLIP = {"point_cloud_range": RANGE, "min_range": 0.5, "max_range": 4.0}


def map_call(n: int, seed: int = 0, **options) -> Call:
    return {**ray_arguments(n, seed), **MAP, "max_out": 3000, **options}


def visibility_call(n: int, seed: int = 0, **options) -> Call:
    grid = {"voxel_size": SIZE, "point_cloud_range": RANGE}
    return {**ray_arguments(n, seed), **grid, **options}


def batch_call(n: int = 60, **options) -> Call:
    call = visibility_call(
        n,
        origins=sensor(3),
        origin_index=None,
        batch_offsets=torch.tensor([0, 0, n // 3, n - 2]),
        num_valid=torch.tensor([4, n, n // 2]),
    )
    return {**call, **options}


def blockers(samples: int, dtype: torch.dtype) -> Tensor:
    return (torch.rand(samples, 4, 20, 16, generator=generator(2)) < 0.2).to(dtype)


RAYS_ERRORS = (
    *(row for row in POINTS_ERRORS if row[0] in ("points",)),
    ("origins", {"origin_index": None}, ValueError, "origins must have one row per sample"),
)  # fmt: skip
MAP_ERRORS = (
    *RAYS_ERRORS,
    ("num_valid", torch.zeros(2).int(), ValueError, r"num_valid must be \[B\]"),
    *refused("map_origin", ValueError, "map_origin must be", [0.0] * 2, [0.0, 0.0, INF]),
)  # fmt: skip
RANGE_ERRORS = (
    *refused("point_cloud_range", ValueError, "point_cloud_range must be", [0.0] * 3,
             [0.0, 0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0, INF, 1.0]),
)  # fmt: skip
RAY_SAMPLE_INPUTS = {
    "clipped": lambda: map_call(50, **CLIP),
    "long rays dropped": lambda: map_call(50, max_range=3.0, long_rays="drop"),
    "few rows": lambda: map_call(50, max_out=20),
    "no rows": lambda: map_call(40, max_out=0),
    "one origin": lambda: map_call(40, origins=sensor(), origin_index=None, ray_flags=None),
    "origins in float64": lambda: map_call(40, origins=sensor(5).double()),
    **in_dtypes(lambda: map_call(60), "points"),
}

OPS = [
    OpInfo(
        "transform_points",
        lambda n, seed: {
            "points": cloud(n, 4, seed),
            "poses": torch.randn(3, 3, 4, dtype=torch.float64, generator=generator(seed)),
            "pose_index": torch.arange(n) % 4,
        },
        varying={"points": 0, "pose_index": 0},
        sample_inputs={
            "one pose": lambda: {"points": cloud(40), "poses": torch.eye(4)[None, :3]},
            **in_dtypes(
                lambda: {"points": cloud(60), "poses": torch.arange(12.0).reshape(1, 3, 4)},
                "points",
                "poses",
            ),
        },
        error_inputs=(
            *(row for row in POINTS_ERRORS if row[0] in ("points",)),
            ("poses", {"pose_index": None}, ValueError, "poses must be one where pose_index"),
        ),
        inference=True,
    ),
    OpInfo(
        "ray_visibility",
        visibility_call,
        varying={"points": 0, "origin_index": 0, "ray_flags": 0},
        sample_inputs={
            "batch": batch_call,
            "blockers": lambda: batch_call(blockers=blockers(3, torch.uint8)),
            "blockers of bool": lambda: batch_call(blockers=blockers(3, torch.bool)),
            "one origin": lambda: visibility_call(40, origins=sensor(), origin_index=None),
            **in_dtypes(batch_call, "points"),
        },
        kernels=4,
        error_inputs=(
            *RAYS_ERRORS,
            *(row for row in POINTS_ERRORS
              if row[0] == "batch_offsets" or row[0] == "point_cloud_range"),
            ("voxel_size", [1.0, 0.0, 1.0], ValueError, "voxel_size must be"),
            ("blockers", torch.zeros(1, 4, 20, 16), TypeError, "blockers must be uint8 or bool"),
            *refused("blockers", ValueError, r"blockers must be \[B, nz, ny, nx\]",
                     torch.zeros(1, 16, 20, 4).bool(), torch.zeros(4, 20, 16).bool()),
        ),
    ),
    OpInfo(
        "ray_voxels",
        map_call,
        varying={"points": 0, "origin_index": 0, "ray_flags": 0},
        sample_inputs={**RAY_SAMPLE_INPUTS, "reverse": lambda: map_call(40, reverse=True, **CLIP)},
        kernels=5,
        error_inputs=(*MAP_ERRORS, *RANGE_ERRORS),
    ),
    OpInfo(
        "ray_regions",
        map_call,
        varying={"points": 0, "origin_index": 0, "ray_flags": 0},
        sample_inputs=RAY_SAMPLE_INPUTS,
        kernels=25,  # 20 of them sort 64-bit keys
        error_inputs=(*MAP_ERRORS, *RANGE_ERRORS),
    ),
]  # fmt: skip
