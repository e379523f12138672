# SPDX-License-Identifier: Apache-2.0
"""Rays through voxels, and sweeps to a network's input."""

import torch
from torch import Tensor

from . import op_info
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

# Two boxes. Finite: torch 2.11 does not load an AOTInductor package of infinite numbers in lists.
CAR = [-1.0, -0.5, -99.0, 1.5, 0.5, 1.0, 2.0, 2.0, 0.0, 3.0, 3.0, 9.0]


def sweeps(n: int, columns: int = 4, seed: int = 0, slots: int = 3) -> Tensor:
    return cloud(slots * n, columns, seed).reshape(slots, n, columns)


def poses(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, 3, 4, dtype=torch.float64, generator=generator(seed + 1))


def merge_call(n: int, seed: int = 0, **options) -> Call:
    """With all options: knots at times -1 to 2, times before and after them, a slot that is packed
    twice, one that there is not, and lengths out of range."""
    times = torch.rand(3, n, dtype=torch.float64, generator=generator(seed)) * 5 - 2
    times[:, 3::17] = NAN
    lengths = torch.tensor([n - n // 3, n + 9, n // 2], dtype=torch.int32)
    age = torch.tensor([0.0, 0.1, NAN], dtype=torch.float64)
    knots = torch.arange(-1.0, 3.0, dtype=torch.float64).repeat(3, 1)
    order = torch.tensor([2, 1, 3, 0, 1])
    call = {"points": sweeps(n, 4, seed), "lengths": lengths, "poses": poses(3, 4, seed=seed)}
    call |= {"order": order, "age": age, "times": times, "knots": knots, "drop_boxes": CAR}
    return {**call, **options}


def plain_merge(n: int, slots: int = 3, **options) -> Call:
    return {"points": sweeps(n, slots=slots), "poses": poses(slots), **options}


def crop_call(n: int, seed: int = 0, **options) -> Call:
    lengths = torch.tensor([n, n // 2, -1])
    call = {"points": sweeps(n, 5, seed), "lengths": lengths, "drop_boxes": CAR}
    return {**call, "keep_range": RANGE, "finite": "all", **options}


FIELDS = {"i1": 0, "u1": 1, "i2": 3, "u2": 2, "i4": 5, "u4": 9, "f4": 13, "f8": 18}  # overlapping


def unpack_call(n: int, seed: int = 0, **options) -> Call:
    data = torch.randint(256, (n, 60), dtype=torch.uint8, generator=generator(seed))
    call = {"data": data, "point_step": 27, "offsets": list(FIELDS.values()), "types": list(FIELDS)}
    ramp = torch.arange(8.0, dtype=torch.float64)
    return {**call, "shift": ramp - 2, "scale": 1 / (ramp + 3), **options}


NARROW = dict.fromkeys(("poses", "age", "times", "knots"), torch.float32)
BOX = r"must be \(x0, y0, z0, x1, y1, z1\)"
MERGE_ERRORS = (
    ("points", torch.Tensor.double, TypeError, "points must be float32, got float64"),
    ("knots", None, ValueError, "times and knots must be given together, got times"),
    ("knots", lambda t: t[:, :1], ValueError, r"knots must be \[S, K\] .*with K >= 2"),
    ("order", torch.zeros(65).int(), ValueError, "order must have 64 sweeps at most, got 65"),
    *refused("drop_boxes", ValueError, BOX, [0.0] * 5, [0.0] * 5 + [NAN], [0.0] * 6 * 33),
)
CROP_ERRORS = (
    ("points", torch.Tensor.half, TypeError, "points must be float32, got float16"),
    *refused("keep_range", ValueError, BOX, [0.0] * 5, [0.0] * 12, [NAN] * 6),
    ("finite", "some", ValueError, "finite must be 'xyz' or 'all', got 'some'"),
)
UNPACK_ERRORS = (
    ("point_step", 0, ValueError, "point_step must be in .* got 0"),
    ("point_step", 25, ValueError, "offsets must leave every field within point_step"),
    ("offsets", [-1] * 8, ValueError, "offsets must leave every field within point_step"),
    ("offsets", [0], ValueError, "types must be of 1 to 64 fields, and offsets as many"),
    *refused("types", ValueError, "types must be of i1, u1, .* f8, got", ["1u"] * 8, ["f2"] * 8),
)

OPS = [
    OpInfo(
        "merge_sweeps",
        merge_call,
        varying={"points": 1, "times": 1},
        sample_inputs={
            "no rows": lambda: plain_merge(0),
            "no sweeps": lambda: plain_merge(5, slots=0),
            "no sweeps, an order": lambda: plain_merge(5, slots=0, order=torch.arange(2)),
            "no slot": lambda: plain_merge(9, order=torch.tensor([-1, 3])),
            "no order": lambda: plain_merge(9, order=torch.zeros(0).int()),
            "64 sweeps": lambda: plain_merge(300, order=torch.arange(64) % 3),
            "results out of float32": lambda: plain_merge(40, poses=poses(3) * 1e38),
            "knots at one time": lambda: merge_call(30, knots=torch.tensor([[-1.0, 0, 2, 2]] * 3)),
            "float32": lambda: op_info.cast(merge_call(30), **NARROW),
        },
        error_inputs=MERGE_ERRORS,
        kernels=2,
        inference=True,
    ),
    OpInfo(
        "crop_points",
        crop_call,
        varying={"points": 1},
        sample_inputs={
            "one cloud": lambda: {"points": cloud(60), "lengths": torch.tensor([50]).int()},
            "xyz alone": lambda: crop_call(60, finite="xyz", lengths=None),
            "a box without a floor": lambda: crop_call(60, drop_boxes=[-1, -1, -INF, 1, 1, INF]),
            "tiles": lambda: crop_call(512),
            "many clouds": lambda: {"points": sweeps(3, slots=900), "keep_range": RANGE},
            "no clouds": lambda: {"points": sweeps(5, slots=0)},
            "no rows": lambda: {"points": cloud(0)},
        },
        error_inputs=CROP_ERRORS,
        kernels=2,
        inference=True,
    ),
    OpInfo(
        "unpack_points",
        unpack_call,
        varying={"data": 0},
        sample_inputs={
            "one cloud": lambda: unpack_call(120, data=torch.arange(120, dtype=torch.uint8)),
            "shift": lambda: unpack_call(5, scale=None),
            "bytes of a field": lambda: unpack_call(9, shift=None),
            "no point": lambda: unpack_call(3, data=torch.zeros(3, 26, dtype=torch.uint8)),
        },
        error_inputs=UNPACK_ERRORS,
        inference=True,
    ),
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
