# SPDX-License-Identifier: Apache-2.0
"""What the wheel holds, and that it works in an environment with torch and nothing else."""

import email
import json
import re
import sys
import zipfile

import pytest
from shipping import LOCAL_VERSION, ROOT, call, clean_env, tool
from shipping import without_nvcc as remove_nvcc

from torchvox import _C

pytestmark = pytest.mark.slow  # builds the library again


def zip_names(wheel) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="session")
def names(wheel):
    return zip_names(wheel)


def test_repair_names_a_manylinux_and_copies_no_library(wheel, names, tmp_path):
    """torch, CUDA and the runtime of C++ are there already: no second copy."""
    command = re.search(r'repair-wheel-command = "(.*)"', (ROOT / "pyproject.toml").read_text())[1]
    program, *arguments = command.format(dest_dir=tmp_path, wheel=wheel).split()
    call(tool(program), *arguments, env=clean_env())
    [repaired] = tmp_path.glob("*.whl")
    assert re.search(r"-manylinux_2_\d+_\w+\.whl$", repaired.name)
    libraries = [{n for n in found if ".so" in n} for found in (names, zip_names(repaired))]
    assert libraries[0] == libraries[1]


def test_libraries_of_the_wheel_are_stripped(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for library in tmp_path.rglob("*.so"):
        assert ".symtab" not in call(tool("readelf"), "-S", "-W", library).stdout, library


def test_wheel_says_who_made_it_and_for_what(wheel):
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    name = rf"torchvox-[\d.]+\+{LOCAL_VERSION}-{version}-{version}-linux_\w+\.whl"
    assert re.fullmatch(name, wheel.name)
    files = zipfile.ZipFile(wheel)
    (name,) = (n for n in files.namelist() if n.endswith(".dist-info/METADATA"))
    facts = email.message_from_bytes(files.read(name))
    assert facts["Author"] == "torchvox developers" and "lidar" in facts["Keywords"]
    about = facts.get_all("Classifier")
    assert "Operating System :: POSIX :: Linux" in about
    assert "Programming Language :: Python :: 3.12" in about


FILES = (
    r"_C\..*\.so", r"_build\.py", r"py\.typed", r"lib/torch-2\.\d+/libtorchvox\.so",
    r"lib/libtorchvox_kernels\.so", r"lib/libtorchvox_onnx\.so", r"include/torchvox/torchvox\.h",
    r"include/torchvox/csrc/kernels/bev/max_height\.h",
    r"include/torchvox/csrc/kernels/core/target\.h", r"share/cmake/TorchVox/TorchVoxConfig\.cmake",
    r"share/cmake/TorchVox/TorchVoxKernelsTargets\.cmake", r"reference/__init__\.py",
    r"models/registry\.json", r"models/weights/center_world_small\.world_v1\.pt",
    r"models/weights/pointnet2_cls_shapes_small\.shapes_v1\.pt", r"viz/page\.html",
)  # fmt: skip
FACTS = (r"entry_points\.txt", r"licenses/LICENSE")


def test_wheel_has_its_files_and_the_named_configurations(names):
    patterns = [f"torchvox/{file}" for file in FILES]
    patterns += [rf"torchvox-[^/]*\.dist-info/{file}" for file in FACTS]
    assert [p for p in patterns if not any(re.fullmatch(p, name) for name in names)] == []
    for kind in ("grids", "models"):
        files = (ROOT / "configs" / kind).glob("*.yaml")
        configurations = {f"torchvox/configs/{kind}/{f.name}" for f in files}
        assert configurations and configurations <= names


def test_wheel_has_no_tests_no_sources_and_nothing_stale(names):
    assert {name.split("/")[0].split("-")[0] for name in names} == {"torchvox"}
    assert [n for n in names if re.search(r"\.(cpp|cu|cuh|o|a|pyc)$|/tests/|setup\.py", n)] == []
    modules = {n for n in names if n.endswith(".py") and n != "torchvox/_build.py"}
    tracked = {str(f.relative_to(ROOT)) for f in (ROOT / "torchvox").rglob("*.py")}
    assert modules <= tracked


def test_wheel_runs_without_nvcc_and_without_extras(python, tmp_path):
    program = """
import importlib.util, json, torch, torchvox
from torchvox import _C
assert not torch.cuda.is_initialized()
points = torch.tensor([[1.0, 2.0, 0.5], [1.0, 2.0, 1.5]])
height, counts = torchvox.bev_max_height(points, [0.0, 0.0, 0.0, 4.0, 4.0, 4.0], [4, 4])
model = torchvox.models.get_model("center_world_small", weights="default")
assert not model.training and torchvox.models.get_model("pointpillars_kitti").training
extras = ["typer", "rich", "yaml", "laspy", "pypcd4", "rosbags", "matplotlib", "lightning"]
extras += ["pydantic", "h5py", "pyarrow", "pye57"]
extras = [name for name in extras if importlib.util.find_spec(name)]
print(json.dumps({"file": torchvox.__file__, "info": _C.build_info(), "extras": extras,
                  "height": height.max().item(), "counts": counts[0].tolist()}))
"""
    env = remove_nvcc(clean_env())
    printed = call(python, "-c", program, cwd=tmp_path, env=env).stdout
    result = json.loads(printed.splitlines()[-1])
    assert str(python.parent.parent) in result["file"]
    head = call("git", "rev-parse", "--short=12", "HEAD", cwd=ROOT).stdout.strip()
    assert result["info"] == {**_C.build_info(), "commit": head}
    assert result["extras"] == []
    assert result["height"] == 1.5 and result["counts"] == [1, 2, 0, 0]


def test_command_without_extras_names_the_extra(python, tmp_path):
    done = call(python, "-m", "torchvox", "info", cwd=tmp_path, env=clean_env(), ok=False)
    if "No module named torchvox.__main__" in done.stdout:
        pytest.skip("no command line in this version")
    assert done.returncode != 0
    assert "pip install typer rich PyYAML" in done.stdout and "Traceback" not in done.stdout
