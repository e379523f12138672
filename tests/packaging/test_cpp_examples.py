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
    configure_examples,
    heights,
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
        voxels = features, indices, num_points, point_voxel, counts
        return height, top, bev_counts, *voxels, idx, dist2


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
        for name in ("module_runner", "kernels_only"):
            cmake_example(name, folder, prefix)

    return once(tmp_path_factory, f"cpp_examples_{request.param}", make)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "kind"),
    [(SomeOps, "script"), (pillar_features.make_model, "script"), (SomeOps, "aoti")],
)
@torch.inference_mode()
def test_a_module_gives_the_bits_of_eager(programs, tmp_path, make, kind):
    model, path = make().eval(), tmp_path / f"model.{'pt2' if kind == 'aoti' else 'pt'}"
    if kind == "script":
        torch.jit.script(model).save(str(path))
    else:
        exported = pillar_features.export(model)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
    for size in SIZES[kind == "aoti" :]:  # torch.export takes sizes below 2 for constants
        cloud = pillar_features.make_cloud(max(size, 1), size)[:size]
        (file,) = saved_points(tmp_path, [cloud])
        call(programs / "module_runner", path, file, 4, tmp_path / "out.pt", env=clean_env())
        outputs = tuple(torch.load(tmp_path / "out.pt", weights_only=True))
        expected = tuple(model(cloud, torch.tensor([0, len(cloud)])))
        assert_same_bits(outputs, expected, f"{size} points")


@pytest.mark.slow
def test_kernels_only_program_gives_the_bits_of_the_op(programs, tmp_path):
    program = programs / "kernels_only"
    said, height, expected, counts = heights(program, pillar_features.make_cloud(5000, 1), tmp_path)
    if _C.build_info()["cuda"]:
        assert ("the same bits" if torch.cuda.is_available() else "skipped, no CUDA device") in said
    assert np.array_equal(height, expected)
    assert f"{counts[0, 1]} used, {counts[0, 2]} out of range, {counts[0, 3]} not finite" in said
    assert "torch.so" not in call(tool("readelf"), "-d", program).stdout


def test_programs_find_the_package_of_this_tree(tmp_path):
    """Configuring is quick; the slow tests build and run."""
    assert "Configuring done" in configure_examples(tmp_path, torchvox.cmake_prefix_path)


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
