# SPDX-License-Identifier: Apache-2.0
"""A map that baseline_occupancy.cu updates, on torch's current stream, with its memory made before.
The source is compiled when it is first needed."""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.case import limit
from benchmarks.machine import ROOT

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 128  # of a block


class _Map(ctypes.Structure):
    _fields_ = [("keys", ctypes.c_void_p), ("voxels", ctypes.c_void_p), ("slots", ctypes.c_uint)]


class _Rays(ctypes.Structure):
    _fields_ = [("points", ctypes.c_void_p), ("origin", ctypes.c_void_p), ("count", ctypes.c_int)]
    _fields_ += [(name, ctypes.c_float) for name in ("size", "hit", "miss", "low", "high")]


@functools.cache
def library() -> ctypes.CDLL:
    """Raises NotApplicable when the source cannot be compiled here."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    folders = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)]
    compiler = shutil.which("nvcc", path=os.pathsep.join(folders))
    limit(compiler is not None, "no nvcc on PATH or in CUDA_HOME")
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    target = ROOT / "build" / f"{SOURCE.stem}_{arch}.so"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        flags = ["-O3", f"-arch={arch}", "-shared", "-Xcompiler", "-fPIC"]
        command = [str(compiler), *flags, str(SOURCE), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True)
        limit(done.returncode == 0, f"nvcc failed: {done.stderr.strip()[:200]}")
    return ctypes.CDLL(str(target))


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
