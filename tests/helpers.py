# SPDX-License-Identifier: Apache-2.0
"""What every test file shares: exact comparison, forced launch plans, real scans, files."""

import contextlib
import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("TORCHVOX_DATA", ROOT.parent / "shared" / "data"))


class Plan(NamedTuple):
    """A decision that may be forced: where it is taken, and its values."""

    devices: tuple[str, ...]
    values: dict[Any, int]


CPU, CUDA = ("cpu",), ("cuda",)
INSTRUCTIONS = Plan(CPU, {"baseline": 0, "AVX2": 1, "AVX-512": 2})
PLANS = {
    "voxel_table": Plan(CUDA, {"dense": 0, "hash": 1, "hash_wide": 2}),
    "voxel_ranking": Plan(CUDA, {"bitmap": 0, "sort": 1}),
    "voxel_kernels": Plan(CUDA, {"separate": 0, "fused": 1}),
    "voxel_common": Plan(CUDA, {"general": 0, "common": 1}),
    "voxel_partitions": Plan(CPU, {n: n for n in (1, 2, 3, 5, 16)}),
    "fps_kernel": Plan(CUDA, {"block": 0, "lazy": 1, "generic": 2}),
    "fps_members": Plan(CUDA, {n: n for n in (1, 2, 7, 8, 40)}),
    "fps_cpu": INSTRUCTIONS,
    "ball_kernel": Plan(CPU + CUDA, {"scan": 0, "cells": 1}),
    "ball_cpu": INSTRUCTIONS,
    "group_mlp": Plan(CUDA, {"portable": 0, "tensor cores": 1}),  # not the same bits
    "group_mlp_cpu": INSTRUCTIONS,
    "knn_kernel": Plan(CPU + CUDA, {"scan": 0, "tiles": 1, "select": 2}),
    "knn_order": Plan(CUDA, {"block": 0, "sort": 1}),
    "knn_cpu": INSTRUCTIONS,
    "inverse_index": Plan(CUDA, {"counted": 0, "sorted": 1}),
    "interpolate_cpu": INSTRUCTIONS,
    "nms_order": Plan(CUDA, {"counted": 0, "sorted": 1}),
    "decode_kernels": Plan(CUDA, {"separate": 0, "fused": 1}),
    "pillar_lists": Plan(CUDA, {"fixed": 0, "packed": 1}),
    "pillar_common": Plan(CUDA, {"general": 0, "common": 1}),
    "pillar_cpu": INSTRUCTIONS,
    "sparse_map": Plan(CPU + CUDA, {"small": 0, "large": 1}),
    "sparse_cpu": INSTRUCTIONS,
    "sparse_order": Plan(CUDA, {"of the table": 0, "sorted": 1}),
    "sparse_tensor_cores": Plan(CUDA, {"exact": 0, "mma.sync": 1, "Hopper": 2}),
    "sparse_wave": Plan(CUDA, {"one segment": 1, "two segments": 2}),
    "bev_table": Plan(CUDA, {"dense": 0, "cleared": 1, "started": 2, "small": 3}),
}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers, with every NaN made one NaN."""
    tensor = tensor.detach().cpu()
    if not tensor.is_floating_point():
        return tensor
    tensor = torch.where(torch.isnan(tensor), torch.full_like(tensor, float("nan")), tensor)
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(integer)


def assert_same_bits(actual, expected, what: str = "") -> None:
    """Equal dtype, shape and bits: -0.0 is not +0.0, and NaN equals NaN. Takes tuples too."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), f"{what}: {len(actual)} outputs, not {len(expected)}"
        names = getattr(actual, "_fields", range(len(expected)))
        for name, a, e in zip(names, actual, expected, strict=True):
            assert_same_bits(a, e, f"{what}[{name}]")
        return
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{what}: {tuple(actual.shape)}, not {tuple(expected.shape)}"
    )
    a, e = bits(actual), bits(expected)
    if torch.equal(a, e):
        return
    wrong = (a != e).reshape(-1).nonzero().reshape(-1)
    first = int(wrong[0])
    at = tuple(int(i) for i in np.unravel_index(first, tuple(a.shape))) if a.dim() else ()
    got = actual.detach().cpu().reshape(-1)[first]
    want = expected.detach().cpu().reshape(-1)[first]
    raise AssertionError(
        f"{what}: {wrong.numel()} of {a.numel()} elements differ, first at {at}: {got} not {want}"
    )


def to(device, value):
    return value.to(device) if isinstance(value, torch.Tensor) else value


