# SPDX-License-Identifier: Apache-2.0
"""Pillar ops over the map of a small cloud."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import torchvox

from .op_info import Call, OpInfo, backward_call, cloud, generator, gradcheck_cloud, in_dtypes

GRID = {
    "voxel_size": [1.0, 1.0, 4.0],
    "point_cloud_range": [-4.0, -3.0, -1.5, 4.0, 3.0, 2.5],  # no middle is 0
}
SIZE = [8, 6]
HIGH = [-4.0, -3.0, -1.0, 4.0, 3.0, 3.0]  # a range
ROWS = 20  # of each of two samples
SLOTS = 3
OUTPUTS = 7
MAP = ("indices", "num_points", "point_voxel", "point_slot")


def mapped(points: Tensor, max_points: int = SLOTS, max_voxels: int = ROWS) -> Call:
    """Two samples, the first a third of the points."""
    n = points.size(0)
    offsets = torch.tensor([0, n // 3, n], dtype=torch.int32)
    found = torchvox.voxel_map(
        points, **GRID, max_points=max_points, max_voxels=max_voxels, batch_offsets=offsets
    )
    return {"points": points} | {name: getattr(found, name) for name in MAP}


def layer(columns: int, outputs: int = OUTPUTS, dtype: torch.dtype = torch.float32) -> Call:
    g = generator(columns)
    weight = torch.randn(outputs, columns, generator=g, dtype=torch.float64) * 0.4
    bias = torch.randn(outputs, generator=g, dtype=torch.float64) * 0.3
    return {"weight": weight.to(dtype), "bias": bias.to(dtype)}


def moments_call(n: int, seed: int = 0, columns: int = 4, max_points: int = SLOTS, **options):
    call = mapped(cloud(n, columns, seed), max_points)
    return {**call, **GRID, "max_points": max_points, **options}


def encode_call(
    n: int,
    seed: int = 0,
    columns: int = 4,
    outputs: int = OUTPUTS,
    max_points: int = SLOTS,
    **options,
) -> Call:
    width = columns + 3 + options.get("center_axes", 3)
    call = mapped(cloud(n, columns, seed), max_points) | layer(width, outputs) | GRID
    return {**call, "max_points": max_points, "batch_size": 2, **options}


def encode_in(points: torch.dtype, weight: torch.dtype, **options) -> Call:
    return encode_call(60, **options) | mapped(cloud(60).to(points)) | layer(10, OUTPUTS, weight)


MODES = {
    "two axes": {"center_axes": 2},
    "legacy": {"legacy": True},
    "legacy, two axes": {"legacy": True, "center_axes": 2},
    "legacy, two axes, high": {"legacy": True, "center_axes": 2, "point_cloud_range": HIGH},
    "no padding": {"pad_semantics": "none"},
    "three columns": {"columns": 3},
    "five columns": {"columns": 5},
    "six columns": {"columns": 6},
    "seven columns": {"columns": 7},
    "nine columns": {"columns": 9},
    "every point": {"max_points": -1},
    "no slots": {"max_points": 0},
    "many slots": {"max_points": 100},
}
ENCODE_SAMPLE_INPUTS = {
    **{name: lambda options=options: encode_call(60, **options) for name, options in MODES.items()},
    "64 channels": lambda: encode_call(60, outputs=64),
    "130 channels": lambda: encode_call(60, outputs=130),
    "one sample": lambda: {**encode_call(60), "batch_size": 1},
    "no samples": lambda: {**encode_call(60), "batch_size": 0},
    "crowded": lambda: {**encode_call(60), **crowded(), "max_points": -1},
    "half canvas": lambda: encode_call(60, outputs=64, out_dtype=torch.float16),
    "half layer": lambda: encode_in(torch.float32, torch.float16),
    "bfloat16": lambda: encode_in(torch.bfloat16, torch.bfloat16),
    "float64": lambda: encode_in(torch.float64, torch.float64),
    "float64 points": lambda: encode_in(torch.float64, torch.float32, out_dtype=torch.bfloat16),
    "float64 layer": lambda: encode_in(torch.float32, torch.float64),
    "one cell": lambda: {**encode_call(60), "indices": one_cell()},
}


# What the acceptance tests walk; tests/pillars takes all.
SOME = ["legacy, two axes", "no padding", "five columns", "six columns", "seven columns",
        "every point", "no samples", "130 channels", "half layer", "float64",
        "one cell"]  # fmt: skip
SOME_SAMPLE_INPUTS = {name: ENCODE_SAMPLE_INPUTS[name] for name in SOME}


def crowded() -> Call:
    """Sums of more than 32 points."""
    points = cloud(1200) * torch.tensor([0.05, 0.05, 0.5, 1.0])
    return mapped(points, -1)


def one_cell() -> Tensor:
    """Rows that share a cell: the lowest is shown."""
    indices = encode_call(60)["indices"]
    indices[1::3] = indices[0]
    return indices


def encode_gradcheck(**options) -> Call:
    axes = options.get("center_axes", 3)
    call = mapped(gradcheck_cloud(30, 4)) | layer(7 + axes, 4, torch.float64) | GRID
    return {**call, "max_points": SLOTS, "batch_size": 2, **options}


def decorated(call: Call) -> tuple[Tensor, Tensor]:
    """[V, P, D] rows, zeros in empty slots, and which slots are filled."""
    points, rows, slots = call["points"], call["point_voxel"].long(), call["point_slot"].long()
    stored = slots >= 0
    capacity = max(int(call["num_points"].max()), 1) if call["num_points"].numel() else 1
    padded = points.new_zeros(call["indices"].size(0), capacity, points.size(1))
    padded[rows[stored], slots[stored]] = points[stored]
    filled = torch.arange(capacity)[None] < call["num_points"][:, None]
    return decorate(padded, filled, call), filled


def decorate(padded: Tensor, filled: Tensor, call: Call) -> Tensor:
    axes = call.get("center_axes", 3)
    count = filled.sum(1).clamp(min=1)[:, None, None]
    mean = padded[..., :3].sum(1, keepdim=True) / count
    lower = torch.tensor(call["point_cloud_range"][:3], dtype=padded.dtype)
    size = torch.tensor(call["voxel_size"], dtype=padded.dtype)
    center = lower + (call["indices"][:, 1:].flip(1) + 0.5) * size
    offset = padded[..., :3] - center[:, None]
    own = padded
    if call.get("legacy"):
        own = torch.cat([offset[..., :axes], padded[..., axes:]], -1)
    rows = torch.cat([own, padded[..., :3] - mean, offset[..., :axes]], -1)
    return torch.where(filled[..., None], rows, 0)


def encode_backward_call(n: int, seed: int = 0, **options) -> Call:
    return backward_call("pillar_encode", encode_call(n, seed, **options), "weight", "bias")


def norm_call(n: int, seed: int = 0, outputs: int = OUTPUTS, dtype=torch.float32) -> Call:
    """The moments of a cloud of n points and the parameters of a layer."""
    moments = torchvox.pillar_moments(**moments_call(n, seed))
    shift = torch.randn(outputs, generator=generator(outputs), dtype=torch.float64)
    norm = {"gamma": shift.flip(0).to(dtype), "beta": (0.3 * shift).to(dtype), "eps": 1e-3}
    return {"moments": moments, "weight": layer(10, outputs, dtype)["weight"], **norm}


def norm_backward_call(n: int, seed: int = 0) -> Call:
    return backward_call("pillar_norm", norm_call(n, seed), "weight", "gamma", "beta")


def scatter_call(n: int, seed: int = 0, channels: int = 8) -> Call:
    """n rows of different cells of two samples, some unused, some outside."""
    order = torch.randperm(max(2 * 48, n), generator=generator(seed))[:n]
    cells = torch.stack([order // 48, order * 0, order % 48 // 8, order % 8], 1).int()
    cells[3::7] = -1
    feats = cloud(n, channels, seed)[:, :channels]
    return {"feats": feats, "indices": cells, "batch_size": 2, "size": SIZE}


def scatter_backward_call(n: int, seed: int = 0) -> Call:
    return backward_call("pillar_scatter", scatter_call(n, seed), "feats")


MAP_ERRORS = (
    ("points", lambda t: t[:, :2], ValueError, r"points must be \[N, C\] with C >= 3"),
    ("voxel_size", [1.0, 1.0, 2.0], ValueError, "must give one cell along z"),
    ("center_axes", 1, ValueError, "center_axes must be 2 or 3"),
)
MANY_SAMPLE_INPUTS = {"batch_size": (1 << 31) - 1}
HUGE_CANVAS = {**MANY_SAMPLE_INPUTS, "voxel_size": [1e-3, 1e-3, 4.0]}
OF_POINTS = {"points": 0, "point_voxel": 0, "point_slot": 0}

PILLAR_PLANS = ("pillar_common", "pillar_lists", "pillar_cpu")
ENCODE = OpInfo(
    "pillar_encode",
    encode_call,
    varying=OF_POINTS,
    coupled_inputs=MAP,
    sample_inputs=SOME_SAMPLE_INPUTS,
    gradients=("weight", "bias"),
    gradcheck_inputs={
        name: partial(encode_gradcheck, **MODES.get(name, {}))
        for name in ["plain", *list(MODES)[:4]]
    },
    non_differentiable=("points",),
    error_inputs=MAP_ERRORS,
    huge=HUGE_CANVAS,
    kernels=3,
    backward_kernels=2,
    plans=PILLAR_PLANS,
)
OPS = [
    ENCODE,
    replace(
        ENCODE,
        name="_pillar_encode_train",
        sample_inputs={k: ENCODE_SAMPLE_INPUTS[k] for k in ("legacy", "every point", "float64")},
        gradients=(),
        gradcheck_inputs={},
        non_differentiable=(),
    ),
    OpInfo(
        "_pillar_encode_backward",
        encode_backward_call,
        sample_inputs={
            "legacy, two axes": lambda: encode_backward_call(60, **MODES["legacy, two axes"]),
            "six columns": lambda: encode_backward_call(60, columns=6),
            "seven columns": lambda: encode_backward_call(60, columns=7),
            "nine columns": lambda: encode_backward_call(60, columns=9),
            "130 channels": lambda: encode_backward_call(60, outputs=130),
            "to bfloat16": lambda: {**encode_backward_call(60), "dtype": torch.bfloat16},
        },
        kernels=2,
        plans=("pillar_common", "pillar_lists"),
    ),
    OpInfo(
        "pillar_moments",
        moments_call,
        varying=OF_POINTS,
        coupled_inputs=MAP,
        sample_inputs={
            "legacy, two axes": lambda: moments_call(60, **MODES["legacy, two axes"]),
            "nine columns": lambda: moments_call(60, columns=9),
            "crowded": lambda: {**moments_call(60), **crowded(), "max_points": -1},
            "float64": lambda: moments_call(60) | mapped(cloud(60).double()),
        },
        error_inputs=(
            *MAP_ERRORS,
            ("points", lambda t: t.repeat(1, 7), ValueError, "points must have at most 24 columns"),
        ),
        inference=True,
        kernels=5,
        plans=("pillar_lists",),
    ),
    OpInfo(
        "pillar_norm",
        norm_call,
        varying={},
        sample_inputs={
            "many outputs": lambda: norm_call(60, outputs=70),
            **in_dtypes(lambda: norm_call(60), "weight", "gamma", "beta"),
        },
        gradients=("weight", "gamma", "beta"),
        differentiable=(0, 1),
        gradcheck_inputs={"plain": lambda: norm_call(60, dtype=torch.float64)},
        non_differentiable=("moments",),
    ),
    OpInfo("_pillar_norm_backward", norm_backward_call, varying={}),
    OpInfo(
        "pillar_scatter",
        scatter_call,
        varying={"feats": 0, "indices": 0},
        sample_inputs={
            **in_dtypes(lambda: scatter_call(40), "feats"),
            "seven channels": lambda: scatter_call(40, channels=7),
            "no channels": lambda: {**scatter_call(40), "feats": torch.zeros(40, 0)},
            "no samples": lambda: {**scatter_call(40), "batch_size": 0},
            "one cell": lambda: {**scatter_call(60), "indices": one_cell().repeat(2, 1)[:60]},
        },
        gradients=("feats",),
        gradcheck_inputs={"plain": lambda: {**scatter_call(20), "feats": gradcheck_cloud(20, 8)}},
        error_inputs=(("size", [0, 6], ValueError, r"size must be \(nx, ny\)"),),
        huge={**MANY_SAMPLE_INPUTS, "size": [1 << 12, 1 << 12]},
        kernels=3,
        backward_kernels=3,
    ),
    OpInfo("_pillar_scatter_backward", scatter_backward_call, varying={"indices": 0}, kernels=3),
]
