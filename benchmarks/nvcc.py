# SPDX-License-Identifier: Apache-2.0
"""Compiles a CUDA source of the baselines when it is first wanted."""

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

import torch

from benchmarks.machine import ROOT
from benchmarks.suite import NotApplicable


def load(source: Path) -> ctypes.CDLL:
    """The library of a source. Raises NotApplicable when it cannot be compiled here."""
    library, reason = _load(source)
    if library is None:
        raise NotApplicable(reason)
    return library


@functools.cache
def _load(source: Path) -> tuple[ctypes.CDLL | None, str | None]:
    compiler = shutil.which("nvcc", path=os.pathsep.join(_folders()))
    if compiler is None:
        return None, "no nvcc on PATH or in CUDA_HOME"
    major, minor = torch.cuda.get_device_capability()
    target = ROOT / "build" / f"{source.stem}_sm{major}{minor}.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        command = [compiler, "-O3", f"-arch=sm_{major}{minor}", "-shared", "-Xcompiler", "-fPIC"]
        done = subprocess.run(
            [*command, str(source), "-o", str(target)], capture_output=True, text=True
        )
        if done.returncode != 0:
            return None, f"nvcc failed: {done.stderr.strip()[:200]}"
    return ctypes.CDLL(str(target)), None


def _folders() -> list[str]:
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    return os.environ.get("PATH", "").split(os.pathsep) + [f"{home}/bin" for home in homes if home]
