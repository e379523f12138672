# SPDX-License-Identifier: Apache-2.0
"""The versions of torch and Python that there are builds for, names of wheels, README's program."""

import ast
import re
import runpy
import sys

import pytest
from shipping import ROOT, call, clean_env

from torchvox._build import BUILD_INFO
from torchvox.cli import doctor

WHEELS = runpy.run_path(str(ROOT / "configs" / "wheels.py"))
RANGE = re.search(r'supported-torch = "(.*?)"', (ROOT / "pyproject.toml").read_text())[1]


def test_every_place_says_the_same_versions_of_torch():
    oldest, newest = RANGE.split(" to ")
    assert BUILD_INFO["supported_torch"] == RANGE  # the import guard
    assert f"torch from {oldest} to {newest} is supported" in (ROOT / "README.md").read_text()
    assert f"torch {RANGE} is supported" in (ROOT / "CHANGELOG.md").read_text()
    assert f"(supported: {RANGE})" in dict(doctor._build())["torch"]
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text()
    minors = range(int(oldest.split(".")[1]), int(newest.split(".")[1]) + 1)
    assert WHEELS["torch_versions"]() == [f"2.{minor}" for minor in minors]
    listed = call(sys.executable, "configs/wheels.py", cwd=ROOT).stdout
    assert f"torch {', '.join(WHEELS['torch_versions']())}" in listed
    assert re.findall(r"^  (\w+)", listed, re.M) == [*WHEELS["KINDS"]]


def test_a_build_without_what_it_needs_stops_in_one_sentence(monkeypatch):
    backend = runpy.run_path(str(ROOT / "configs" / "build_backend.py"))
    monkeypatch.delenv("TORCHVOX_TORCH_DIRS", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for hook in ("get_requires_for_build_wheel", "get_requires_for_build_editable"):
        with pytest.raises(SystemExit, match="--no-build-isolation"):
            backend[hook]()
    monkeypatch.setattr("importlib.metadata.version", lambda name: "65.5.0")
    with pytest.raises(SystemExit, match=r"setuptools >= 77, and 65\.5\.0 is installed"):
        backend["check_setuptools"]()


def test_the_program_in_readme_runs_on_the_cpu():
    there = {}
    exec(WHEELS["ten_lines"]().replace("100_000", "5_000"), there)
    assert there["voxels"].features.shape[1] == 4 and there["idx"].shape == (1, 1024)
    assert there["height"].shape[1:] == (512, 512)


WHEEL_TAG = """
import runpy, sys
from setuptools import Distribution, Extension
folder, sys.argv = sys.argv[1], ["setup.py", "--version"]
wheel = runpy.run_path("setup.py")["Wheel"](Distribution({"ext_modules": [Extension("_C", [])]}))
wheel.bdist_dir = folder
wheel.ensure_finalized()
print(wheel.get_tag())
"""


@pytest.mark.parametrize(
    ("minors", "tag"),
    [((), "cp{0}-cp{0}"), ((11,), "cp{0}-cp{0}"), ((14, 9, 10), "cp39.cp310.cp314-none")],
)
def test_a_wheel_names_each_python_that_it_holds_a_module_for(minors, tag, tmp_path):
    (tmp_path / "torchvox").mkdir()
    for minor in minors:
        (tmp_path / "torchvox" / f"_C.cpython-3{minor}-x86_64-linux-gnu.so").touch()
    said = call(sys.executable, "-c", WHEEL_TAG, tmp_path, cwd=ROOT, env=clean_env()).stdout
    here = f"{sys.version_info.major}{sys.version_info.minor}"
    assert "-".join(ast.literal_eval(said.splitlines()[-1])[:2]) == tag.format(here)


def test_a_wheel_names_its_kind(tmp_path):
    call(
        *(sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", tmp_path),
        cwd=ROOT,
        env=clean_env(TORCHVOX_LOCAL_VERSION="cpu"),
    )
    facts = (tmp_path / "torchvox.egg-info" / "PKG-INFO").read_text()
    assert re.search(r"^Version: [\d.]+\+cpu$", facts, re.M)
