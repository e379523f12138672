# SPDX-License-Identifier: Apache-2.0
"""Sparse convolution: maps over lines of more than 64 cells, and layers over such maps."""

from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor

from .op_info import DTYPES, Call, OpInfo, backward_call, cast, generator, in_dtypes, refused

ops = torch.ops.torchvox
SHAPE = [3, 4, 70]  # z, y, x: a line has cells of two segments of 64
BATCH = 2
INT_MIN = -(1 << 31)


def cells_of(n: int, seed: int = 0) -> Tensor:
    """[n, 4] int32 (b, z, y, x) about x = 63 and 64, and wider with many: some twice, some outside,
    rows of -1 between them."""
    first = 70 - min(70, 12 + n // 16)
    low, high = torch.tensor([0, 0, 0, first]), torch.tensor([BATCH, *SHAPE])
    part = torch.rand(n, 4, generator=generator(seed), dtype=torch.float64)
    cells = (low + part * (high - low)).int()
    cells[1::9] = cells[0::9][: len(cells[1::9])]
    cells[3::17] = -1
    cells[4::19, 3] = 70
    cells[6::23, 0] = BATCH
    return cells


def rows(*cells: tuple[int, ...]) -> Tensor:
    return torch.tensor(cells, dtype=torch.int32).reshape(-1, 4)


def block(*sizes: int, step: int = 1) -> Tensor:
    """Every step-th cell of a block in two samples, in no order."""
    found = torch.tensor(list(product(range(BATCH), *(range(0, n, step) for n in sizes)))).int()
    return found[torch.randperm(len(found), generator=generator(1))]


def map_call(n: int, seed: int = 0, kernel=(3, 3, 3), **options) -> Call:
    call = {"spatial_shape": SHAPE, "batch_size": BATCH, "kernel_size": list(kernel)}
    return {"indices": cells_of(n, seed), **call, **options}


def conv_map_call(n: int, seed: int = 0, **options) -> Call:
    """That of a layer which halves the grid."""
    return map_call(n, seed, **{"stride": [2, 2, 2], "padding": [1, 1, 1], **options})


def counts_of(first: int) -> Tensor:
    """As the counts of a map, of which the first element is read."""
    return torch.tensor([[first, 9, 9, 9]] + [[-1] * 4] * BATCH, dtype=torch.int32)


LONG, FAR = (1 << 24) - 1, 1 << 30
ROW_COUNTS = {
    "no rows in use": torch.tensor(0),
    "one row in use": torch.tensor([1]),
    "rows in use as counts": counts_of(33),
    "fewer than no rows": torch.tensor([INT_MIN], dtype=torch.int32),
    "more rows than there are": torch.tensor(1 << 40),
}
MAPS = {  # options of both maps
    **{name: {"num_valid": count} for name, count in ROW_COUNTS.items()},
    "all neighbors": {"indices": block(3, 4, 5)},
    "no neighbors": {"indices": block(3, 4, 70, step=2)},
    "one line": {"indices": rows(*((1, 2, 1, x) for x in range(69, -1, -1)))},
    "neighbors in three lines of the table": {
        "indices": rows(*((1, 2, 1, x) for x in range(70))),
        "kernel_size": [1, 1, 3],
        "dilation": [1, 1, 5],
        "padding": [0, 0, 5],
    },
    "a sample that ends between segments with outputs": {
        "indices": rows((1, 0, 0, 96), (0, 0, 0, 6)),
        "spatial_shape": [1, 1, 160],
        "kernel_size": [1, 1, 1],
        "padding": [0, 0, 0],
    },
    "corners": {"indices": rows(*product((0, 1), (0, 2), (0, 3), (0, 63, 64, 69)))},
    "a long axis": {
        "indices": rows(*((b, 0, 0, x) for b in (1, 0) for x in (0, LONG, 4095, 4096, LONG - 1))),
        "spatial_shape": [1, 1, LONG + 1],
        "kernel_size": [1, 1, 3],
        "padding": [0, 0, 1],
    },
    "no samples": {"batch_size": 0},
    "one offset": {"kernel_size": [1, 1, 1]},
    "125 offsets": {"kernel_size": [5, 5, 5]},
    "unequal axes": {"kernel_size": [1, 3, 5], "dilation": [7, 2, 1], "padding": [0, 2, 2]},
}
# Options that a submanifold map lacks: stride, padding, dilation and kernel_size of strided ones.
LAYERS = {
    "stride 1": ([1] * 3, [1] * 3, [1] * 3, [3, 3, 3]),
    "even": ([2] * 3, [0] * 3, [1] * 3, [2, 2, 2]),
    "even and odd": ([1, 3, 2], [0, 1, 2], [1, 1, 2], [2, 1, 4]),
    "along z": ([2, 1, 1], [0] * 3, [1] * 3, [3, 1, 1]),
    "common divisors": ([2, 2, 6], [2, 1, 3], [2, 4, 3], [3, 2, 4]),
    "inputs that no output reads": ([1, 2, 5], [0] * 3, [1] * 3, [1, 1, 2]),
    "outputs that read no input": ([1, 1, 3], [0, 2, 9], [1] * 3, [1, 2, 3]),
    "a dilation as wide as the grid": ([1] * 3, [0, 0, FAR], [1, 1, FAR], [1, 1, 3]),
    "steps beyond the grid": ([FAR, 1, FAR], [0, 0, 1], [1] * 3, [1, 1, 2]),
    "dilations beyond 2^31 cells": ([1] * 3, [2 * FAR - 1] * 3, [FAR] * 3, [5, 5, 5]),
    "125 offsets along x": ([1] * 3, [0, 0, 62], [1] * 3, [1, 1, 125]),
}
NAMES = ("stride", "padding", "dilation", "kernel_size")


SUBM_SAMPLES = {
    name: partial(map_call, 60, **{k: v for k, v in options.items() if k != "padding"})
    for name, options in (MAPS | {"a far dilation": {"dilation": [FAR, 1, FAR]}}).items()
}
CONV_SAMPLES = {
    name: partial(conv_map_call, 60, **options)
    for name, options in {
        **MAPS,
        **{name: dict(zip(NAMES, values, strict=True)) for name, values in LAYERS.items()},
        **{f"{most} rows": {"max_rows": most} for most in (0, 1, 9, 500)},
    }.items()
}

WHOLE = ">= 1"
GRIDS = (
    *refused("num_valid", TypeError, "num_valid must be int32 or int64", torch.zeros(1)),
    *refused("num_valid", ValueError, "num_valid must have an element", torch.zeros(0).int()),
    *refused("batch_size", ValueError, r"batch_size must be in \[0, 2\^31\)", -1, 1 << 31),
    *refused("spatial_shape", ValueError, "spatial_shape must be three whole numbers .*" + WHOLE,
             [3, 4], [3, 4, 0]),
    *refused("spatial_shape", ValueError, r"spatial_shape must have 1 to 2\^24 cells per axis",
             [1, 1, (1 << 24) + 1]),
    *refused("spatial_shape", ValueError, r"spatial_shape must have at most 2\^36 cells",
             [1 << 12, 1 << 12, 1 << 12], [1 << 24] * 3,
             {"batch_size": 0, "spatial_shape": [1 << 24] * 3}),
    *refused("kernel_size", ValueError, "kernel_size must be three whole numbers .*" + WHOLE,
             [3], [0, 3, 3]),
    *refused("kernel_size", ValueError, "kernel_size must have at most 125 offsets",
             [1, 1, 127], [5, 5, 7], [(1 << 31) - 1] * 3),
    *refused("dilation", ValueError, "dilation must be three whole numbers .*" + WHOLE,
             [1, 1], [1, 1, 0], [1, 1, 1 << 31]),
    # The first has 2^64 entries, which an int64 does not hold.
    *refused("indices", ValueError, r"K \* C must be below 2\^31",
             {"indices": rows((0, 0, 0, 0)).expand(1 << 57, 4), "kernel_size": [1, 1, 125],
              "spatial_shape": [3, 4, 200]},
             {"indices": rows((0, 0, 0, 0)).expand(80_000_000, 4)}),
)  # fmt: skip
SUBM_ERRORS = (
    *refused("kernel_size", ValueError, "kernel_size must be odd", [3, 2, 3]),
    ("dilation", {"kernel_size": [1, 1, 5], "dilation": [1, 1, FAR]}, ValueError,
     r"dilation must reach less than 2\^31 cells"),
)  # fmt: skip
CONV_ERRORS = (
    *refused("stride", ValueError, "stride must be three whole numbers .*" + WHOLE, [], [0, 1, 1]),
    *refused("padding", ValueError, "padding must be three whole numbers .*>= 0", [0], [-1, 0, 0]),
    *refused("padding", ValueError, r"the output must have 1 to 2\^24 cells per axis",
             {"padding": [0, 0, 0], "kernel_size": [5, 1, 1]}, [0, 0, 1 << 30]),
    ("padding", {"padding": [0, 1 << 14, 1 << 22], "stride": [1, 1, 1]}, ValueError,
     r"the output must have at most 2\^36 cells over all samples"),
    *refused("max_rows", ValueError, "max_rows must be >= -1", -2),
    *refused("max_rows", ValueError, r"K \* max_rows must be below 2\^31",
             80_000_000, (1 << 63) - 1, {"max_rows": 1 << 61, "kernel_size": [2, 2, 2]}),
)  # fmt: skip

# ---- layers


def layer_of(neighbors: Tensor, rows: int, kernel, channels, **options) -> Call:
    g = generator(rows)
    features = torch.randn(rows, channels[0], generator=g)
    weight = torch.randn(channels[1], *kernel, channels[0], generator=g) / 3
    return {"features": features, "weight": weight, "neighbors": neighbors, **options}


def conv_call(n: int, seed: int = 0, kernel=(3, 3, 3), channels=(5, 7), **options) -> Call:
    """A submanifold layer, with a bias; the last rows are not in use."""
    call = map_call(n, seed, kernel)
    call["num_valid"] = torch.tensor([n - n // 8])
    neighbors, _ = ops.sparse_subm_map(**call)
    bias = torch.linspace(-1, 1, channels[1])
    layer = layer_of(neighbors, n, kernel, channels, bias=bias, num_valid=call["num_valid"])
    layer["features"] += seed
    return {**layer, "inverse": neighbors.flip(0), **options}


def strided_call(n: int = 60, inverse: bool = False, **options) -> Call:
    """A layer that halves the grid, or its inverse."""
    call = conv_map_call(n, max_rows=30, **options)
    _, fine, coarse, counts = ops.sparse_conv_map(**call)
    if inverse:
        return layer_of(coarse, 30, call["kernel_size"], (5, 7), inverse=fine)
    layer = {"inverse": coarse, "num_valid": counts}
    return layer_of(fine, n, call["kernel_size"], (5, 7), **layer)


def hostile_call() -> Call:
    """A table of any integers, neither symmetric nor of its inverse."""
    call = strided_call()
    for name in ("neighbors", "inverse"):
        table = call[name]
        entries = torch.tensor([INT_MIN, -2, 0, 29, 30, 59, 60, 1 << 30, (1 << 31) - 1])
        at = torch.randint(2 * len(entries), table.shape, generator=generator(2))
        call[name] = torch.where(at < len(entries), entries[at % len(entries)].int(), table)
    return call


def fused_call(n: int, seed: int = 0, **options) -> Call:
    call = conv_call(n, seed, **options)
    residual = torch.randn(n, len(call["weight"]), generator=generator(3))
    return {**call, "residual": residual}


def scheduled(layer: Call) -> Call:
    kernel, inverse = list(layer["weight"].shape[1:4]), layer["inverse"]
    both = {"schedule": ops.sparse_schedule(layer["neighbors"], kernel)}
    if inverse is not None:
        both["inverse_schedule"] = ops.sparse_schedule(inverse, kernel)
    return {**layer, **both}


def schedule_call(n: int, seed: int = 0, kernel=(3, 3, 3)) -> Call:
    neighbors, _ = ops.sparse_subm_map(**map_call(n, seed, kernel))
    return {"neighbors": neighbors, "kernel_size": list(kernel)}


def backward_of(layer: Call) -> Call:
    return backward_call("sparse_conv", layer, *(k for k in LEAVES if k in layer))


def conv_backward_call(n: int, seed: int = 0, **options) -> Call:
    return backward_of(conv_call(n, seed, **options))


def in_double(layer: Call) -> Call:
    return cast(layer, **{k: torch.double for k in LEAVES if k in layer})


LEAVES = ("features", "weight", "bias")
CONV_LAYERS = {
    **{
        name: partial(conv_call, 60, num_valid=count) for name, count in ROW_COUNTS.items()
    },
    "submanifold": partial(conv_call, 60, inverse=None, submanifold=True),
    "strided": strided_call,
    "inverse": partial(strided_call, inverse=True),
    "even": partial(strided_call, kernel_size=[2, 2, 2], padding=[0, 0, 0]),
    "one offset": partial(conv_call, 60, kernel=(1, 1, 1)),
    "125 offsets": partial(conv_call, 60, kernel=(5, 5, 5), channels=(2, 3)),
    "many channels": partial(conv_call, 60, channels=(17, 35)),
    "no channels in": partial(conv_call, 60, channels=(0, 7)),
    "no channels out": partial(conv_call, 60, channels=(5, 0)),
    "no offsets": partial(layer_of, torch.zeros(0, 60).int(), 60, (3, 0, 3), (5, 7),
                          submanifold=True),
    "any integers": hostile_call,
    "scheduled": lambda: scheduled(conv_call(300, inverse=None, submanifold=True)),
    "strided, scheduled": lambda: scheduled(strided_call()),
    "any integers, scheduled": lambda: scheduled(hostile_call()),
    **in_dtypes(lambda: conv_call(60), *LEAVES),
}  # fmt: skip
VOLUME = 3 * 3 * 3
CONV_REFUSED = (
    *refused("weight", TypeError, "weight must have the dtype of features", Tensor.double),
    *refused("weight", ValueError, "weight must have at most 125 offsets",
             *({"weight": torch.zeros(7, 1, *axes, 5), "inverse": None,
                "neighbors": torch.zeros(volume, 40).int()}
               for volume, axes in ((126, (1, 126)), (140, (20, 7))))),
    ("neighbors", {"neighbors": torch.zeros(VOLUME, 39).int(), "submanifold": True}, ValueError,
     "neighbors of a submanifold layer must have the rows of features"),
    ("neighbors", torch.zeros(1).int().expand(VOLUME, 1 << 31), ValueError,
     r"neighbors must have fewer than 2\^31 rows"),
    *refused("num_valid", ValueError, "num_valid must have an element", torch.zeros(0).int()),
    *refused("num_valid", TypeError, "num_valid must be int32 or int64", torch.zeros(1)),
    ("schedule", torch.zeros(7).int(), ValueError,
     "schedule must be what sparse_schedule gives for neighbors"),
    ("schedule", {"inverse": None, "inverse_schedule": torch.zeros(3588).int()}, ValueError,
     "inverse_schedule must come with inverse, got no inverse"),
    *refused("bias", TypeError, "bias must have the dtype of features", Tensor.half),
)  # fmt: skip
CONV = OpInfo(
    "sparse_conv", conv_call, varying={"features": 0, "neighbors": 1, "inverse": 1},
    sample_inputs=CONV_LAYERS,
    gradients=LEAVES,
    gradcheck_inputs={
        "submanifold, float64": lambda: in_double(
            conv_call(20, channels=(2, 3), inverse=None, submanifold=True)
        ),
        "strided, float64": lambda: in_double(strided_call(20)),
        "inverse, float64": lambda: in_double(strided_call(20, inverse=True)),
    },
    lowered=(*LEAVES, "residual"), error_inputs=CONV_REFUSED,
    kernels=2, backward_kernels=5, plans=("sparse_cpu", "sparse_order"),  # two more if sorted
    exact={"sparse_tensor_cores": 0},
)  # fmt: skip
OPS = [
    OpInfo("sparse_subm_map", map_call, varying={"indices": 0}, sample_inputs=SUBM_SAMPLES,
           error_inputs=(*GRIDS, *SUBM_ERRORS), kernels=3, plans=("sparse_map",)),
    OpInfo("sparse_conv_map", conv_map_call, varying={"indices": 0}, sample_inputs=CONV_SAMPLES,
           error_inputs=(*GRIDS, *CONV_ERRORS), kernels=4, plans=("sparse_map",)),
    OpInfo(
        "sparse_schedule", schedule_call, varying={"neighbors": 1},
        sample_inputs={
            **{f"{n} rows": partial(schedule_call, n) for n in (0, 1, 127, 128, 129, 4097)},
            **{f"kernel {k}": partial(schedule_call, 300, kernel=k)
               for k in ((1, 1, 1), (5, 5, 5), (1, 3, 7))},
            "even": lambda: {"neighbors": strided_call(kernel_size=[2, 2, 2])["neighbors"],
                             "kernel_size": [2, 2, 2]},
            "no offsets": lambda: {"neighbors": torch.zeros(0, 60).int(), "kernel_size": [3, 0, 3]},
            "any integers": lambda: {"neighbors": hostile_call()["neighbors"],
                                     "kernel_size": [3, 3, 3]},
        },
        error_inputs=(
            *refused("kernel_size", ValueError, "kernel_size must be three whole numbers whose pro",
                     [3, 3], [3, 3, 2], [-3, -3, 3], [1 << 62, 4, 27]),
            ("neighbors", {"neighbors": torch.zeros(126, 4).int(), "kernel_size": [1, 126, 1]},
             ValueError, "must have at most 125 offsets|whose product"),
        ),
        kernels=3,
    ),
    CONV,
    replace(
        CONV, layout="fused", call=fused_call, varying={**CONV.varying, "residual": 0},
        sample_inputs={
            "relu": partial(fused_call, 60, relu=True),
            **in_dtypes(lambda: fused_call(60, relu=True), *LEAVES, "residual"),
        },
        gradients=(), gradcheck_inputs={}, inference=True, non_differentiable=("residual",),
        error_inputs=refused("residual", TypeError, "residual must have the dtype of features",
                             Tensor.half),
        backward_kernels=1,
    ),
    OpInfo(
        "_sparse_conv_backward", conv_backward_call,
        varying={"grad": 0, "features": 0, "neighbors": 1, "inverse": 1},
        sample_inputs={
            **{
                name: lambda make=CONV_LAYERS[name]: backward_of(make())
                for name in ("strided", "submanifold", "any integers", "scheduled",
                             "strided, scheduled", *DTYPES)
            },
            "of the weight alone": lambda: conv_backward_call(60) | {"for_features": False},
            "of features alone": lambda: (
                conv_backward_call(60) | {"for_weight": False, "for_bias": False}
            ),
            "two segments": lambda: conv_backward_call(2500, kernel=(1, 1, 3), channels=(2, 3)),
        },
        error_inputs=(
            ("grad", lambda t: t[1:], ValueError, "grad must"),
            ("inverse", None, ValueError, "inverse must be given, or submanifold be True"),
        ),
        kernels=5, plans=("sparse_cpu", "sparse_order", "sparse_wave"),
        exact={"sparse_tensor_cores": 0},
    ),
]  # fmt: skip
