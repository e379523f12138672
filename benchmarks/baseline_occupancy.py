# SPDX-License-Identifier: Apache-2.0
"""A map that baseline_occupancy.cu updates, on torch's current stream, with its memory made
before."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import nvcc

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 128  # of a block


class _Map(ctypes.Structure):
    _fields_ = [("keys", ctypes.c_void_p), ("voxels", ctypes.c_void_p), ("slots", ctypes.c_uint)]


class _Rays(ctypes.Structure):
    _fields_ = [("points", ctypes.c_void_p), ("origin", ctypes.c_void_p), ("count", ctypes.c_int)]
    _fields_ += [(name, ctypes.c_float) for name in ("size", "hit", "miss", "low", "high")]


@functools.cache
def library() -> ctypes.CDLL:
    return nvcc.load(SOURCE)


class Mapper:
    """keys [C] int64, as those of torchvox, -1 where empty; voxels [C, 512] float32 log-odds,
    infinity where not observed."""

    def __init__(self, regions: int) -> None:
        library()
        self.keys = torch.empty(regions, dtype=torch.int64, device="cuda")
        self.voxels = torch.empty(regions, 512, device="cuda")
        self.clear()

    def clear(self) -> None:
        self.keys.fill_(-1)
        self.voxels.fill_(torch.inf)

    def integrate(
        self, points: Tensor, origin: Tensor, size: float, sensor: list[float], reverse: bool
    ) -> None:
        """points [N, 3], origin [1, 3] float32 on the GPU; sensor as in occupancy_integrate_."""
        grid = _Map(self.keys.data_ptr(), self.voxels.data_ptr(), len(self.keys))
        rays = _Rays(points.data_ptr(), origin.data_ptr(), len(points), size, *sensor)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = library().baseline_occupancy(grid, rays, int(reverse), THREADS, stream)
        if error:
            raise RuntimeError(f"the baseline kernel gave CUDA error {error}")
