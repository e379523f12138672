# SPDX-License-Identifier: Apache-2.0
"""What the commands do when all is well."""

import numpy as np
import pytest

GRID = ("--voxel-size", "0.5", "--range", "0,0,0,20,20,2")
KITTI = ("--layout", "kitti")


def read_png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_voxelize_writes_what_the_op_gives(torchvox_cli, scan, tmp_path):
    import torchvox
    from torchvox.io import read_cloud

    result = torchvox_cli(
        "voxelize", scan, *KITTI, *GRID, "--device", "cpu", "-o", "a.npz", "--max-points", "3"
    )
    assert result.code == 0, result.err
    assert "device: cpu" in result.err
    assert "7 not finite" in result.out
    written = np.load(tmp_path / "a.npz")
    points = read_cloud(scan, "kitti").tensor()
    expected = torchvox.voxelize(
        points, [0.5] * 3, [0, 0, 0, 20, 20, 2], 3, -1, reduce="mean", trim=True
    )
    for name in ("features", "indices", "num_points", "point_voxel", "counts"):
        np.testing.assert_array_equal(written[name], getattr(expected, name).numpy())
    assert tuple(written["columns"]) == ("x", "y", "z", "intensity")
    np.testing.assert_array_equal(written["point_cloud_range"], [0, 0, 0, 20, 20, 2])


def test_voxelize_without_a_grid_derives_the_range_and_says_so(torchvox_cli, scan):
    result = torchvox_cli("voxelize", scan, *KITTI, "--device", "cpu")
    assert result.code == 0, result.err
    assert "derived from the points" in result.out


def test_a_named_grid_can_be_refined(torchvox_cli, scan, tmp_path):
    pytest.importorskip("yaml", reason="PyYAML (extra cli) is not installed")
    result = torchvox_cli(
        "voxelize", scan, *KITTI, "--grid", "sweep_02", "--range=-8,-8,-1,8,8,1", "-o", "a.npz"
    )
    assert result.code == 0, result.err
    written = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(written["voxel_size"], [0.2] * 3)
    np.testing.assert_array_equal(written["point_cloud_range"], [-8, -8, -1, 8, 8, 1])


def test_sample_writes_points_that_lie_in_the_cloud(torchvox_cli, scan, tmp_path):
    result = torchvox_cli("sample", scan, *KITTI, "-n", "50", "-o", "a.npz", "--device", "cpu")
    assert result.code == 0, result.err
    written, cloud = np.load(tmp_path / "a.npz"), np.fromfile(scan, np.float32).reshape(-1, 4)
    np.testing.assert_array_equal(written["points"], cloud[written["idx"]])
    assert len(set(written["idx"])) == 50
    assert np.isfinite(written["points"]).all()
    assert (np.diff(written["dist2"][1:]) <= 0).all()
    assert f"every point within {written['dist2'][-1] ** 0.5:.3g} m of a sample" in result.out


def test_sample_more_than_there_is_gives_every_finite_point_once(torchvox_cli, scan, tmp_path):
    result = torchvox_cli("sample", scan, *KITTI, "-n", "5000", "-o", "a.npz", "--device", "cpu")
    assert result.code == 0, result.err
    assert sorted(np.load(tmp_path / "a.npz")["idx"]) == list(range(7, 3000))


def test_a_random_start_follows_the_seed(torchvox_cli, scan, tmp_path):
    starts = []
    for seed in (1, 1, 2):
        result = torchvox_cli(
            "sample", scan, *KITTI, "-n", 1, "--start", "random", "--seed", seed, "-o", "a.npz"
        )
        assert result.code == 0, result.err
        starts.append(int(np.load(tmp_path / "a.npz")["idx"][0]))
    assert starts[0] == starts[1] != starts[2]


def test_bev_writes_the_channels_in_order(torchvox_cli, scan, tmp_path):
    result = torchvox_cli(
        "bev", scan, *KITTI, *GRID, "--channels", "height_max,count", "-o", "a.npz"
    )
    assert result.code == 0, result.err
    written = np.load(tmp_path / "a.npz")
    assert written["image"].shape == (2, 40, 40)
    assert written["image"][1].sum() == 2993
    assert tuple(written["channels"]) == ("height_max", "count")
    np.testing.assert_array_equal(written["empty"], written["image"][1] == 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("voxelize", *GRID),
        ("sample", "-n", "20"),
        ("bev", *GRID),
        ("bev", "--channels", "intensity_top", "--size", "30,20"),
        ("bev", "--channels", "count"),
    ],
)
def test_pictures_are_whole_png_files(torchvox_cli, scan, tmp_path, arguments):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    result = torchvox_cli(*arguments, scan, *KITTI, "-o", "a.png", "--device", "cpu")
    assert result.code == 0, result.err
    assert min(read_png_size(tmp_path / "a.png")) > 400


@pytest.mark.parametrize("command", ["voxelize", "sample", "bev"])
def test_npy_holds_the_bare_array(torchvox_cli, scan, tmp_path, command):
    options = ("-n", "9") if command == "sample" else GRID
    assert torchvox_cli(command, scan, *KITTI, *options, "-o", "a.npy").code == 0
    assert np.load(tmp_path / "a.npy").dtype == np.float32


