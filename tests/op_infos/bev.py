# SPDX-License-Identifier: Apache-2.0
"""Bird's-eye-view ops."""

import torch

from .op_info import (
    POINTS_ERRORS,
    Call,
    OpInfo,
    backward_call,
    cloud,
    generator,
    gradcheck_cloud,
    refused,
)

BEV_RANGE = [-4.0, -3.0, -2.0, 4.0, 3.0, 2.0]
BEV = {"point_cloud_range": BEV_RANGE, "size": [8, 6]}


def bev_call(n: int, seed: int = 0, columns: int = 4) -> Call:
    return {"points": cloud(n, columns, seed), **BEV, "num_valid": torch.tensor([n - n // 10])}


def bev_batch(n: int = 60, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 5, seed),
        **BEV,
        "batch_offsets": torch.tensor([0, 0, n // 3, n - 2], dtype=torch.int32),
        "num_valid": torch.tensor([4, n, n // 2], dtype=torch.int32),
        "orientation": "image",
    }


BEV_SAMPLE_INPUTS = {
    "batch": bev_batch,
    "float16": lambda: {"points": cloud(40).half(), **BEV},
    "bfloat16": lambda: {"points": cloud(40).bfloat16(), **BEV},
    "float64": lambda: {"points": cloud(40).double(), **BEV, "orientation": "north_up"},
    "nan fill": lambda: {"points": cloud(40, 3), **BEV, "fill": float("nan")},
    "uint8": lambda: {"points": cloud(40), **BEV, "out_dtype": torch.uint8, "lowest_code": 3},
    "uint16": lambda: {"points": cloud(40), **BEV, "out_dtype": torch.uint16},
}
BEV_ERRORS = (
    *POINTS_ERRORS,
    *refused("size", ValueError, "size must be", [4], [4, 4, 4], [0, 4], [4, -1], [4, 2**24 + 1]),
    ("point_cloud_range", [0.0, 0.0, 0.0, 1e-45, 1.0, 1.0], ValueError, "point_cloud_range|size"),
)
CODE_ERROR = ("lowest_code", 255, ValueError, "lowest_code must be in")


def bev_gradcheck() -> Call:
    return {"points": gradcheck_cloud(30), **BEV}


def bev_backward(forward: Call) -> Call:
    return backward_call("bev_max_height", forward, "points")


OPS = [
    *(
        OpInfo(
            name,
            bev_call,
            sample_inputs=BEV_SAMPLE_INPUTS,
            gradients=("points",),
            gradcheck_inputs={"float64": bev_gradcheck},
            step=1 / 128,
            error_inputs=(*BEV_ERRORS, CODE_ERROR),
            huge={"size": [1 << 24, 1 << 24]},
            kernels=1,  # all by one block
            plans=("bev_table",),
        )
        for name in ("bev_max_height", "bev_max_height_with_index")
    ),
    OpInfo(
        "_bev_max_height_backward",
        lambda n, seed=0: bev_backward(bev_call(n, seed)),
        sample_inputs={"batch": lambda: bev_backward(bev_batch())},
        error_inputs=BEV_ERRORS,
    ),
]

RASTER = {
    **BEV,
    "channels": [
        "height_max", "height_min", "height_mean", "height_range", "height_norm", "intensity_top",
        "intensity_mean", "intensity_max", "count", "density", "occupancy:5", "slices:3",
    ],
}  # fmt: skip


def raster_call(n: int, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 3, seed),
        **RASTER,
        "features": torch.randn(n, generator=generator(seed)),
        "num_valid": torch.tensor([n - n // 10]),
    }


def raster_batch() -> Call:
    return {**bev_batch(), "channels": RASTER["channels"], "fill": -1.0, "density_base": 16}


RASTER_SAMPLE_INPUTS = {
    "batch": raster_batch,
    "float16": lambda: {"points": cloud(40).half(), **RASTER, "orientation": "north_up"},
    "bfloat16": lambda: {"points": cloud(40).bfloat16(), **RASTER},
    "float64": lambda: {"points": cloud(40).double(), **RASTER},
    "no intensity": lambda: {
        "points": cloud(40, 3),
        **BEV,
        "channels": ["height_max", "slices:40"],
    },
    "column of features": lambda: {"points": cloud(40), **RASTER, "features": cloud(40)[:, 3:]},
}
BAD = (
    "", "color", "height", "Height_max", "slices", "occupancy", "slices:", "slices:0", "slices:-1",
    "slices:x", "slices:1.5", "count:2", "height_max:1", "slices:3:4", " count",
)  # fmt: skip
RASTER_ERRORS = (
    *BEV_ERRORS,
    *refused("channels", ValueError, "channels must", ["slices:257"], ["slices:256", "count"],
             ["slices:99999999999"], [f"slices:{10**30}"], *(["count", name] for name in BAD)),
    ("features", lambda t: t[:, None].repeat(1, 2), ValueError, r"features must be \[N[],]"),
    *(("points", {"channels": [f"intensity_{name}"], "features": None}, ValueError, "points must")
      for name in ("top", "mean", "max")),
)  # fmt: skip


def raster_gradcheck() -> Call:
    names = ["height_max", "height_mean", "height_norm", "intensity_top", "intensity_mean"]
    points = gradcheck_cloud(30, 4)
    return {
        "points": points[:, :3].clone(),
        **BEV,
        "channels": names,
        "features": points[:, 3].clone(),
    }


def raster_backward(forward: Call) -> Call:
    wanted = [name for name in ("points", "features") if name in forward]
    return backward_call("bev_rasterize", forward, *wanted)


OPS += [
    OpInfo(
        "bev_rasterize",
        raster_call,
        varying={"points": 0, "features": 0},
        sample_inputs=RASTER_SAMPLE_INPUTS,
        gradients=("points", "features"),
        gradcheck_inputs={"float64": raster_gradcheck},
        step=1 / 128,
        error_inputs=(
            *RASTER_ERRORS,
            *refused("density_base", ValueError, "density_base must be in", 1, 513),
        ),
        huge={"size": [1 << 24, 1 << 24], "channels": ["height_max"]},
        kernels=8,
        backward_kernels=3,
    ),
    OpInfo(
        "_bev_rasterize_backward",
        lambda n, seed=0: raster_backward(raster_call(n, seed)),
        varying={"points": 0, "features": 0},
        sample_inputs={"batch": lambda: raster_backward(raster_batch())},
        error_inputs=RASTER_ERRORS,
        kernels=3,
    ),
]
