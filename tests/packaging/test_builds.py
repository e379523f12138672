# SPDX-License-Identifier: Apache-2.0
"""Building from the sdist, by make, without a CUDA toolkit, without torch, the kernels alone."""

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from shipping import (
    ROOT,
    build_wheel,
    call,
    clean_env,
    clean_venv,
    cmake_example,
    heights,
    once,
    tool,
    without_nvcc,
)

import torchvox

CODE = '#include <stdexcept>\nvoid f() { throw std::runtime_error("f"); }\n'


@pytest.mark.parametrize("flags", [(), ("-static-libstdc++",)])
def test_a_library_with_a_cpp_runtime_of_its_own_is_refused(flags, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.cpp").write_text(CODE)
    library = tmp_path / "libtorchvox.so"
    call(tool("g++"), "-shared", "-fPIC", *flags, tmp_path / "a.cpp", "-o", library)
    script = ROOT / "configs" / "cmake" / "check_runtime.cmake"
    check = [tool("cmake"), f"-DLIBRARY={library}", "-P", str(script)]
    done = subprocess.run(check, capture_output=True, text=True)
    assert (done.returncode != 0) == bool(flags)
    assert ("static-libstdc++" in done.stderr) == bool(flags)
    cli = pytest.importorskip("torchvox.cli", reason="the extra cli is not installed")
    monkeypatch.setattr("torchvox.cli.doctor.BINDINGS", tmp_path)
    assert cli.main(["doctor"]) == bool(flags)
    assert ("libtorchvox.so must share libstdc++.so" in capsys.readouterr().out) == bool(flags)


CPU_ONLY_PROGRAM = """
import json, torch, torchvox
from torchvox import _C
def refusal(op, *args):
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    try:
        op.redispatch(keys, *args)
    except NotImplementedError as error:
        return str(error)
names = sorted({name.split("::")[1].split(".")[0] for name in
                torch._C._dispatch_get_all_op_names() if name.startswith("torchvox::")})
key = torch._C._dispatch_has_computed_kernel_for_dispatch_key  # composite ones too
points = torch.tensor([[1.0, 2.0, 0.5], [1.0, 2.0, 1.5]])
args = (points, [0.0, 0.0, 0.0, 4.0, 4.0, 4.0], [4, 4])
print(json.dumps({
    "info": _C.build_info(),
    "without CUDA key": [name for name in names if not key(f"torchvox::{name}", "CUDA")],
    "ops": names,
    "refusal": refusal(torch.ops.torchvox.bev_max_height.default, *args),
    "height": torchvox.bev_max_height(*args)[0].max().item(),
}))
"""


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    """The unpacked sdist."""

    def make(folder):
        call(
            *(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder),
            cwd=ROOT,
            env=clean_env(),
        )
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            # The filter came with 3.10.12 and 3.11.4.
            archive.extractall(
                folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
            )

    folder = once(tmp_path_factory, "sdist", make)
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="session")
def cpu_only(tmp_path_factory, sdist):
    """What a program sees of a wheel that was built from the sdist with no nvcc on PATH."""

    def make(folder):
        env = without_nvcc(clean_env())
        (folder / "log").write_text(build_wheel(sdist, folder, env))
        python = clean_venv(folder / "v", next(folder.glob("*.whl")))
        seen = call(python, "-c", CPU_ONLY_PROGRAM, cwd=folder, env=env).stdout
        (folder / "seen.json").write_text(seen.splitlines()[-1])

    folder = once(tmp_path_factory, "cpu_only", make)
    return {**json.loads((folder / "seen.json").read_text()), "log": (folder / "log").read_text()}


