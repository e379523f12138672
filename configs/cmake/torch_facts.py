# SPDX-License-Identifier: Apache-2.0
"""Prints what the build must know of the installed torch, as CMake list items KEY=VALUE."""

from pathlib import Path

import torch

try:
    import pybind11

    pybind11_dir = pybind11.get_cmake_dir()
except ImportError:
    pybind11_dir = ""

flags = torch._C._cuda_getArchFlags() or ""
facts = {
    "DIR": Path(torch.__file__).parent.as_posix(),
    "VERSION": torch.__version__.split("+")[0],
    "CUDA": torch.version.cuda or "",
    "ARCHS": " ".join(a.removeprefix("sm_") for a in flags.split() if a.startswith("sm_")),
    "CXX11_ABI": int(torch._C._GLIBCXX_USE_CXX11_ABI),
    "PYBIND11_DIR": pybind11_dir,
}
print(";".join(f"{key}={value}" for key, value in facts.items()), end="")
