# SPDX-License-Identifier: Apache-2.0
"""How these tests build, install and run torchvox outside of the test process.

Nothing is downloaded.
"""

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import filelock  # comes with torch
import numpy as np
import pytest
import torch

import torchvox

ROOT = Path(__file__).resolve().parents[2]
LOCAL_VERSION = "pt0test"  # of the wheel of this tree
BUILD = Path(os.environ.get("TORCHVOX_BUILD_DIR", ROOT / "build" / "cmake"))


def call(*command, cwd=None, env=None, ok: bool = True) -> subprocess.CompletedProcess:
    """Runs a program with its output captured; a failure shows all of it."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if ok and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(map(str, command))} gave {done.returncode}:\n{done.stdout}"
        )
    return done


def tool(name: str) -> str:
    """A program of the build; skips the test when this machine has none."""
    beside_python = Path(sys.executable).parent / name
    path = str(beside_python) if beside_python.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on PATH")
    return path


def once(tmp_path_factory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills once in a test run, by the first of pytest-xdist's workers."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder = base / name
    with filelock.FileLock(base / f"{name}.lock"):
        if not (folder / ".made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / ".made").touch()
    return folder


def clean_env(**more: str) -> dict[str, str]:
    """The environment without this process's Python paths and build settings."""
    mine = ("PYTHON", "TORCHVOX", "TORCH_CUDA", "CUDACXX", "PYTEST", "CMAKE", "MAX_JOBS")
    env = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
    tools = {str(Path(tool(name)).parent) for name in ("cmake", "ninja") if shutil.which(name)}
    path = [str(Path(sys.executable).parent), env["PATH"], *tools]
    return {**env, "PATH": os.pathsep.join(path), "MAX_JOBS": "2", **more}


def without_nvcc(env: dict[str, str]) -> dict[str, str]:
    folders = [f for f in env["PATH"].split(os.pathsep) if not (Path(f) / "nvcc").exists()]
    if shutil.which("g++", path=os.pathsep.join(folders)) is None:
        pytest.skip("nvcc lies in the folder of the compiler")
    return {**env, "PATH": os.pathsep.join(folders)}


def same_build_env() -> dict[str, str]:
    """The settings of the build in this tree, so that building again compiles nothing."""
    cache = BUILD / "CMakeCache.txt"
    if not cache.exists():
        pytest.skip(f"no build in {BUILD}: run `make build`")
    values = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.MULTILINE))
    return clean_env(
        TORCHVOX_BUILD_DIR=str(BUILD),
        TORCHVOX_LOCAL_VERSION=LOCAL_VERSION,
        TORCHVOX_CUDA=values.get("TORCHVOX_CUDA", "AUTO"),
        TORCH_CUDA_ARCH_LIST=values.get("TORCH_CUDA_ARCH_LIST", ""),
        NVCC_THREADS=values.get("TORCHVOX_NVCC_THREADS", ""),
        TORCHVOX_CMAKE_ARGS=f"-DTORCHVOX_WERROR={values.get('TORCHVOX_WERROR', 'OFF')}",
    )


def build_wheel(source: Path, folder: Path, env: dict[str, str]) -> str:
    """Builds the wheel of a source tree into `folder`; returns what the build printed."""
    return call(
        *(sys.executable, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps"),
        *("--no-index", "--wheel-dir", folder, source),
        env=env,
        cwd=folder,
    ).stdout


@functools.cache
def _closure(*names: str) -> tuple[importlib.metadata.Distribution, ...]:
    """The distributions that `names` need, themselves included; those that are installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    queue = list(names)
    while queue:
        requirement = queue.pop()
        if "extra ==" in requirement:
            continue
        name = re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        queue += found[name].requires or []
    return tuple(found.values())


def clean_venv(folder: Path, wheel: Path) -> Path:
    """A virtual environment with torch, NumPy, what they need and the wheel, and nothing else.

    torch is not copied: its top-level folders are linked beside the wheel's. Returns the
    interpreter.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    scheme = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    site = Path(scheme["purelib"])
    for distribution in _closure("torch", "numpy"):
        for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}:
            source = Path(distribution.locate_file(top)).resolve()
            if top != "__pycache__" and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    call(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"),
        wheel,
        env=clean_env(),
    )
    return python


def saved_points(folder: Path, clouds) -> list[Path]:
    """A .bin file of each cloud."""
    paths = [folder / f"cloud{i}.bin" for i in range(len(clouds))]
    for path, cloud in zip(paths, clouds, strict=True):
        cloud.numpy().tofile(path)
    return paths


def configure_examples(build: Path, prefix: Path, env: dict[str, str] | None = None) -> str:
    """Configures examples/cpp against an installed torchvox; returns what CMake prints."""
    return call(
        *(tool("cmake"), "-S", ROOT / "examples" / "cpp", "-B", build, "-G", "Ninja"),
        f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed",
        env=env or clean_env(),
    ).stdout


def cmake_example(name: str, build: Path, prefix: Path, env: dict[str, str] | None = None) -> Path:
    """A program of examples/cpp, linked with --as-needed, which needs no Python."""
    configure_examples(build, prefix, env)
    call(tool("cmake"), "--build", build, "--target", name, "-j", "1", env=env or clean_env())
    libraries = call(tool("readelf"), "-d", build / name).stdout
    assert not re.search(r"libpython|libtorch_python", libraries)
    assert ("libtorchvox.so" in libraries) == (name != "kernels_only")
    return build / name


def heights(program: Path, cloud: torch.Tensor, folder: Path) -> tuple:
    """What examples/cpp/kernels_only prints for a cloud, its heights, and the op's with counts."""
    saved_points(folder, [cloud])
    printed = call(program, folder / "cloud0.bin", cloud.size(1), folder / "height.bin").stdout
    box = [0.0, -40.0, -3.0, 80.0, 40.0, 3.0]
    expected, counts = torchvox.bev_max_height(cloud, box, [400, 400], orientation="image")
    height = np.fromfile(folder / "height.bin", np.float32).reshape(400, 400)
    return printed, height, expected[0].numpy(), counts