def test_sdist_has_everything_that_is_tracked_and_no_build_output(sdist):
    files = {str(f.relative_to(sdist)) for f in sdist.rglob("*") if f.is_file()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = {f for f in listed.stdout.split() if not f.startswith(".")}
    if listed.returncode == 0:
        assert tracked - files == set()
    for folder in ("benchmarks", "csrc", "configs", "torchvox", "tests", "examples"):
        assert any(file.startswith(f"{folder}/") for file in files), folder
    assert [
        f for f in files if re.search(r"\.so$|__pycache__|^torchvox/(lib|include|share)/", f)
    ] == []
    assert "torchvox/_build.py" not in files


@pytest.mark.slow
def test_sdist_builds_for_the_cpu_without_a_toolkit_and_every_op_refuses_cuda(cpu_only):
    reason = "torch" if not torch.version.cuda else "no nvcc was found"
    assert cpu_only["info"]["cuda"] == ""
    assert reason in cpu_only["info"]["cpu_only_reason"]
    assert "torchvox: CPU-only build: " in cpu_only["log"]
    assert cpu_only["height"] == 1.5
    assert cpu_only["ops"] and cpu_only["without CUDA key"] == []
    assert "bev_max_height: this torchvox was built without CUDA" in cpu_only["refusal"]


def configured(folder, *options, env=None) -> str:
    """What CMake prints when it refuses to configure this tree."""
    command = (tool("cmake"), "-S", ROOT, "-B", folder / "build", "-G", "Ninja", *options)
    done = call(*command, f"-DTORCHVOX_PYTHON={sys.executable}", env=env or clean_env(), ok=False)
    assert done.returncode != 0 and done.stdout.count("CMake Error") == 1
    return " ".join(done.stdout.split())


def test_asking_for_cuda_without_a_toolkit_is_an_error_of_one_sentence(tmp_path):
    printed = configured(tmp_path, "-DTORCHVOX_CUDA=1", env=without_nvcc(clean_env()))
    assert "TORCHVOX_CUDA=1 asks for a CUDA build, but " in printed


def test_a_toolkit_of_another_major_version_stops_the_build(tmp_path):
    tool("nvcc")
    (tmp_path / "version.py").write_text("__version__, cuda = '2.11.0+cu128', '12.8'")
    printed = configured(tmp_path, f"-DTORCHVOX_TORCH_DIRS={tmp_path}")
    assert "of CUDA 12.8: put the CUDA 12 toolkit's bin on PATH" in printed


def test_building_without_torch_says_what_to_install_first(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    done = call(
        *(sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", tmp_path / "out"),
        cwd=ROOT,
        env=clean_env(PYTHONPATH=str(tmp_path)),
        ok=False,
    )
    assert done.returncode != 0
    assert 'pip install "torch' in done.stdout and "Traceback" not in done.stdout


@pytest.mark.slow
def test_kernels_alone_build_install_and_serve_a_program(tmp_path):
    """Without torch and without Python on the way."""
    env = without_nvcc(clean_env(PYTHON="/nowhere"))
    prefix = tmp_path / "prefix"
    call(
        *(tool("cmake"), "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja"),
        *("-DTORCHVOX_KERNELS_ONLY=ON", "-DTORCHVOX_CUDA=0", f"-DCMAKE_INSTALL_PREFIX={prefix}"),
        env=env,
    )
    call(tool("cmake"), "--build", tmp_path / "build", "-j", "2", env=env)
    call(tool("cmake"), "--install", tmp_path / "build", env=env)
    program = cmake_example("kernels_only", tmp_path / "example", prefix, env)
    cloud = np.random.default_rng(0).uniform(-5, 85, (1000, 4)).astype(np.float32)
    printed, height, expected, _ = heights(program, torch.from_numpy(cloud), tmp_path)
    assert "cuda: not in this build" in printed
    assert np.array_equal(height, expected)


def pretend_torch(folder, version: str) -> dict[str, str]:
    """An environment where this version of torch is said to be installed."""
    facts = folder / f"torch-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return clean_env(PYTHONPATH=str(folder))


@pytest.mark.parametrize(
    ("version", "supported"),
    [*((v, True) for v in ("2.11.0", "2.15.1+cu132")),
     *((v, False) for v in ("2.9.1", "2.10.0+cpu", "2.16.0a0+git1f2e", "3.0.0"))],
)  # fmt: skip
def test_only_supported_versions_of_torch_are_built_for(version, supported, tmp_path):
    env = pretend_torch(tmp_path, version)
    done = call(sys.executable, "setup.py", "--version", cwd=ROOT, env=env, ok=supported)
    last = done.stdout.strip().splitlines()[-1]
    if supported:
        assert last == torchvox.__version__
    else:
        assert done.returncode == 1 and done.stdout.strip() == last
        assert last.startswith(f"torchvox supports torch 2.11 to 2.15, but torch {version} is ins")


def test_pip_neither_builds_for_a_torch_that_is_not_supported_nor_replaces_it(tmp_path):
    env = pretend_torch(tmp_path, "2.16.0")
    options = ["--no-build-isolation", "--target", tmp_path / "site", ROOT]
    done = call(sys.executable, "-m", "pip", "install", *options, env=env, ok=False)
    assert done.returncode != 0
    assert "torchvox supports torch 2.11 to 2.15, but torch 2.16.0 is installed" in done.stdout
    assert not re.search("Collecting|Downloading|uninstall", done.stdout)
    assert not (tmp_path / "site").exists()


def test_make_leaves_a_python_and_a_command_for_every_folder(tmp_path):
    dry = (tool("make"), "-C", ROOT, "-o", "build/.built", "--dry-run", "demo")
    assert "the command is .venv/bin/torchvox" in call(*dry, env=clean_env()).stdout
    programs = ROOT / ".venv" / "bin"
    if Path(sys.prefix).resolve() != ROOT.resolve() / ".venv":
        pytest.skip("not in the environment that make set up here")
    program = "import torchvox; print(torchvox.__file__)"
    printed = call(programs / "python", "-c", program, cwd=tmp_path, env=clean_env()).stdout
    assert printed.strip() == str((ROOT / "torchvox" / "__init__.py").resolve())
    printed = call(programs / "torchvox", "doctor", "--help", cwd=tmp_path, env=clean_env()).stdout
    assert "Usage: torchvox doctor" in printed
