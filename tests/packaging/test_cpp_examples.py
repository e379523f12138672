# SPDX-License-Identifier: Apache-2.0
"""C++ programs without Python, built with find_package(TorchVox): they link with --as-needed, find
the ops registered, and give the bits that eager Python gives."""

import sys

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from shipping import (
    ROOT,
    call,
    clean_env,
    cmake_example,
    heights,
    needs_no_python,
    once,
    saved_points,
    tool,
)

import torchvox
from torchvox import _C

sys.path.insert(0, str(ROOT / "examples"))
import pillar_features

SIZES = [0, 3, 20000]


class SomeOps(torch.nn.Module):
    """No layer but registered ops, so that every output is bit-equal wherever it runs."""

    def forward(self, points: torch.Tensor, batch_offsets: torch.Tensor):
        box = [0.0, -16.0, -3.0, 32.0, 16.0, 3.0]
        height, top, bev_counts = torch.ops.torchvox.bev_max_height_with_index(
            points, box, [64, 48], batch_offsets=batch_offsets, orientation="image"
        )
        features, indices, num_points, point_voxel, counts = torch.ops.torchvox.voxelize(
            points, [0.5, 0.5, 1.0], box, 5, 900, batch_offsets=batch_offsets, reduce="mean"
        )
        idx, dist2 = torch.ops.torchvox.furthest_point_sample(points[None, :, :3], 64)
        return (
            height,
            top,
            bev_counts,
            features,
            indices,
            num_points,
            point_voxel,
            counts,
            idx,
            dist2,
        )


def inputs(cloud: torch.Tensor):
    return cloud, torch.tensor([0, len(cloud)])


@pytest.fixture(scope="session", params=["tree", "wheel"])
def programs(request, tmp_path_factory):
    """The programs, built against the install in this tree and against the wheel in a clean
    environment."""
    prefix = torchvox.cmake_prefix_path
    if request.param == "wheel":
        python = request.getfixturevalue("python")
        print_prefix = "import torchvox; print(torchvox.cmake_prefix_path)"
        prefix = call(python, "-c", print_prefix, env=clean_env(), cwd="/").stdout.strip()
        assert not prefix.startswith(str(ROOT))

    def make(folder):
        for name in ("torchscript_runner", "aoti_runner", "kernels_only"):
            cmake_example(name, folder / name, prefix)

    return once(tmp_path_factory, f"cpp_examples_{request.param}", make)


@pytest.fixture
def run_program(programs, tmp_path):
    """Runs one of the two torch programs on a cloud; returns the tensors that it wrote."""

    def run(name, model, cloud):
        (path,) = saved_points(tmp_path, [cloud])
        call(programs / name / name, model, path, 4, tmp_path / "out.pt", env=clean_env())
        return torch.load(tmp_path / "out.pt", weights_only=True)

    return run


@pytest.mark.slow
@torch.inference_mode()
def test_torchscript_program_gives_the_bits_of_eager(run_program, programs, tmp_path):
    needs_no_python(programs / "torchscript_runner" / "torchscript_runner")
    for make in (SomeOps, pillar_features.make_model):
        model = make().eval()
        torch.jit.script(model).save(str(tmp_path / "model.pt"))
        for size in SIZES:
            cloud = pillar_features.make_cloud(max(size, 1), size)[:size]
            outputs = run_program("torchscript_runner", tmp_path / "model.pt", cloud)
            assert_same_bits(
                tuple(outputs), tuple(model(*inputs(cloud))), f"{make.__name__} {size}"
            )


@pytest.mark.slow
@torch.inference_mode()
def test_aoti_program_gives_the_bits_of_eager(run_program, programs, tmp_path):
    needs_no_python(programs / "aoti_runner" / "aoti_runner")
    package = str(tmp_path / "model.pt2")
    exported = pillar_features.export(SomeOps())
    torch._inductor.aoti_compile_and_package(exported, package_path=package)
    for size in SIZES[1:]:  # torch.export takes sizes below 2 for constants
        cloud = pillar_features.make_cloud(size, size)
        outputs = run_program("aoti_runner", package, cloud)
        assert_same_bits(tuple(outputs), SomeOps()(*inputs(cloud)), f"{size} points")


@pytest.mark.slow
def test_kernels_only_program_gives_the_bits_of_the_op(programs, tmp_path):
    program = programs / "kernels_only" / "kernels_only"
    said, height, expected, counts = heights(program, pillar_features.make_cloud(5000, 1), tmp_path)
    if _C.build_info()["cuda"]:
        assert ("the same bits" if torch.cuda.is_available() else "skipped, no CUDA device") in said
    assert np.array_equal(height, expected)
    assert f"{counts[0, 1]} used, {counts[0, 2]} out of range, {counts[0, 3]} not finite" in said
    assert "torch.so" not in call(tool("readelf"), "-d", program).stdout


@pytest.mark.parametrize("name", ["detector_runner", "kernels_only"])  # with torch and without
def test_programs_find_the_package_of_this_tree(name, tmp_path):
    """Configuring is quick; the slow tests build and run."""
    done = call(
        *(tool("cmake"), "-S", ROOT / "examples" / "cpp" / name, "-B", tmp_path, "-G", "Ninja"),
        f"-DCMAKE_PREFIX_PATH={torchvox.cmake_prefix_path}",
        env=clean_env(),
    )
    assert "Configuring done" in done.stdout


def test_a_component_that_is_missing_is_named(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(asks LANGUAGES CXX)\n"
        "find_package(TorchVox REQUIRED COMPONENTS kernels boxes)\n"
    )
    done = call(
        *(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja"),
        f"-DCMAKE_PREFIX_PATH={torchvox.cmake_prefix_path}",
        env=clean_env(),
        ok=False,
    )
    said = " ".join(done.stdout.split())
    assert done.returncode and "there is no component boxes; this torchvox has kernels" in said
