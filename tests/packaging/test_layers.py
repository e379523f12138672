# SPDX-License-Identifier: Apache-2.0
"""The kernel layer compiles without torch; what libraries link is in tests/core/test_import.py."""

import json
import shlex
import sysconfig

import pytest
import torch
from shipping import BUILD, ROOT, call, tool

from torchvox import _C, _library


def compile_commands() -> list[dict]:
    path = BUILD / "compile_commands.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    return json.loads(path.read_text())


@pytest.mark.slow
def test_installed_headers_compile_alone():
    """As a C++ program sees them: only the include folder of the installed tree."""
    installed = ROOT / "torchvox" / "include" / "torchvox"
    if not installed.exists():
        pytest.skip(f"no {installed}")
    for header in sorted((installed / "csrc" / "kernels").rglob("*.h")):
        call(
            *(tool("g++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-I", installed),
            *("-x", "c++", header),
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


def test_cuda_build_needs_a_toolkit_but_no_gpu():
    """The build of this tree: CUDA whenever a toolkit that fits torch was there."""
    info = _C.build_info()
    if not info["cuda"]:
        pytest.skip(f"CPU-only build: {info['cpu_only_reason']}")
    sources = [c["file"] for c in compile_commands() if c["file"].endswith(".cu")]
    assert sources and info["archs"]
    library = _library.binding(torch.__version__)
    assert "[libtorch_cuda.so]" in call(tool("readelf"), "-d", library).stdout
