# SPDX-License-Identifier: Apache-2.0
"""Distinct cells, and their orders along curves."""

import torch
from torch import Tensor

from .op_info import POINTS_ERRORS, Call, OpInfo, generator, refused

CURVES = ["z", "z-trans", "hilbert", "hilbert-trans"]


def cells_of(n: int, seed: int = 0, depth: int = 4) -> Tensor:
    """[n, 3] int32, most of them in the cube, some twice."""
    cells = torch.randint(0, 1 << depth, (n, 3), generator=generator(seed), dtype=torch.int32)
    cells[1::5] = cells[0::5][: len(cells[1::5])]
    cells[3::17, 1] = -1
    cells[4::19, 2] = 1 << depth
    return cells


def serialize_call(n: int, seed: int = 0, depth: int = 4, **options) -> Call:
    valid = torch.tensor([n - n // 10])
    call = {"cells": cells_of(n, seed, depth), "order": CURVES, "depth": depth, "num_valid": valid}
    return call | options


def indexed_call(n: int, seed: int = 0, **options) -> Call:
    """Samples in no order, some of them beyond the room of a code."""
    index = torch.randint(-1, 5, (n,), generator=generator(seed))
    index[2::13] = 2**62
    return serialize_call(n, seed, num_valid=None, batch_index=index, **options)


def unique_call(n: int, seed: int = 0, columns: int = 4, wide: bool = False, **options) -> Call:
    cells = torch.nn.functional.pad(cells_of(n, seed), (0, 1), value=seed)[:, :columns]
    return {"cells": cells.long() << 40 if wide else cells, **options}


OPS = [
    OpInfo(
        "unique_cells",
        unique_call,
        varying={"cells": 0},
        sample_inputs={
            "one key": lambda: unique_call(60, bits=4, order="sorted"),
            "one column": lambda: unique_call(60, columns=1),
            "int64": lambda: unique_call(60, columns=3, wide=True),
            "sorted": lambda: unique_call(3000, order="sorted"),
        },
        kernels=28,  # three times keys and voxel_group, then rows
        error_inputs=(
            ("cells", lambda t: torch.cat([t, t], 1), ValueError, r"cells must be \[N, K\]"),
            ("bits", 64, ValueError, "bits must be 1 to 63"),
        ),
        plans=("voxel_table", "voxel_partitions"),
    ),
    OpInfo(
        "serialize",
        serialize_call,
        varying={"cells": 0},
        sample_inputs={
            "batch": lambda: serialize_call(
                60,
                batch_offsets=torch.tensor([0, 0, 20, 57], dtype=torch.int32),
                num_valid=torch.tensor([4, 60, 30], dtype=torch.int32),
            ),
            "one bit": lambda: serialize_call(60, depth=1, order=["hilbert"], num_valid=None),
            "16 bits": lambda: serialize_call(60, depth=16, order=CURVES[2:]),
            "63 bits": lambda: {
                "cells": cells_of(60).long() * 131071, "order": ["z", "z"], "depth": 21,
            },
            "indexed": lambda: indexed_call(60),
            "indexed, 63 bits": lambda: indexed_call(60, depth=21),
            "several tiles": lambda: serialize_call(9000, order=["hilbert-trans", "z"], depth=3),
        },
        kernels=4,  # a memset, codes, two passes
        error_inputs=(
            *refused("order", ValueError, "order must be of", ["z"] * 5, ["Z"], ["z", ""]),
            ("depth", 22, ValueError, "depth must"),
            ("depth", {"depth": 21, "batch_offsets": torch.zeros(3).int(), "num_valid": None},
             ValueError, "3 . depth must leave room"),
            *(row for row in POINTS_ERRORS if row[0] in ("batch_offsets", "num_valid")),
            ("batch_index", torch.zeros(40).int(), ValueError, "batch_index must be None"),
            *(("batch_index", {"batch_index": t, "num_valid": None}, error, "batch_index must be")
              for t, error in ((torch.zeros(40), TypeError), (torch.zeros(3).int(), ValueError))),
        ),
    ),
]  # fmt: skip