def check_op(name: str, device: str, *args, **options):
    """The registered op on `device` returns the bits of the reference, which are returned."""
    from torchvox import reference

    expected = getattr(reference, name)(*args, **options)
    moved = {k: to(device, v) for k, v in options.items()}
    outs = getattr(torch.ops.torchvox, name)(*(to(device, a) for a in args), **moved)
    one = isinstance(outs, torch.Tensor)
    assert all(out.device.type == device for out in ([outs] if one else outs))
    assert_same_bits(outs, expected, name)
    return expected


@contextlib.contextmanager
def forced(**plans):
    """Forces launch plans, for example forced(voxel_table="hash"), for the time of a block; a value
    that has no name is a number."""
    from torchvox import _C

    for name, value in plans.items():
        values = PLANS[name].values if name in PLANS else {}
        _C.set_plan_override(name, values.get(value, value))
    try:
        yield
    finally:
        for name in plans:
            _C.set_plan_override(name, -1)


def real_scan(name: str, columns: int) -> torch.Tensor:
    """A real scan as [N, columns] float32; skips the test when the folder of scans is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}: set TORCHVOX_DATA to the folder of real scans")
    return torch.from_numpy(np.fromfile(path, dtype=np.float32).reshape(-1, columns))


def cube(n: int, d: int = 3, seed: int = 0, batch: int = 1, scale: float = 1.0) -> torch.Tensor:
    """[batch, n, d] uniform in a cube."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.random((batch, n, d)) * scale).astype(np.float32))


def lattice(n: int, side: int = 8, seed: int = 0, batch: int = 1) -> torch.Tensor:
    """[batch, n, 3] integer points: many duplicates, many equal distances."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, side, (batch, n, 3)).astype(np.float32))


SPIKED = cube(200, seed=3)
SPIKED[0, [17, 90, 91], :] = torch.tensor([[1e30], [-1e30], [-1e30]])  # squares overflow
ODD_CLOUDS = {
    "cube": cube(300),
    "lattice": lattice(300),
    "duplicates": cube(40, seed=1).repeat(1, 6, 1),
    "all equal": torch.full((1, 200, 3), 0.3),
    "collinear": torch.arange(100.0).reshape(1, 100, 1) * torch.tensor([0.1, 0.2, 0.3]),
    "regular lattice": torch.cartesian_prod(*[torch.arange(6.0)] * 3)[None],
    "overflow": cube(100, seed=2, scale=3e38) - 1.5e38,
    "spiked": SPIKED,
    "wide spacing": torch.floor(cube(150, seed=4, scale=40.0)) * 2e5,
    "far from the origin": cube(150, seed=4) + 1e6,
    "denormal": cube(100, seed=5, scale=1e-38),
    "squares underflow": cube(100, seed=6, scale=1e-22),
    "negative zero": lattice(64, side=2, seed=7) * -0.0,
    "sorted along an axis": cube(2000, seed=8).sort(1).values,
}


def write_points(path: Path, *tables, **options) -> Path:
    """A file of the points of tables, by `create_points`."""
    from torchvox.io import create_points

    with create_points(path, tables[0], **options) as writer:
        for table in tables:
            writer.append(table)
    return path


def read_points(path: Path, layout: str | None = None, size: int = 17):
    """All points of a file, read `size` at a time, as one table."""
    from torchvox.io import open_points
    from torchvox.io.table import join

    reader = open_points(path, layout)
    return join([reader.schema, *reader.chunks(size)])


def assert_same_points(made, wanted) -> None:
    """Tables of equal columns in one order, types, shapes and bits; NaN is NaN."""
    assert list(made.columns.items()) == list(wanted.columns.items())
    assert made.xyz.dtype == wanted.xyz.dtype
    pairs = {name: (made.attributes[name], wanted.attributes[name]) for name in made.attributes}
    for name, (a, b) in {"xyz": (made.xyz, wanted.xyz), **pairs}.items():
        assert a.shape == b.shape, name
        if a.dtype.kind == "f":
            a, b = (
                np.where(np.isnan(v), v.dtype.type(np.nan), v).view(f"u{v.itemsize}")
                for v in (a, b)
            )
        wrong = np.argwhere(a != b)
        assert not len(wrong), f"{name}{wrong[0]}: {a[tuple(wrong[0])]}, not {b[tuple(wrong[0])]}"


@contextlib.contextmanager
def disk_of(size: int):
    """No file may grow beyond `size` bytes, as if the disk was full: writing more is an OSError.
    Yields a function that sets another size."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    limit(size)
    try:
        yield limit
    finally:
        limit(before)
