# SPDX-License-Identifier: Apache-2.0
"""Voxel ops, and reductions over segments."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import torchvox

from .op_info import (
    INF,
    POINTS_ERRORS,
    Call,
    OpInfo,
    backward_call,
    cloud,
    generator,
    gradcheck_cloud,
    in_dtypes,
    refused,
)

VOXEL_RANGE = [-4.0, -3.0, -2.0, 4.0, 3.0, 2.0]
GRID = {"voxel_size": [1.0, 1.0, 2.0], "point_cloud_range": VOXEL_RANGE}
REDUCTIONS = ("mean", "max", "min", "sum")

ROWS = 9


def rows_of_points(n: int, seed: int = 0) -> Tensor:
    """[n] int32: rows without points, dropped points, and rows outside the table."""
    return torch.randint(-2, ROWS + 1, (n,), generator=generator(seed), dtype=torch.int32)


def csr_call(n: int, seed: int = 0) -> Call:
    return {"point_voxel": rows_of_points(n, seed), "num_rows": ROWS}


def scatter_call(n: int, seed: int = 0, **options) -> Call:
    feats = cloud(n, 5, seed)
    return {"feats": feats, "point_voxel": rows_of_points(n, seed), "num_rows": ROWS, **options}


def scatter_with_csr() -> Call:
    offsets, perm = torchvox.voxel_csr(rows_of_points(40), ROWS)
    return scatter_call(40, offsets=offsets, perm=perm)


SCATTER_SAMPLE_INPUTS = {
    **{name: lambda name=name: scatter_call(40, reduce=name) for name in ("sum", "max", "min")},
    **in_dtypes(lambda: scatter_call(40), "feats"),
    "given csr": scatter_with_csr,
    "no rows": lambda: {**scatter_call(40), "num_rows": 0},
    "no columns": lambda: {**scatter_call(40), "feats": torch.zeros(40, 0)},
    # Sums of 32 and of 32 such sums.
    "one row": lambda: {**scatter_call(1200), "point_voxel": torch.zeros(1200, dtype=torch.int32)},
}
SCATTER_GRADCHECK = {
    name: lambda name=name: {**scatter_call(30, reduce=name), "feats": gradcheck_cloud(30)}
    for name in REDUCTIONS
}


def scatter_backward_call(n: int, seed: int = 0, reduce: str = "mean") -> Call:
    return backward_call("voxel_scatter", scatter_call(n, seed, reduce=reduce), "feats")


OFFSETS, PERM = torch.zeros(ROWS + 1).int(), torch.zeros(40).int()
OPS = [
    OpInfo(
        "voxel_csr",
        csr_call,
        varying={"point_voxel": 0},
        sample_inputs={
            "no rows": lambda: {**csr_call(40), "num_rows": 0},
            "many rows": lambda: {**csr_call(40), "num_rows": 1000},
        },
        kernels=3,
    ),
    OpInfo(
        "voxel_scatter",
        scatter_call,
        varying={"feats": 0, "point_voxel": 0},
        sample_inputs=SCATTER_SAMPLE_INPUTS,
        gradients=("feats",),
        gradcheck_inputs=SCATTER_GRADCHECK,
        error_inputs=(
            *refused("offsets", ValueError, "offsets and perm", OFFSETS, {"perm": PERM}),
            ("offsets", {"offsets": OFFSETS[1:], "perm": PERM}, ValueError, "offsets must be"),
            ("perm", {"offsets": OFFSETS, "perm": PERM[1:]}, ValueError, "perm must be"),
            ("offsets", {"offsets": OFFSETS.float(), "perm": PERM}, TypeError, "offsets must be"),
            ("perm", {"offsets": OFFSETS, "perm": PERM.float()}, TypeError, "perm must be"),
        ),
        kernels=4,
    ),
    OpInfo(
        "_voxel_scatter_backward",
        scatter_backward_call,
        varying={"point_voxel": 0},
        sample_inputs={
            "max": lambda: scatter_backward_call(40, reduce="max"),
            "sum": lambda: scatter_backward_call(40, reduce="sum"),
        },
    ),
]


def voxelize_call(n: int, seed: int = 0, **options) -> Call:
    """As many rows as points: no cap, so that the capacity varies with n."""
    return {
        "points": cloud(n, 4, seed),
        **GRID,
        "max_points": 3,
        "max_voxels": -1,
        "reduce": "mean",
        "num_valid": torch.tensor([n - n // 10]),
        **options,
    }


def voxel_batch(n: int = 60, seed: int = 0) -> Call:
    return {
        "points": cloud(n, 5, seed),
        **GRID,
        "max_points": 2,
        "max_voxels": 7,
        "batch_offsets": torch.tensor([0, 0, n // 3, n - 2], dtype=torch.int32),
        "num_valid": torch.tensor([4, n, n // 2], dtype=torch.int32),
    }


def with_bad_features(call: Call) -> Call:
    """Features that are not finite in every column, some of points out of range."""
    points = call["points"]
    for column in range(3, points.size(1)):
        for k, value in enumerate((float("nan"), INF, -INF)):
            points[2 * column + k :: 23, column] = value
    return {**call, "finite": "all"}


MAP_SAMPLE_INPUTS = {
    "batch": voxel_batch,
    "zyx": lambda: {**voxel_batch(), "order": "zyx"},
    "xyz in range": lambda: {**voxel_batch(), "order": "xyz", "bounds": "range"},
    "all finite": lambda: with_bad_features(voxel_batch()),
    "no voxels": lambda: {**voxel_batch(), "max_voxels": 0},
    "no points kept": lambda: {**voxel_batch(), "max_points": 0},
    **in_dtypes(voxel_batch, "points"),
}
VOXELIZE_SAMPLE_INPUTS = {
    **MAP_SAMPLE_INPUTS,
    **{name: partial(voxelize_call, 60, reduce=name, max_points=-1) for name in REDUCTIONS},
    "center relative half": lambda: voxelize_call(
        60, reduce="none", out_dtype=torch.float16, center_relative=True
    ),
    "all finite, one sample": lambda: with_bad_features(voxelize_call(3000)),
    "half mean": lambda: voxelize_call(60, out_dtype=torch.float16, bounds="range"),
    "forty slots": lambda: voxelize_call(3000, reduce="none", max_points=40),
    "ten of many": lambda: voxelize_call(3000, max_points=10, max_voxels=30, order="zyx"),
}
METERS = {"voxel_size": [1.0] * 3}
VOXEL_ERRORS = (
    *POINTS_ERRORS,
    ("finite", "some", ValueError, "finite must be 'xyz' or 'all', got 'some'"),
    *refused("voxel_size", ValueError, "voxel_size must be", [1.0, 1.0], [1.0] * 4,
             *([1.0, 1.0, size] for size in (0.0, -1.0, INF, 1e-50))),
    # Less than half a cell, more than 2^24, keys past int64 of one sample and of three.
    ("voxel_size", [17.0, 1.0, 1.0], ValueError, "point_cloud_range"),
    ("voxel_size", [4e-7, 1.0, 1.0], ValueError, r"an axis must have at most 2\^24"),
    ("voxel_size", {**METERS, "point_cloud_range": [0.0] * 3 + [2.0**24] * 3}, ValueError,
     "16777216"),
    ("voxel_size", {**METERS, "point_cloud_range": [0.0] * 3 + [2.0**24, 2.0**24, 2.0**14],
                    "batch_offsets": torch.tensor([0, 10, 20, 40]), "num_valid": None},
     ValueError, "3.*16777216.*16384|16777216.*16384.*3"),
    *(
        ("max_voxels", {"max_voxels": cap, "batch_offsets": torch.zeros(samples + 1).int(),
                        "num_valid": None}, ValueError, r"max_voxels must keep B \* max_voxels")
        for samples, cap in ((4, 1 << 62), (8, (1 << 61) + 1), (2, (1 << 63) - 1))
    ),
)  # fmt: skip


def voxelize_gradcheck(reduce: str, **options) -> Call:
    return {
        "points": gradcheck_cloud(30, 4),
        **GRID,
        "max_points": 2 if reduce == "none" else -1,
        "max_voxels": -1,
        "reduce": reduce,
        **options,
    }


def map_call(n: int, seed: int = 0) -> Call:
    return {k: v for k, v in voxelize_call(n, seed).items() if k != "reduce"}


def voxelize_backward_call(n: int, seed: int = 0, reduce: str = "mean") -> Call:
    return backward_call("voxelize", voxelize_call(n, seed, reduce=reduce), "points")


VOXELIZE_ERRORS = (
    *VOXEL_ERRORS,
    ("max_points", {"max_points": -1, "reduce": "none"}, ValueError, "max_points must be"),
)
VOXEL_PLANS = tuple(f"voxel_{of}" for of in ("table", "ranking", "kernels", "common", "partitions"))
VOXELIZE = OpInfo(
    "voxelize",
    voxelize_call,
    sample_inputs=VOXELIZE_SAMPLE_INPUTS,
    gradients=("points",),
    gradcheck_inputs={
        **{name: lambda name=name: voxelize_gradcheck(name) for name in ("none", *REDUCTIONS)},
        "center relative": lambda: voxelize_gradcheck("mean", center_relative=True),
    },
    error_inputs=VOXELIZE_ERRORS,
    huge={"max_voxels": 1 << 45},
    kernels=1,  # all steps in one cooperative launch
    plans=VOXEL_PLANS,
)
INFERENCE = replace(VOXELIZE, gradients=(), gradcheck_inputs={}, huge={})
OPS += [
    VOXELIZE,
    replace(INFERENCE, name="_voxelize_train"),
    replace(
        INFERENCE,
        name="voxel_map",
        call=map_call,
        sample_inputs=MAP_SAMPLE_INPUTS,
        error_inputs=VOXEL_ERRORS,
    ),
    OpInfo(
        "_voxelize_backward",
        voxelize_backward_call,
        varying={"grad": 0, "point_voxel": 0, "point_slot": 0, "num_points": 0},
        sample_inputs={
            "none": lambda: voxelize_backward_call(40, reduce="none"),
            "max": lambda: voxelize_backward_call(40, reduce="max"),
            "to float64": lambda: {**voxelize_backward_call(40), "dtype": torch.float64},
        },
    ),
]


def offsets_of(entries: int) -> Tensor:
    """Nine segments: the first entry in none, empty ones, half of all entries in one."""
    parts = [1, 1, 2, entries // 8, entries // 8, entries // 2, *[entries * 3 // 4] * 3, entries]
    return torch.tensor(parts)


def segment_call(n: int, seed: int = 0, **options) -> Call:
    return {"src": cloud(n, 5, seed), "offsets": offsets_of(n), **options}


def some_index(entries: int, n: int) -> Tensor:
    """Repeats, and entries that name no row."""
    return torch.randint(-2, n + 2, (entries,), generator=generator(1))


def indexed_call(reduce: str = "sum", n: int = 40, **options) -> Call:
    index = some_index(3 * n, n)
    return segment_call(n, offsets=offsets_of(3 * n).int(), reduce=reduce, index=index, **options)


def gradcheck_call(reduce: str, indexed: bool) -> Call:
    call = {"src": gradcheck_cloud(20), "offsets": offsets_of(20), "reduce": reduce}
    return {**call, "offsets": offsets_of(50), "index": some_index(50, 20)} if indexed else call


def reduce_backward_call(n: int, seed: int = 0, reduce: str = "sum") -> Call:
    """Of n entries over 40 rows."""
    entries = {"offsets": offsets_of(n), "index": some_index(n, 40)}
    return backward_call("segment_reduce", segment_call(40, seed, reduce=reduce, **entries), "src")


def plain_backward_call(reduce: str) -> Call:
    return {**reduce_backward_call(40, reduce=reduce), "index": None}


OPS += [
    OpInfo(
        "segment_reduce",
        segment_call,
        varying={"src": 0},
        sample_inputs={
            **{name: lambda name=name: segment_call(40, reduce=name) for name in REDUCTIONS},
            **{f"{name} of index": lambda name=name: indexed_call(name) for name in REDUCTIONS},
            **in_dtypes(lambda: segment_call(40), "src"),
            "no segments": lambda: segment_call(40, offsets=torch.zeros(1).long()),
            "no columns": lambda: {**segment_call(40), "src": torch.zeros(40, 0)},
            "no rows": lambda: indexed_call("max", src=torch.zeros(0, 5)),
            "in disorder": lambda: segment_call(40, offsets=torch.tensor([30, -9, 90, 2, 35])),
            # Sums of 32 and of 32 such sums, before a rest of 256 and 4; words of 4 channels.
            "long": lambda: {"src": cloud(2308, 4), "offsets": torch.tensor([0, 2308])},
        },
        gradients=("src",),
        gradcheck_inputs={
            f"{name}{', index' * indexed}": partial(gradcheck_call, name, indexed)
            for name in REDUCTIONS
            for indexed in (False, True)
        },
        error_inputs=(
            ("index", torch.zeros(3), TypeError, "index must be int32 or int64"),
            ("index", torch.zeros(3, 1).int(), ValueError, r"index must be \[E\]"),
        ),
    ),
    OpInfo(
        "_segment_reduce_backward",
        reduce_backward_call,
        varying={"index": 0},
        sample_inputs={
            **{name: lambda name=name: plain_backward_call(name) for name in REDUCTIONS},
            **{f"{k} of index": partial(reduce_backward_call, 120, 0, k) for k in REDUCTIONS[:3]},
        },
        kernels=6,
    ),
]  # fmt: skip
