# SPDX-License-Identifier: Apache-2.0
"""Loads the op library that was built for the installed torch."""

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

BINDINGS = Path(__file__).parent / "lib"  # torch-<minor version>/libtorchvox.so for each torch


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _major(version: str) -> str:
    return version.split(".")[0]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")[:2]]


def binding(torch_version: str) -> Path:
    """The op library for a version of torch."""
    return BINDINGS / f"torch-{_minor(torch_version)}" / "libtorchvox.so"


def mismatch(torch_version: str, torch_cuda: str | None) -> str | None:
    """One sentence if this build does not fit `torch_version` and `torch_cuda`, else None."""
    version, supported = BUILD_INFO["version"], BUILD_INFO["supported_torch"]
    built = [_minor(each) for each in BUILD_INFO["torch"].split(", ")]
    cuda = _major(BUILD_INFO["cuda"])
    fits = _minor(torch_version) in built
    if fits and cuda in ("", _major(torch_cuda or "")):
        return None
    installed = torch_version.split("+")[0]
    wheel = f"torchvox-{version}+{f'cu{_major(torch_cuda)}' if torch_cuda else 'cpu'}"
    remedy = (
        f"install the wheel {wheel}, or run `pip install --no-build-isolation .` in the source "
        "folder of torchvox"
    )
    oldest, newest = (_numbers(minor) for minor in supported.split(" to "))
    if not oldest <= _numbers(installed) <= newest:
        nearest = built[-1] if _numbers(installed) > newest else built[0]
        remedy = (
            f'torchvox {version} supports torch {supported}, run `pip install "torch=={nearest}.*"`'
        )
    return (
        f"torchvox {version} was built for torch {', '.join(built)} "
        f"({f'CUDA {cuda}' if cuda else 'CPU only'}) but torch {installed} "
        f"({'CUDA ' + torch_cuda if torch_cuda else 'CPU only'}) is installed: {remedy}"
    )


def own_runtime(library: Path) -> bool:
    """Whether a library contains its own libstdc++ instead of torch's, so that its first C++ error
    ends the process. See configs/cmake/check_runtime.cmake."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"\0libstdc++.so") < 0


def load() -> None:
    """Register the ops. Raises ImportError with the remedy if the build does not fit torch."""
    problem = mismatch(torch.__version__, torch.version.cuda)
    if problem:
        raise ImportError(problem)
    library = binding(torch.__version__)
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"torchvox could not load {library}: {error}. If a symbol is undefined, torch changed "
            "since the build: run `pip install --no-build-isolation .` in its source folder to "
            "rebuild"
        ) from error


def onnx_library() -> str:
    """Path of libtorchvox_onnx.so, the ops for ONNX Runtime, which needs no torch.

    Raises RuntimeError where the build has none.
    """
    path = BINDINGS / "libtorchvox_onnx.so"
    if not path.is_file():
        raise RuntimeError(
            "this build of torchvox has no libtorchvox_onnx.so: build with -DTORCHVOX_ONNX=ON, or "
            "install a wheel"
        )
    return str(path)
