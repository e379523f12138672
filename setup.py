# SPDX-License-Identifier: Apache-2.0
"""Drives CMake. Sources, flags and the choice between CUDA and CPU-only live in CMakeLists.txt.

Of the environment, for wheels (configs/wheels.py sets them): TORCHVOX_LOCAL_VERSION, such as cpu,
is appended to the version; TORCHVOX_PYTHONS names interpreters, as PATH names folders, that the
wheel serves besides the one that builds it; TORCHVOX_TORCH_DIRS names folders of unpacked torch
wheels, each of which gets a binding, in place of the installed torch.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SUPPORTED = re.search(
    r'supported-torch = "([\d.]+) to ([\d.]+)"', (ROOT / "pyproject.toml").read_text()
).groups()


def check_torch():
    """Stops, before pip asks for anything, where the installed torch is not a supported one."""
    if os.environ.get("TORCHVOX_TORCH_DIRS"):  # the build does not look at the installed one
        return
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:  # which only building needs
        return
    oldest, minor, newest = (
        [int(number) for number in version.split(".")[:2]]
        for version in (SUPPORTED[0], installed, SUPPORTED[1])
    )
    if not oldest <= minor <= newest:
        sys.exit(
            f"torchvox supports torch {' to '.join(SUPPORTED)}, but torch {installed} is "
            "installed: build it in an environment with one of these, or take a torchvox made for "
            "yours"
        )


class BuildPython(build_py):
    """Starts from an empty build folder, so that no file of an older build gets into a wheel."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project into the package folder."""

    def run(self):
        if os.environ.get("TORCHVOX_SKIP_BUILD"):  # the Makefile builds after an editable install
            return
        torch_dirs = os.environ.get("TORCHVOX_TORCH_DIRS", "")
        try:
            if not torch_dirs:
                importlib.import_module("torch")
        except ImportError:
            sys.exit(
                "torchvox builds against the installed torch, and there is none: run "
                f'`pip install "torch=={SUPPORTED[1]}.*"` first, then '
                "`pip install --no-build-isolation .` in the source folder"
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
            f"-DTORCHVOX_RPATH_TO_BUILD={'ON' if self.inplace else 'OFF'}",
            f"-DTORCHVOX_PYTHON={sys.executable}",
            f"-DTORCHVOX_TORCH_DIRS={torch_dirs.replace(os.pathsep, ';')}",
            f"-DTORCHVOX_PYTHONS={os.environ.get('TORCHVOX_PYTHONS', '').replace(os.pathsep, ';')}",
            f"-DTORCHVOX_CUDA={os.environ.get('TORCHVOX_CUDA', 'AUTO')}",
            f"-DTORCH_CUDA_ARCH_LIST={os.environ.get('TORCH_CUDA_ARCH_LIST', '')}",
            f"-DTORCHVOX_NVCC_THREADS={os.environ.get('NVCC_THREADS', '')}",
        ]
        if not (build / "CMakeCache.txt").exists():
            configure.append("-GNinja")
        configure += os.environ.get("TORCHVOX_CMAKE_ARGS", "").split()
        self.call(configure)
        self.call(["cmake", "--build", str(build), "-j", jobs])
        for folder in ("lib", "include", "share"):
            shutil.rmtree(package / "torchvox" / folder, ignore_errors=True)
        strip = [] if self.inplace else ["--strip"]
        self.call(["cmake", "--install", str(build), *strip])

    @staticmethod
    def call(command):
        if subprocess.run(command).returncode:
            sys.exit(f"torchvox: the build stopped in: {' '.join(command)}")

    def get_outputs(self):
        return []

    def get_source_files(self):
        return []


class Wheel(bdist_wheel):
    """Names each Python that torchvox._C was built for; nothing else depends on the version."""

    def get_tag(self):
        modules = Path(self.bdist_dir or "", "torchvox").glob("_C.cpython-3*")
        minors = sorted(int(re.match(r"_C\.cpython-3(\d+)-", file.name)[1]) for file in modules)
        python, abi, platform = super().get_tag()
        if len(minors) > 1:
            python, abi = ".".join(f"cp3{minor}" for minor in minors), "none"
        return python, abi, platform


local = os.environ.get("TORCHVOX_LOCAL_VERSION")
check_torch()
setup(
    ext_modules=[Extension("torchvox._C", sources=[])],
    cmdclass={"build_py": BuildPython, "build_ext": CMakeBuild, "bdist_wheel": Wheel},
    options={"egg_info": {"tag_build": f"+{local}"}} if local else {},
)
