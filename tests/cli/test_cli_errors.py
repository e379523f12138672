# SPDX-License-Identifier: Apache-2.0
"""Errors are one sentence on stderr: exit code 2 for wrong use, 1 for failed work."""

import numpy as np
import pytest
import torch

GRID = ("--voxel-size", "0.5", "--range", "0,0,0,20,20,2")
KITTI = ("--layout", "kitti")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("voxelize",), ("PATH",)),
        (("fly",), ("No such command",)),
        (("voxelize", "scan.bin", "--wings", "2"), ("--wings",)),
        (("voxelize", "scan.bin"), ("--layout", "kitti", "nuscenes")),
        (("demo", "scan.bin"), ("--layout", "kitti", "nuscenes")),
        (("info", "scan.bin", "--layout", "velodyne"), ("velodyne", "kitti")),
        (("info", "nowhere.bin"), ("nowhere.bin", "does not exist")),
        (("voxelize", "scan.bin", *KITTI, "--voxel-size", "0"), ("voxel_size",)),
        (("voxelize", "scan.bin", *KITTI, "--voxel-size", "1,2"), ("--voxel-size", "1 or 3")),
        (("voxelize", "scan.bin", *KITTI, "--voxel", "a"), ("--voxel-size", "numbers")),
        (("voxelize", "scan.bin", *KITTI, "--range", "0,0,0,1,1,1"), ("--voxel-size",)),
        (("voxelize", "scan.bin", *KITTI, "--grid", "kitty"), ("kitty", "kitti_pillars")),
        (("voxelize", "scan.bin", *KITTI, "-o", "a.txt"), ("a.txt", ".npz")),
        (("voxelize", "scan.bin", "scan.bin", *KITTI, "-o", "a.npz"), ("one file",)),
        (("voxelize", "scan.bin", "scan.bin", *KITTI, "-o", "out"), ("both write",)),
        (("voxelize", "scan.bin", *KITTI, "--format", "pdf"), ("--format",)),
        (("voxelize", "scan.bin", *KITTI, "--reduce", "median"), ("median",)),
        (("voxelize", "scan.bin", *KITTI, "--max-points", "-2"), ("--max-points",)),
        (("sample", "scan.bin", *KITTI, "--start", "first"), ("--start",)),
        (("sample", "scan.bin", *KITTI, "-n", "-1"), ("-n",)),
        (("bev", "scan.bin", *KITTI, "--channels", "beauty"), ("beauty", "height_max")),
        (("bev", "scan.bin", *KITTI, "--channels", "count,density"), ("one channel",)),
        (("bev", "scan.bin", *KITTI, "--size", "0,4"), ("--size",)),
        (("bev", "scan.bin", *KITTI, "--size", "inf,4"), ("--size",)),
        (("bev", "scan.bin", *KITTI, "--channels", "occupancy:²"), ("occupancy:²",)),
        (("sample", "scan.bin", *KITTI, "--start", "²"), ("--start",)),
        (("sample", "scan.bin", *KITTI, "-n", "9" * 30), ("--count", "64 bits")),
        (
            ("downsample", "scan.bin", *KITTI, "--voxel", "1", "--adaptive", "1," + "9" * 30),
            ("2^63",),
        ),
        *(
            (
                ("downsample", "scan.bin", *KITTI, "--voxel", "1", f"--bounds={box}"),
                ("--bounds", "upper"),
            )
            for box in ("nan,0,0,1,1,1", "0,0,2,1,1,1", "inf,0,0,inf,1,1", "0,0,0,1,1,nan")
        ),
        (("demo", "--device", "tpu"), ("tpu",)),
    ],
)
def test_wrong_use_is_exit_code_2(torchvox_cli, scan, tmp_path, arguments, words):
    before = set(tmp_path.iterdir())
    torchvox_cli(*arguments).assert_one_sentence(2, *words)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["info", "voxelize", "sample", "bev", "demo"])
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00\x76\x00garbage", b"\x00" * 40])
def test_a_damaged_file_is_exit_code_1(torchvox_cli, tmp_path, command, content):
    (tmp_path / "a.npy").write_bytes(content)
    torchvox_cli(command, "a.npy").assert_one_sentence(1, "a.npy")
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


def test_a_cloud_without_the_channel_is_exit_code_1(torchvox_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((9, 3)))
    result = torchvox_cli("bev", "a.npy", "--channels", "intensity_top")
    result.assert_one_sentence(1, "no intensity column")


def test_what_an_op_refuses_is_one_sentence_too(torchvox_cli, scan):
    result = torchvox_cli(
        "voxelize", scan, *KITTI, "--voxel-size", "1.3e-6", "--range", "0,0,0,20,20,20"
    )
    result.assert_one_sentence(1)


def test_demo_without_a_finite_point_says_so(torchvox_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.full((5, 3), np.nan))
    torchvox_cli("demo", "a.npy").assert_one_sentence(1, "no finite point")


def test_an_output_that_cannot_be_written_is_exit_code_1(torchvox_cli, scan, tmp_path):
    (tmp_path / "taken").touch()
    result = torchvox_cli("voxelize", scan, *KITTI, *GRID, "-o", "taken/a.npz")
    result.assert_one_sentence(1, "taken")


def test_one_bad_file_does_not_stop_the_others(torchvox_cli, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "c"):
        np.save(folder / f"{name}.npy", np.random.default_rng(0).random((50, 3)))
    (folder / "b.npy").write_bytes(b"broken")
    result = torchvox_cli("voxelize", folder, "-o", "out")
    assert result.code == 1
    assert "b.npy" in result.err and "1 of 3 files failed" in result.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.voxels.npz", "c.voxels.npz"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["demo", "voxelize", "sample", "bev"])
def test_cuda_without_a_gpu_is_an_error_never_a_fallback(torchvox_cli, scan, tmp_path, command):
    result = torchvox_cli(command, scan, *KITTI, "--device", "cuda")
    result.assert_one_sentence(1, "--device cuda")
    assert [p.name for p in tmp_path.iterdir()] == ["scan.bin"]


@pytest.mark.parametrize(
    ("module", "arguments", "packages"),
    [
        ("laspy", ("info", "a.laz"), "laspy lazrs"),
        ("lazrs", ("info", "a.laz"), "lazrs"),
        ("pypcd4", ("info", "a.pcd"), "pypcd4"),
        ("matplotlib", ("demo",), "matplotlib"),
        ("k3d", ("view", "scan.bin", *KITTI), "k3d"),
        ("yaml", ("voxelize", "scan.bin", *KITTI, "--grid", "sweep_02"), "PyYAML"),
        ("typer", ("info", "scan.bin"), "typer rich PyYAML"),
        ("rich", ("info", "scan.bin"), "rich PyYAML"),
    ],
)
def test_a_missing_extra_names_its_command(
    torchvox_cli, scan, tmp_path, monkeypatch, module, arguments, packages
):
    import importlib

    for name in ("a.laz", "a.pcd"):
        (tmp_path / name).write_bytes(b"LASF")
    real = importlib.import_module

    def without(name, *rest, **options):
        if name.split(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **options)

    monkeypatch.setattr(importlib, "import_module", without)
    torchvox_cli(*arguments).assert_one_sentence(1, f": run pip install {packages}")
