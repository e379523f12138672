# SPDX-License-Identifier: Apache-2.0
"""Drives CMake. Sources, flags and the choice between CUDA and CPU-only live in CMakeLists.txt."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project into the package folder."""

    def run(self):
        try:
            import torch  # noqa: F401
        except ImportError:
            sys.exit(
                "torchvox builds against the installed torch, and there is none: run "
                '`pip install "torch>=2.11,<2.14"` first, then '
                "`pip install --no-build-isolation torchvox`"
            )
        package = ROOT if self.inplace else Path(self.build_lib).resolve()
        build = Path(os.environ.get("TORCHVOX_BUILD_DIR", ROOT / "build" / "cmake")).resolve()
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        configure = [
            "cmake",
            f"-S{ROOT}",
            f"-B{build}",
            f"-DCMAKE_BUILD_TYPE={os.environ.get('TORCHVOX_BUILD_TYPE', 'Release')}",
            f"-DCMAKE_INSTALL_PREFIX={package / 'torchvox'}",
            f"-DTORCHVOX_PYTHON={sys.executable}",
            f"-DTORCHVOX_CUDA={os.environ.get('TORCHVOX_CUDA', 'AUTO')}",
            f"-DTORCH_CUDA_ARCH_LIST={os.environ.get('TORCH_CUDA_ARCH_LIST', '')}",
        ]
        if not (build / "CMakeCache.txt").exists():
            configure.append("-GNinja")
        configure += os.environ.get("TORCHVOX_CMAKE_ARGS", "").split()
        for command in (
            configure,
            ["cmake", "--build", str(build), "-j", jobs],
            ["cmake", "--install", str(build)],
        ):
            if subprocess.run(command).returncode:
                sys.exit(f"torchvox: the build stopped in: {' '.join(command)}")

    def get_outputs(self):
        return []

    def get_source_files(self):
        return []


setup(ext_modules=[Extension("torchvox._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