def test_a_folder_gives_one_output_per_cloud(torchvox_cli, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b", "a"):
        np.save(tmp_path / "in" / f"{name}.npy", np.random.default_rng(0).random((50, 3)))
    (tmp_path / "in" / "notes.txt").touch()
    result = torchvox_cli("voxelize", "in", "-o", "out")
    assert result.code == 0, result.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.voxels.npz", "b.voxels.npz"]
    assert len(result.out.splitlines()) == 2


def test_an_output_read_back_keeps_origin_and_unit(torchvox_cli, tmp_path):
    world = np.random.default_rng(0).uniform(0, 100, (60, 3)) + np.array([636000, 848400, 400])
    np.save(tmp_path / "a.npy", world)
    assert torchvox_cli("sample", "a.npy", "-n", "10", "-o", "b.npz").code == 0
    assert torchvox_cli("sample", "b.npz", "-n", "10", "-o", "c.npy").code == 0
    back = np.load(tmp_path / "c.npy")[:, :3]  # then idx and dist2
    assert back.dtype == np.float64
    assert np.abs(back[:, None] - world[None]).max(-1).min(1).max() < 1e-3


def test_info_shows_columns_bounds_and_what_is_not_finite(torchvox_cli, scan):
    result = torchvox_cli("info", scan, *KITTI)
    assert result.code == 0, result.err
    assert "2,993 of 3,000 points: 7 are not finite" in result.out
    assert "intensity" in result.out


@pytest.mark.parametrize("command", ["info", "voxelize", "sample"])
def test_a_cloud_without_points_is_handled(torchvox_cli, tmp_path, command):
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))
    options = GRID if command == "voxelize" else ()
    result = torchvox_cli(command, "none.npy", *options)
    assert result.code == 0, result.err


def test_demo_generates_a_scan_and_a_drive_and_draws_seven_pictures(torchvox_cli, tmp_path):
    for module in ("matplotlib", "yaml"):
        pytest.importorskip(module, reason="the extras cli and viz are not installed")
    result = torchvox_cli("demo", "-n", "64", "--device", "cpu")
    assert result.code == 0, result.err
    for words in ("voxels", "dropped", "out of range", "furthest point samples", "cells", "cpu"):
        assert words in result.out
    names = {"bev_height", "bev_intensity", "voxel_density", "samples", "overview", "downsample"}
    assert {p.stem for p in (tmp_path / "demo_out").iterdir()} == {*names, "map"}
    assert "8 scans of a generated drive" in result.out and "voxels of 0.2 m observed" in result.out
    for path in (tmp_path / "demo_out").iterdir():
        assert min(read_png_size(path)) > 700


def test_demo_on_a_file_without_intensity_leaves_that_picture_out(torchvox_cli, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((500, 3)))
    result = torchvox_cli("demo", "a.npy", "-n", "20", "--device", "cpu", "-o", "pictures")
    assert result.code == 0, result.err
    assert "derived from the points" in result.out
    names = {"bev_height", "voxel_density", "samples", "overview", "downsample"}
    assert {p.stem for p in (tmp_path / "pictures").iterdir()} == names


def test_doctor_tries_every_op_and_names_versions(torchvox_cli):
    result = torchvox_cli("doctor")
    assert result.code == 0, result.out
    for words in ("torch", "numpy", "compiler", "voxelize on cpu", "bev_max_height on cpu"):
        assert words in result.out


def test_doctor_names_the_command_for_an_absent_extra(torchvox_cli, monkeypatch):
    from importlib import util

    find = util.find_spec
    absent = {"laspy", "tensorboard"}
    monkeypatch.setattr(util, "find_spec", lambda name: None if name in absent else find(name))
    result = torchvox_cli("doctor")
    assert "pip install laspy tensorboard" in result.out


def test_version_and_help_go_to_stdout(torchvox_cli):
    assert torchvox_cli("--version").out.startswith("torchvox ")
    for arguments in (("--help",), ("voxelize", "--help")):
        result = torchvox_cli(*arguments)
        assert (result.code, result.err) == (0, "")
        assert "Usage" in result.out


def test_reducing_over_a_grid_without_a_name_takes_every_point(torchvox_cli, tmp_path):
    """A named grid keeps its cap, and so does --reduce none, whose rows are padded to it."""
    np.save("a.npy", np.full((50, 3), 0.5))
    grid = ("--voxel-size", "1", "--range", "0,0,0,1,1,1")
    for options, kept in ((grid, 50), (grid[:2], 50), ((*grid, "--reduce", "none"), 10)):
        result = torchvox_cli("voxelize", "a.npy", *options, "-o", "a.npz")
        assert result.code == 0, result.err
        assert np.load("a.npz")["num_points"].tolist() == [kept]
    assert torchvox_cli("voxelize", "a.npy", *grid, "--max-points", "3", "-o", "a.npz").code == 0
    assert np.load("a.npz")["num_points"].tolist() == [3]
