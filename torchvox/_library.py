# SPDX-License-Identifier: Apache-2.0
"""Loads the op library, after a check that it was built for the torch that is installed."""

import mmap
from pathlib import Path

import torch

try:
    from torchvox._build import BUILD_INFO
except ImportError as error:
    raise ImportError(
        "torchvox is not built: run `pip install --no-build-isolation -e .` in its source folder "
        "(or `make build`), or install a wheel"
    ) from error

LIBRARY = Path(__file__).parent / "lib" / "libtorchvox.so"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")[:2]]


def mismatch(torch_version: str, torch_cuda: str | None) -> str | None:
    """One sentence when this build does not fit `torch_version` and `torch_cuda`, else None."""
    built_torch, built_cuda = BUILD_INFO["torch"], BUILD_INFO["cuda"]
    fits = _minor(built_torch) == _minor(torch_version)
    if fits and built_cuda:
        fits = torch_cuda is not None and built_cuda.split(".")[0] == torch_cuda.split(".")[0]
    if fits:
        return None
    version, supported = BUILD_INFO["version"], BUILD_INFO["supported_torch"]
    installed = torch_version.split("+")[0]
    wheel = f"pt{''.join(installed.split('.')[:2])}" + (
        f"cu{torch_cuda.replace('.', '')}" if torch_cuda else "cpu"
    )
    remedy = (
        f"install a wheel torchvox-{version}+{wheel}, or run "
        "`pip install --no-build-isolation .` in its source folder"
    )
    oldest, newest = (_numbers(minor) for minor in supported.split(" to "))
    if not oldest <= _numbers(installed) <= newest:
        remedy = (
            f"torchvox {version} supports torch {supported}, run "
            f'`pip install "torch=={_minor(built_torch)}.*"`'
        )
    return (
        f"torchvox {version} was built for torch {_minor(built_torch)} "
        f"({'CUDA ' + built_cuda if built_cuda else 'CPU only'}) but torch {installed} "
        f"({'CUDA ' + torch_cuda if torch_cuda else 'CPU only'}) is installed: {remedy}"
    )


def own_runtime(library: Path) -> bool:
    """Whether a library has libstdc++ inside and does not share it with torch, as
    configs/cmake/check_runtime.cmake finds out: its first error ends the process."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"\0libstdc++.so") < 0


def load() -> None:
    """Registers the ops. Raises ImportError with the remedy when the build does not fit torch."""
    problem = mismatch(torch.__version__, torch.version.cuda)
    if problem:
        raise ImportError(problem)
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise ImportError(
            f"torchvox could not load {LIBRARY}: {error}. If a symbol is undefined, torch changed "
            "since the build: run `pip install --no-build-isolation .` in its source folder to "
            "rebuild"
        ) from error
