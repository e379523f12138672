# SPDX-License-Identifier: Apache-2.0
"""Calls the filters of baseline_filter.cu on torch's current stream.

All buffers are torch's: an eager call allocates them, a graph has them prepared.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import nvcc

SOURCE = Path(__file__).with_suffix(".cu")
SLOTS, THREADS = 2, 256  # of the table, a point; of a block


class _Cloud(ctypes.Structure):
    _fields_ = [("points", ctypes.c_void_p), ("count", ctypes.c_int), ("columns", ctypes.c_int)]
    _fields_ += [(name, ctypes.c_float) for name in ("x", "y", "z", "inverse")]


class _Rows(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("codes", "means", "counts")]


class Rows(NamedTuple):
    codes: Tensor  # [N] int64; used rows first
    means: Tensor  # [N, C] float32
    counts: Tensor  # [N] int32
    found: Tensor | int  # rows


@functools.cache
def library() -> ctypes.CDLL:
    return nvcc.load(SOURCE)


def by_hash(points: Tensor, size: float, lower: tuple[float, ...]) -> Rows:
    """points [N, C <= 7] float32 on the GPU; cubes of `size` from `lower` on. Rows in any order."""
    count, columns = points.shape
    capacity = SLOTS * count
    keys = torch.full((capacity,), -1, device=points.device)
    sums = points.new_zeros(capacity, columns)
    counts = torch.zeros(capacity + 1, dtype=torch.int32, device=points.device)
    rows, pointers = _rows(points)
    error = library().baseline_filter_hash(
        _cloud(points, size, lower),
        *(_pointer(each) for each in (keys, sums, counts)),
        *(ctypes.c_uint(capacity), pointers, _pointer(counts[capacity:]), THREADS, _stream()),
    )
    if error:
        raise RuntimeError(f"the baseline kernel gave CUDA error {error}")
    return rows._replace(found=counts[capacity:])


def by_code(points: Tensor, size: float, lower: tuple[float, ...]) -> Rows:
    """The same with rows by ascending code. Waits for the GPU, as Thrust does."""
    rows, pointers = _rows(points)
    codes, order = torch.empty_like(rows.codes), torch.empty_like(rows.counts)
    sums = points.new_empty(len(points), 8)
    found = library().baseline_filter_morton(
        _cloud(points, size, lower),
        *(_pointer(each) for each in (codes, order, sums)),
        *(pointers, THREADS, _stream()),
    )
    if found < 0:
        raise RuntimeError(f"the baseline kernel gave CUDA error {-found}")
    return rows._replace(found=found)


def _rows(points: Tensor) -> tuple[Rows, _Rows]:
    codes = torch.empty(len(points), dtype=torch.int64, device=points.device)
    rows = Rows(codes, torch.empty_like(points), torch.empty_like(codes, dtype=torch.int32), 0)
    return rows, _Rows(*(each.data_ptr() for each in rows[:3]))


def _cloud(points: Tensor, size: float, lower: tuple[float, ...]) -> _Cloud:
    return _Cloud(points.data_ptr(), *points.shape, *lower, 1 / size)


def _pointer(tensor: Tensor) -> Any:
    return ctypes.c_void_p(tensor.data_ptr())


def _stream() -> Any:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
