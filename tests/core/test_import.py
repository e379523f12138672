# SPDX-License-Identifier: Apache-2.0
"""The import: guarded against the wrong torch, free of the extras, of Python and of compilers."""

import subprocess
from pathlib import Path

import pytest
import torch
from fresh import fresh_process

import torchvox
from torchvox import _library
from torchvox._build import BUILD_INFO

BINDING = _library.binding(torch.__version__)
LIBRARIES = [BINDING, *_library.BINDINGS.glob("libtorchvox_*.so")]
EXTRAS = "typer,rich,yaml,laspy,lazrs,pypcd4,matplotlib,pytest,hypothesis"


@pytest.fixture
def built_for(monkeypatch):
    def pretend(torch_version: str, cuda: str) -> None:
        built = {"version": "0.3.1", "torch": torch_version, "cuda": cuda}
        monkeypatch.setattr(_library, "BUILD_INFO", {**BUILD_INFO, **built})

    return pretend


WRONG = "torchvox 0.3.1 was built for torch {} (CUDA 13) but torch {} is installed: {}"
NEW = "install the wheel torchvox-0.3.1+cu13, or run `pip install --no-build-isolation .` in the "
NEW += "source folder of torchvox"
OLD = f"torchvox 0.3.1 supports torch {BUILD_INFO['supported_torch']}, run "
OLD += """`pip install "torch==2.15.*"`"""


@pytest.mark.parametrize(
    ("built", "cuda", "found", "found_cuda", "words"),
    [
        ("2.11.0", "13.0", "2.12.0+cu130", "13.0", WRONG.format("2.11", "2.12.0 (CUDA 13.0)", NEW)),
        ("2.15.0", "13.0", "2.16.0+cu130", "13.0", WRONG.format("2.15", "2.16.0 (CUDA 13.0)", OLD)),
        ("2.11.0, 2.15.0", "13.0", "2.9.1+cpu", None, '`pip install "torch==2.11.*"`'),
        ("2.11.0, 2.12.1", "13.0", "2.12.0+cu130", "13.0", None),
        ("2.11.0, 2.12.1", "13.0", "2.13.0", "13.0", "was built for torch 2.11, 2.12 (CUDA 13)"),
        ("2.11.0", "13.0", "2.11.0+cu128", "12.8", "(CUDA 12.8) is installed"),
        ("2.11.0", "13.0", "2.11.0+cpu", None, "(CPU only) is installed"),
        ("2.11.0", "13.0", "2.11.1+cu132", "13.2", None),  # a minor version of CUDA
        ("2.11.0", "", "2.11.0+cpu", None, None),  # built for the CPU alone: fits any CUDA
        ("2.11.0", "", "2.11.0+cu130", "13.0", None),
        ("2.11.0", "", "2.12.0", None, "CPU only"),
    ],
)
def test_another_torch_or_cuda_is_refused_in_one_sentence(
    built_for, built, cuda, found, found_cuda, words
):
    built_for(built, cuda)
    said = _library.mismatch(found, found_cuda)
    if words is None or words.startswith("torchvox"):
        assert said == words
    else:
        assert words in said


def test_load_raises_the_sentence_before_it_opens_the_library(built_for, monkeypatch):
    built_for("1.0.0", "13.0")
    monkeypatch.setattr(_library, "BINDINGS", Path("/nowhere"))
    with pytest.raises(ImportError, match=r"was built for torch 1.0 .* but torch"):
        _library.load()


def test_a_library_that_does_not_open_names_the_remedy(monkeypatch, tmp_path):
    broken = tmp_path / BINDING.parent.name / "libtorchvox.so"
    broken.parent.mkdir()
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(_library, "BINDINGS", tmp_path)
    with pytest.raises(ImportError, match=r"could not load .* run `pip install --no-build"):
        _library.load()


def test_the_build_agrees_with_what_is_installed_and_with_the_binary():
    assert _library.mismatch(torch.__version__, torch.version.cuda) is None
    from torchvox import _C

    binary = _C.build_info()
    assert {k: str(v) for k, v in BUILD_INFO.items() if k in binary} == {
        k: v for k, v in binary.items() if k in BUILD_INFO
    }
    assert torchvox.__version__ == binary["version"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_libraries_link_neither_python_nor_torchs_python(library):
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    needed = [line for line in dynamic.stdout.splitlines() if "(NEEDED)" in line]
    assert needed
    assert not [line for line in needed if "libpython" in line or "libtorch_python" in line]
    if library != BINDING:
        others = [line.replace("libtorchvox", "") for line in needed]
        assert not [line for line in others if "libtorch" in line or "libc10" in line]


BLOCK_EXTRAS = """
import sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it raises ImportError
import torch, torchvox, torchvox.io, torchvox.data
torchvox.bev_max_height(torch.rand(10, 3), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [4, 4])
print("imported")
"""


def test_the_base_import_needs_no_extra():
    assert fresh_process(BLOCK_EXTRAS, EXTRAS) == "imported"


WATCH_PROCESSES = """
import subprocess, os
def refuse(*arguments, **options): raise AssertionError(f"the import starts a process: {arguments}")
import torch
subprocess.Popen.__init__ = refuse
os.system = refuse
os.fork = refuse
import torchvox
print("imported")
"""


def test_the_import_starts_no_compiler_or_any_other_process():
    assert fresh_process(WATCH_PROCESSES) == "imported"


def test_the_binary_extension_holds_no_op():
    """torchvox._C is the one file tied to a Python version; the ops work without it."""
    code = "import sys; sys.modules['torchvox._C'] = None\nimport torchvox, samples\n"
    code += "print(all(samples.run(op, op.call(20, 0)) for op in samples.OPS))"
    assert fresh_process(code) == "True"


def test_importing_loads_what_ops_and_modules_need_and_no_more():
    before = "import sys, torch; before = set(sys.modules)"
    loaded = fresh_process(f"{before}; import torchvox; print(*set(sys.modules) - before)").split()
    assert len(loaded) <= 40
    assert not [m for m in loaded if m.startswith(("torchvox.models", "torchvox.data"))]
