# SPDX-License-Identifier: Apache-2.0
"""Voxel-grid filter ops."""

from functools import partial

import torch
from torch import Tensor

import torchvox

from .op_info import DTYPES, INF, POINTS_ERRORS, Call, OpInfo, cloud, generator, in_dtypes, refused
from .voxel import ROWS, rows_of_points

SIZE = [1.0, 0.5, 2.0]
TIGHT = {"origin": [0.3, -0.1, 0.0], "lower": [-3, -4, -1], "bits": 3}  # 8 cells an axis


def whole(points: Tensor) -> Tensor:
    return points.nan_to_num(0.0).clamp(-1e6, 1e6).int()


def keys_call(n: int, seed: int = 0, **options) -> Call:
    valid = torch.tensor([n - n // 10])
    return {"points": cloud(n, 4, seed), "voxel_size": SIZE, "num_valid": valid, **options}


def batch(n: int = 60, seed: int = 0, **options) -> Call:
    return {
        "points": cloud(n, 5, seed),
        "voxel_size": SIZE,
        "batch_offsets": torch.tensor([0, 0, n // 3, n - 2], dtype=torch.int32),
        "num_valid": torch.tensor([4, n, n // 2], dtype=torch.int32),
        **options,
    }


KEYS_SAMPLE_INPUTS = {
    "batch": batch,
    "tight frame": lambda: batch(**TIGHT),
    "one bit": lambda: keys_call(40, bits=1),
    "far frame": lambda: keys_call(40, lower=[-(2**30), 7, 2**20], bits=21),
    **in_dtypes(batch, "points"),
    "int32": lambda: {**batch(), "points": whole(cloud(60, 5))},
}
KEYS_ERRORS = (
    *(row for row in POINTS_ERRORS if row[0] != "point_cloud_range"),
    *refused("voxel_size", ValueError, "voxel_size must be", [1.0, 1.0], [1.0] * 4,
             *([1.0, 1.0, size] for size in (0.0, -1.0, INF, 1e-50, 1e39))),
    *refused("origin", ValueError, "origin must be", [1.0, 1.0], [1.0] * 4,
             *([0.0, start, 0.0] for start in (-INF, 1e39))),
    *refused("lower", ValueError, "lower must be", [1, 1], [1] * 4,
             *([0, 0, first] for first in (1 << 54, -(1 << 54), (1 << 63) - 1))),
    *refused("bits", ValueError, "bits must be", 22, 64),
    # Bits of the samples beside those of the cells.
    *(("bits", {"bits": bits, "batch_offsets": torch.zeros(samples + 1).int(), "num_valid": None},
       ValueError, "bits") for bits, samples in ((21, 2), (20, 9), (19, 65))),
)  # fmt: skip


def cells_call(n: int, seed: int = 0, **options) -> Call:
    """Keys of three samples of 32^3 cells, and -1."""
    keys = torch.randint(-1, 3 << 15, (n,), generator=generator(seed))
    keys[2::7] = -1
    return {"keys": keys, "bits": 5, "lower": [-16, -20, 3], **options}


# Cells outside int32.
FAR_ERRORS = refused(
    "lower", ValueError, "lower", [1 << 31, 0, 0], [0, -(1 << 31) - 1, 0], [0, 0, (1 << 31) - 2],
)  # fmt: skip
OPS = [
    OpInfo(
        "voxel_keys",
        keys_call,
        sample_inputs={**KEYS_SAMPLE_INPUTS, "zyx": lambda: batch(**TIGHT, layout="zyx")},
        kernels=2,
        error_inputs=KEYS_ERRORS,
        inference=True,
    ),
    OpInfo(
        "voxel_cells",
        cells_call,
        varying={"keys": 0},
        sample_inputs={
            "zyx": lambda: cells_call(40, layout="zyx"),
            "one bit": lambda: {"keys": torch.arange(-2, 30), "bits": 1, "lower": [-1, 0, 1]},
            "63 bits": lambda: {
                "keys": torch.tensor([0, 1, -(2**63), 2**63 - 1, 2**62]),
                "bits": 21,
                "lower": [-(2**31), 2**31 - 2**21, 0],
            },
        },
        error_inputs=(
            ("bits", 22, ValueError, "bits must be"),
            *refused("lower", ValueError, "lower must be", [1, 1], [1] * 4),
            *FAR_ERRORS,
        ),
    ),
]


def group_call(n: int, seed: int = 0, **options) -> Call:
    """Repeated keys over 63 bits, and dropped ones."""
    steps = torch.randint(0, 1 + n // 3, (n,), generator=generator(seed))
    keys = (steps * 0x1F3D_5B79_0000_0007) & (2**63 - 1)
    keys[3::11] = -1
    keys[4::23] = 2**63 - 1
    keys[6::29] = -(2**63)
    return {"keys": keys, **options}


OPS += [
    OpInfo(
        "voxel_group",
        group_call,
        varying={"keys": 0},
        sample_inputs={
            **{
                f"{order}, {backend}": partial(group_call, 60, order=order, backend=backend)
                for order in ("first", "key")
                for backend in ("sort", "hash", "auto")
            },
            "few bits": lambda: {"keys": torch.arange(-3, 50) * 7 % 41 - 2, "key_bits": 5},
            "one bit": lambda: {"keys": torch.arange(-3, 50) % 4, "key_bits": 1, "order": "key"},
            "all dropped": lambda: {"keys": torch.full((40,), -1), "order": "key"},
            "one row": lambda: {"keys": torch.zeros(3000, dtype=torch.int64)},
        },
        kernels=8,  # voxelize, a sum of two kernels, places
        error_inputs=(("key_bits", 64, ValueError, "key_bits must be"),),
        plans=("voxel_table", "voxel_partitions"),
    )
]


def values_of(n: int, seed: int, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return cloud(n, 5, seed).to(dtype)  # some rows NaN, infinite, or 1e30
    limits = torch.iinfo(dtype)
    g = generator(seed)
    return torch.randint(limits.min, limits.max, (n, 5), generator=g, dtype=dtype)


def sum_call(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Call:
    offsets, perm = torchvox.voxel_csr(rows_of_points(n, seed), ROWS)
    return {"values": values_of(n, seed, dtype), "offsets": offsets, "perm": perm}


def one_row(n: int = 3000) -> Call:
    offsets, perm = torchvox.voxel_csr(torch.zeros(n, dtype=torch.int32), 3)
    return {"values": cloud(n, 5) * 1e-3, "offsets": offsets, "perm": perm}


ALL_DTYPES = {**DTYPES, "int32": torch.int32, "int64": torch.int64}
SUM_SAMPLE_INPUTS = {
    **{name: lambda dtype=dtype: sum_call(60, 0, dtype) for name, dtype in ALL_DTYPES.items()},
    "no rows": lambda: {**sum_call(40), "offsets": torch.zeros(1).int()},
    "no columns": lambda: {**sum_call(40), "values": torch.zeros(40, 0)},
    "one row": one_row,
}


def mean_of_sums_call(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Call:
    """Sums of n rows of up to three values, of which some are large and some have none."""
    g = generator(seed)
    num_points = torch.randint(0, 4, (n,), generator=g, dtype=torch.int32)
    count = num_points[:, None].expand(-1, 2).long()
    sums = torch.randint(-(2**31), 2**31, (n, 2), generator=g) * count
    if dtype.is_floating_point:
        fraction = torch.randint(0, 2**32, (n, 2), generator=g) * count
        known = count * torch.randint(0, 5, (n, 2), generator=g).clamp(max=1)
        large = torch.randint(0, 9, (n, 2), generator=g).eq(0) * 2**32
        sums = torch.stack([sums, fraction, known + large], 2).flatten(1)
    return {"sums": sums, "num_points": num_points, "dtype": dtype}


OPS += [
    *(
        OpInfo(
            name,
            sum_call,
            varying={"values": 0, "perm": 0},
            sample_inputs=SUM_SAMPLE_INPUTS,
            kernels=2,
            inference=True,
        )
        for name in ("voxel_sum", "voxel_mean")
    ),
    OpInfo(
        "voxel_mean_of_sums",
        mean_of_sums_call,
        varying={"sums": 0, "num_points": 0},
        sample_inputs={
            **{name: partial(mean_of_sums_call, 40, 0, kind) for name, kind in ALL_DTYPES.items()},
            "int64 counts": lambda: {
                **mean_of_sums_call(40),
                "num_points": mean_of_sums_call(40)["num_points"].long(),
            },
            "no columns": lambda: {**mean_of_sums_call(40), "sums": torch.zeros(40, 0).long()},
        },
    ),
    OpInfo(
        "voxel_downsample",
        keys_call,
        sample_inputs={
            **KEYS_SAMPLE_INPUTS,
            **{f"key, {backend}": partial(batch, **TIGHT, order="key", backend=backend)
               for backend in ("sort", "hash")},
        },
        kernels=8,  # four of voxelize, rows, a sum, counts
        error_inputs=(*KEYS_ERRORS, *FAR_ERRORS),
        inference=True,
        plans=("voxel_table", "voxel_partitions"),
    ),
]  # fmt: skip
