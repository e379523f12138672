# SPDX-License-Identifier: Apache-2.0
"""The kernel layer knows nothing of torch, the op library nothing of Python."""

import json
import re
import shlex
import sysconfig

import pytest
from shipping import BUILD, ROOT, call, tool

from torchvox import _C

KERNEL_FILES = sorted((ROOT / "csrc" / "kernels").rglob("*.*"))
KERNEL_SOURCES = [file for file in KERNEL_FILES if file.suffix == ".cpp"]
LIBRARIES = ROOT / "torchvox" / "lib"


def includes(file) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read_text(), re.MULTILINE)


def compile_commands() -> list[dict]:
    path = BUILD / "compile_commands.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    return json.loads(path.read_text())


def needed(library) -> list[str]:
    if not library.exists():
        pytest.skip(f"no {library}")
    return re.findall(r"NEEDED.*\[(.*)\]", call(tool("readelf"), "-d", library).stdout)


@pytest.mark.parametrize("file", KERNEL_FILES, ids=lambda f: f.name)
def test_kernels_include_only_std_cuda_and_kernels(file):
    allowed = re.compile(r"csrc/kernels/|cuda|cooperative_groups|cub/|thrust/|cccl/|[a-z_]+$")
    assert [name for name in includes(file) if not allowed.match(name)] == []


@pytest.mark.parametrize(
    "source", KERNEL_SOURCES, ids=lambda f: str(f.relative_to(ROOT / "csrc" / "kernels"))
)
def test_kernels_compile_without_a_torch_include_path(source):
    call(tool("g++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-I", ROOT, source)


@pytest.mark.parametrize(
    "header",
    [file for file in KERNEL_FILES if file.suffix == ".h"],
    ids=lambda f: str(f.relative_to(ROOT / "csrc" / "kernels")),
)
def test_installed_headers_compile_alone(header):
    """As a C++ program sees them: only the include folder of the installed tree."""
    installed = ROOT / "torchvox" / "include" / "torchvox"
    if not installed.exists():
        pytest.skip(f"no {installed}")
    call(
        *(tool("g++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-I", installed),
        *("-x", "c++", installed / header.relative_to(ROOT)),
    )


def test_module_compiles_without_a_torch_include_path(tmp_path):
    pybind11 = pytest.importorskip("pybind11")
    generated = BUILD / "generated"
    if not generated.exists():
        pytest.skip(f"no {generated}")
    call(
        *(tool("g++"), "-std=c++17", "-fsyntax-only", "-I", ROOT, "-I", generated),
        *("-I", pybind11.get_include(), "-I", sysconfig.get_paths()["include"]),
        ROOT / "csrc" / "module.cpp",
    )


def test_compile_commands_of_kernels_hold_no_torch_path():
    commands = [c for c in compile_commands() if "csrc/kernels/" in c["file"]]
    assert commands
    for command in commands:
        paths = [part for part in shlex.split(command["command"]) if "/torch/" in part]
        assert paths == [], command["file"]


@pytest.mark.parametrize("header", ["torch/extension.h", "torch/torch.h", "ATen/ATen.h"])
def test_no_file_includes_all_of_torch(header):
    files = [f for f in (ROOT / "csrc").rglob("*.*") if f.suffix in (".h", ".cpp", ".cu", ".cuh")]
    assert [f.name for f in files if header in includes(f)] == []


def test_kernel_library_needs_no_torch_and_no_python():
    assert [
        lib
        for lib in needed(LIBRARIES / "libtorchvox_kernels.so")
        if re.search("torch|c10|py", lib)
    ] == []


def test_op_library_needs_no_python():
    assert [lib for lib in needed(LIBRARIES / "libtorchvox.so") if "python" in lib] == []


def test_cuda_build_needs_a_toolkit_but_no_gpu():
    """The build of this tree: CUDA whenever a toolkit that fits torch was there."""
    info = _C.build_info()
    if not info["cuda"]:
        pytest.skip(f"CPU-only build: {info['cpu_only_reason']}")
    sources = [c["file"] for c in compile_commands() if c["file"].endswith(".cu")]
    assert sources and info["archs"]
    assert "libtorch_cuda.so" in needed(LIBRARIES / "libtorchvox.so")
