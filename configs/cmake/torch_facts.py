# SPDX-License-Identifier: Apache-2.0
"""Prints what the build must know of torch, as CMake list items KEY=VALUE; | separates values.

torch_facts.py             of the torch that this Python imports
torch_facts.py FOLDER...   of these folders `torch` of unpacked wheels, which are not imported
"""

import runpy
import sys
from pathlib import Path

try:
    import pybind11

    pybind11_dir = pybind11.get_cmake_dir()
except ImportError:
    pybind11_dir = ""

if folders := [Path(name).resolve() for name in sys.argv[1:]]:
    versions = [runpy.run_path(str(folder / "version.py")) for folder in folders]
    archs, abi = [], 1  # every wheel of torch on the index since 2.7
else:
    import torch

    folders, versions = [Path(torch.__file__).parent], [vars(torch.version)]
    archs, abi = (torch._C._cuda_getArchFlags() or "").split(), torch._C._GLIBCXX_USE_CXX11_ABI
cudas = sorted({version["cuda"] or "" for version in versions})
if len({cuda.split(".")[0] for cuda in cudas}) > 1:
    sys.exit(f"torch_facts: the folders have torch for CUDA {', '.join(cudas)}, not for one CUDA")
facts = {
    "DIRS": "|".join(folder.as_posix() for folder in folders),
    "VERSIONS": "|".join(version["__version__"].split("+")[0] for version in versions),
    "CUDA": cudas[0],
    "ARCHS": " ".join(arch.removeprefix("sm_") for arch in archs if arch.startswith("sm_")),
    "CXX11_ABI": int(abi),
    "PYBIND11_DIR": pybind11_dir,
}
print(";".join(f"{key}={value}" for key, value in facts.items()), end="")
