# SPDX-License-Identifier: Apache-2.0
"""Points that the tests of the filter ops share, and calls of the ops."""

from __future__ import annotations

import numpy as np
import torch
from helpers import to
from hypothesis import strategies as st

import torchvox  # noqa: F401  (registers the ops)

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POINT_DTYPES = (*FLOATS, torch.int32)
VALUE_DTYPES = (*POINT_DTYPES, torch.int64)
ORDERS, BACKENDS, LAYOUTS = ("first", "key"), ("sort", "hash", "auto"), ("morton", "zyx")


def run_op(name: str, device: str, *args, **options):
    """The registered op on `device`, outputs brought back to the CPU."""
    moved = {k: to(device, v) for k, v in options.items()}
    out = getattr(torch.ops.torchvox, name)(*(to(device, a) for a in args), **moved)
    return out.cpu() if torch.is_tensor(out) else tuple(o.cpu() for o in out)


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


@st.composite
def calls(draw):
    """Points, a size and options: many points on faces and beside them, empty samples, padding."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype, n = draw(st.sampled_from(POINT_DTYPES)), draw(st.integers(0, 60))
    size = [draw(st.sampled_from([0.05, 0.16, 1.0, 3.7, 1e-3])) for _ in range(3)]
    start = st.lists(st.sampled_from([0.0, -0.1, 637.25, -1e4]), min_size=3, max_size=3)
    origin, reach = draw(st.none() | start), draw(st.sampled_from([2, 9]))
    wide = torch.float64 if dtype in (torch.float64, torch.int32) else torch.float32
    xyz = torch.from_numpy(rng.integers(-reach, reach, (n, 3)) * size + (origin or [0.0] * 3))
    xyz = xyz.to(wide)
    up, odd = (
        torch.from_numpy(rng.choice(of, (n, 3))).to(wide)
        for of in ([-np.inf, np.inf], [np.nan, np.inf, 1e30, -0.0, 1e-45])
    )
    xyz = torch.where(torch.from_numpy(rng.random((n, 3)) < 0.3), torch.nextafter(xyz, up), xyz)
    if dtype != torch.int32:
        xyz = torch.where(torch.from_numpy(rng.random((n, 3)) < 0.03), odd, xyz)
    bits = draw(st.sampled_from([-1, 1, 4, 10, 18]))
    options = {"origin": origin, "bits": bits}
    if bits > 0:
        lower = st.lists(st.integers(-(1 << bits) - 5, 5), min_size=3, max_size=3)
        options["lower"] = draw(st.none() | lower)
    if draw(st.booleans()):
        batches = draw(st.integers(0, 5))
        options["batch_offsets"] = torch.from_numpy(np.sort(rng.integers(-3, n + 4, batches + 1)))
        options["num_valid"] = torch.from_numpy(rng.integers(-2, n + 3, batches)).int()
    return torch.cat([xyz, xyz.flip(1)[:, : draw(st.integers(0, 2))]], 1).to(dtype), size, options


def rows_of(lists: list[list[int]], n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """offsets and perm of the points of each row."""
    flat = [i for row in lists for i in row]
    offsets = np.cumsum([0, *map(len, lists)])
    perm = torch.tensor(flat + [-1] * (n - len(flat)), dtype=torch.int32)
    return torch.from_numpy(offsets).int(), perm
