# SPDX-License-Identifier: Apache-2.0
"""Points and the one comparison that the tests of the filter ops share."""

from __future__ import annotations

import numpy as np
import torch
from helpers import assert_same_bits, to

import torchvox  # noqa: F401  (registers the ops)
from torchvox import reference

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POINT_DTYPES = (*FLOATS, torch.int32)
VALUE_DTYPES = (*POINT_DTYPES, torch.int64)
ORDERS, BACKENDS, LAYOUTS = ("first", "key"), ("sort", "hash", "auto"), ("morton", "zyx")


def run_op(name: str, device: str, *args, **options):
    """The registered op on `device`, outputs brought back to the CPU."""
    moved = {k: to(device, v) for k, v in options.items()}
    out = getattr(torch.ops.torchvox, name)(*(to(device, a) for a in args), **moved)
    return out.cpu() if torch.is_tensor(out) else tuple(o.cpu() for o in out)


def check(name: str, device: str, *args, **options):
    """The op has the bits of the reference, which are returned."""
    expected = getattr(reference, name)(*args, **options)
    assert_same_bits(run_op(name, device, *args, **options), expected, name)
    return expected


def on_x(xs, dtype=torch.float32) -> torch.Tensor:
    """Points whose x are given; y and z lie in cell 0 of any size above a half."""
    x = torch.as_tensor(xs, dtype=torch.float64).to(dtype)
    return torch.stack([x, torch.zeros_like(x), torch.zeros_like(x)], 1)


def around(faces: np.ndarray) -> np.ndarray:
    """Each value and the next ones below and above, of its dtype."""
    ends = np.array([-np.inf, np.inf], faces.dtype)
    return np.concatenate([faces, *(np.nextafter(faces, end) for end in ends)])


def scan(n: int, dtype=torch.float32, columns: int = 5, seed: int = 0) -> torch.Tensor:
    """Clustered points in whole millimeters, many of them on faces of 5 cm; some not finite, some
    far, -0.0 here and there. int32: as they are in millimeters."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-3, 3, (max(n // 30, 1), 3))
    xyz = centers[rng.integers(len(centers), size=n)] + rng.normal(0, 0.1, (n, 3))
    step = rng.choice([0.05, 0.001], (n, 1))
    xyz = np.round(xyz / step) * step
    values = np.concatenate([xyz, rng.normal(0, 1e4, (n, columns - 3))], 1)
    if dtype == torch.int32:
        return torch.from_numpy((values * 1000).clip(-(2**31), 2**31 - 1)).to(dtype)
    bad = np.flatnonzero(rng.random(n) < 0.05)
    values[bad, rng.integers(columns, size=len(bad))] = rng.choice(
        [np.nan, np.inf, -np.inf, 3e9, -0.0], len(bad)
    )
    return torch.from_numpy(values).to(dtype)


def samples_of(n: int, batches: int, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """batch_offsets and num_valid of `batches` samples, empty ones and padding among them."""
    offsets = np.sort(rng.integers(-3, n + 4, batches + 1))
    return {
        "batch_offsets": torch.from_numpy(offsets),
        "num_valid": torch.from_numpy(rng.integers(-2, n + 3, batches)).int(),
    }


def rows_of(lists: list[list[int]], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """offsets and perm of the points of each row."""
    flat = [i for row in lists for i in row]
    offsets = np.cumsum([0, *map(len, lists)])
    perm = torch.tensor(flat + [-1] * (n - len(flat)), dtype=torch.int32)
    return torch.from_numpy(offsets).int(), perm
