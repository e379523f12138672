# SPDX-License-Identifier: Apache-2.0
"""Compiles baseline_fps.cu when it is first wanted, and calls it on torch's current stream."""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.machine import ROOT
from benchmarks.suite import NotApplicable

SOURCE = Path(__file__).with_suffix(".cu")


@functools.cache
def prepare() -> None:
    """Compiles and loads the kernels of all block sizes, so that no call has to."""
    if _load()[0] is not None:
        for points in (32, 128, 512, 1024):
            sample(torch.zeros(1, points, 3, device="cuda"), 2)
        torch.cuda.synchronize()


def sample(points: Tensor, samples: int) -> Tensor:
    """points [B, N, 3] float32 on the GPU. Returns [B, samples] int32.

    Raises NotApplicable when it cannot be compiled here.
    """
    library, reason = _load()
    if library is None:
        raise NotApplicable(reason)
    clouds, count = points.shape[:2]
    dist2 = points.new_empty(clouds, count)
    idx = torch.empty(clouds, samples, dtype=torch.int32, device=points.device)
    error = library.baseline_fps_launch(
        *(ctypes.c_void_p(points.data_ptr()), clouds, count, samples),
        *(ctypes.c_void_p(dist2.data_ptr()), ctypes.c_void_p(idx.data_ptr())),
        ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
    )
    if error:
        raise RuntimeError(f"the baseline kernel gave CUDA error {error}")
    return idx


@functools.cache
def _load() -> tuple[ctypes.CDLL | None, str | None]:
    compiler = shutil.which("nvcc", path=os.pathsep.join(_folders()))
    if compiler is None:
        return None, "no nvcc on PATH or in CUDA_HOME"
    major, minor = torch.cuda.get_device_capability()
    target = ROOT / "build" / f"baseline_fps_sm{major}{minor}.so"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        command = [compiler, "-O3", f"-arch=sm_{major}{minor}", "-shared", "-Xcompiler", "-fPIC"]
        done = subprocess.run(
            [*command, str(SOURCE), "-o", str(target)], capture_output=True, text=True
        )
        if done.returncode != 0:
            return None, f"nvcc failed: {done.stderr.strip()[:200]}"
    return ctypes.CDLL(str(target)), None


def _folders() -> list[str]:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    return os.environ.get("PATH", "").split(os.pathsep) + [f"{home}/bin" for home in homes if home]
