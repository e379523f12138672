# SPDX-License-Identifier: Apache-2.0
"""What the commands do when all is well."""

import json
import warnings
from importlib import util

import numpy as np
import pytest
import torch

import torchvox
from torchvox.cli import work
from torchvox.io import PointCloud, grid_names, read_cloud
from torchvox.models import Boxes

GRID = ("--voxel", "0.5", "--bounds", "0,0,0,20,20,2")
KITTI = ("--layout", "kitti", "--device", "cpu")
PICTURES = {"bev_height", "voxel_density", "samples", "overview", "downsample"}


def read_png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[-8:-4] == b"IEND"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_voxelize_writes_what_the_op_gives(torchvox_cli, scan):
    arguments = (*KITTI, *GRID, "-o", "a.npz", "--max-points", "3")
    torchvox_cli("voxelize", scan, *arguments).ok("7 not finite")
    written, box = np.load("a.npz"), [0, 0, 0, 20, 20, 2]
    points = read_cloud(scan, "kitti").tensor()
    expected = torchvox.voxelize(points, [0.5] * 3, box, 3, -1, reduce="mean", trim=True)
    for name in ("features", "indices", "num_points", "point_voxel", "counts"):
        np.testing.assert_array_equal(written[name], getattr(expected, name).numpy())
    assert tuple(written["columns"]) == ("x", "y", "z", "intensity")
    np.testing.assert_array_equal(written["point_cloud_range"], box)


def test_a_grid_is_derived_or_a_named_one_refined(torchvox_cli, scan):
    torchvox_cli("voxelize", scan, *KITTI).ok("derived from the points")
    pytest.importorskip("yaml", reason="PyYAML (extra cli) is not installed")
    refined = ("--grid", "sweep_02", "--bounds=-8,-8,-1,8,8,1")
    torchvox_cli("voxelize", scan, *KITTI, *refined, "-o", "a.npz").ok()
    written = np.load("a.npz")
    np.testing.assert_array_equal(written["voxel_size"], [0.2] * 3)
    np.testing.assert_array_equal(written["point_cloud_range"], [-8, -8, -1, 8, 8, 1])
    shown = torchvox_cli("voxelize", "--help").ok("Usage")
    assert shown.err == "" and all(name in shown.out for name in grid_names())


def test_sample_writes_points_that_lie_in_the_cloud(torchvox_cli, scan):
    result = torchvox_cli("sample", scan, *KITTI, "-n", "50", "-o", "a.npz")
    written, cloud = np.load("a.npz"), np.fromfile(scan, np.float32).reshape(-1, 4)
    result.ok(f"every point within {written['dist2'][-1] ** 0.5:.3g} m of a sample")
    np.testing.assert_array_equal(written["points"], cloud[written["idx"]])
    assert len(set(written["idx"])) == 50
    assert np.isfinite(written["points"]).all()
    assert (np.diff(written["dist2"][1:]) <= 0).all()
    more = torchvox_cli("sample", scan, *KITTI, "-n", "5000", "-o", "a.npz")
    more.ok("every point is a sample")
    assert sorted(np.load("a.npz")["idx"]) == list(range(7, 3000))


def test_a_random_start_follows_the_seed(torchvox_cli, scan):
    starts = []
    for seed in (1, 1, 2):
        random = ("-n", 1, "--start", "random", "--seed", seed, "-o", "a.npz")
        torchvox_cli("sample", scan, *KITTI, *random).ok()
        starts.append(int(np.load("a.npz")["idx"][0]))
    assert starts[0] == starts[1] != starts[2]


def test_bev_writes_the_channels_in_order(torchvox_cli, scan):
    torchvox_cli("bev", scan, *KITTI, *GRID, "--channels", "height_max,count", "-o", "a.npz").ok()
    written = np.load("a.npz")
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
    scan.rename(tmp_path / "點雲.bin")  # letters without a glyph draw without a warning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torchvox_cli(*arguments, "點雲.bin", *KITTI, "-o", "a.png").ok()
    assert min(read_png_size(tmp_path / "a.png")) > 400


@pytest.mark.parametrize("command", ["voxelize", "sample", "bev"])
def test_npy_holds_the_bare_array(torchvox_cli, scan, command):
    options = ("-n", "9") if command == "sample" else GRID
    torchvox_cli(command, scan, *KITTI, *options, "-o", "a.npy").ok()
    assert np.load("a.npy").dtype == np.float32


def test_a_folder_gives_one_output_per_cloud(torchvox_cli, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b", "a"):
        np.save(tmp_path / "in" / f"{name}.npy", np.random.default_rng(0).random((50, 3)))
    (tmp_path / "in" / "notes.txt").touch()
    result = torchvox_cli("voxelize", "in", "-o", "out").ok()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["a.voxels.npz", "b.voxels.npz"]
    assert len(result.out.splitlines()) == 2


def test_info_shows_columns_bounds_and_what_is_not_finite(torchvox_cli, scan):
    result = torchvox_cli("info", scan, "--layout", "kitti")
    result.ok("2,993 of 3,000 points: 7 are not finite", "intensity")


@pytest.mark.parametrize("command", ["info", "voxelize", "sample"])
def test_a_cloud_without_points_is_handled(torchvox_cli, tmp_path, command):
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))
    torchvox_cli(command, "none.npy", *(GRID if command == "voxelize" else ())).ok()


def test_demo_generates_a_scan_and_a_drive_and_draws_seven_pictures(torchvox_cli, tmp_path):
    for module in ("matplotlib", "yaml"):
        pytest.importorskip(module, reason="the extras cli and viz are not installed")
    result = torchvox_cli("demo", "-n", "64", "--device", "cpu")
    result.ok("generated street, seed 0", "voxels", "out of range", "one per 0.2 m cube")
    result.ok("64 of ", "cells", "cpu", "8 scans of a generated drive")
    result.ok("voxels of 0.2 m observed")
    pictures = list((tmp_path / "demo_out").iterdir())
    assert {p.stem for p in pictures} == {*PICTURES, "bev_intensity", "map"}
    assert min(min(read_png_size(path)) for path in pictures) > 700


def test_demo_on_a_file_without_intensity_omits_that_picture(torchvox_cli, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((500, 3)))
    small = ("-n", "20", "--device", "cpu", "-o", "pictures")
    torchvox_cli("demo", "a.npy", *small).ok("derived from the points")
    assert {p.stem for p in (tmp_path / "pictures").iterdir()} == PICTURES


def test_doctor_tries_ops_and_names_versions_and_absent_extras(torchvox_cli, monkeypatch):
    result = torchvox_cli("doctor")
    result.ok("torch", "numpy", "compiler", "voxelize on cpu", "bev_max_height on cpu")
    find, absent = util.find_spec, {"laspy", "rosbags", "tensorboard"}
    monkeypatch.setattr(util, "find_spec", lambda name: None if name in absent else find(name))
    assert "pip install laspy rosbags tensorboard" in torchvox_cli("doctor").out


@pytest.mark.parametrize(
    ("archs", "runs"),
    [
        ("90-real", {90}),
        ("80-real", {80, 86}),
        ("75-real;80-virtual", {75, 80, 86, 90, 120}),
        ("120-real", {120}),
        ("", set()),
    ],
)
def test_doctor_knows_which_gpus_a_build_runs_on(archs, runs):
    from torchvox.cli.doctor import runs_on

    assert {gpu for gpu in (75, 80, 86, 90, 120) if runs_on(gpu, archs)} == runs


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_that_is_not_used_is_reported(torchvox_cli, scan, monkeypatch, tmp_path, driver):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(work, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    result = torchvox_cli("sample", scan, *KITTI[:2], "-n", "5", "-o", "a.npz")
    assert ("device: cpu" in result.err) == driver


def test_version_and_help_go_to_stdout(torchvox_cli):
    assert torchvox_cli("--version").out.startswith("torchvox ")
    assert torchvox_cli("--help").ok("Usage").err == ""


def test_reducing_over_a_grid_without_a_name_takes_every_point(torchvox_cli, tmp_path):
    """A named grid keeps its cap, and so does --reduce none, whose rows are padded to it."""
    np.save("a.npy", np.full((50, 3), 0.5))
    grid = ("--voxel", "1", "--bounds", "0,0,0,1,1,1")
    cases = [(grid, 50), (grid[:2], 50), ((*grid, "--reduce", "none"), 10)]
    for options, kept in [*cases, ((*grid, "--max-points", "3"), 3)]:
        torchvox_cli("voxelize", "a.npy", *options, "-o", "a.npz").ok()
        assert np.load("a.npz")["num_points"].tolist() == [kept]


# ---- numbers that are printed and written, exactly ----------------------------------------------


def test_boxes_are_written_with_six_digits_of_the_score_and_five_of_the_rest():
    from torchvox.cli.detect import as_text

    box = [1.123456, -2.5, 0.25, 3.75, 1.5, 1.0, -0.785398, 0.123456, -9.0]
    scores, labels = np.array([0.87654321, 0.5], np.float32), np.array([1, 0])
    cloud = PointCloud(np.zeros((7, 3), np.float32), ("x", "y", "z"), unit="m")
    place = {"x": 1.12346, "y": -2.5, "z": 0.25, "l": 3.75, "w": 1.5, "h": 1.0, "yaw": -0.7854}
    one = {**place, "vx": 0.12346, "vy": -9.0}
    classes = [{"class": "van", "score": 0.876543, **one}, {"class": "car", "score": 0.5, **one}]
    head = {"file": "a.bin", "points": 7, "overflow": 3, "unit": "m"}
    head["frame"] = "coordinates of the scan; yaw about +z from +x, in radians"
    for count in (2, 0):
        rows = np.array([box, box], np.float32)[:count]
        boxes = Boxes(rows, scores[:count], labels[:count], ("car", "van"), overflow=3)
        text = as_text(cloud, "a.bin", boxes)
        assert json.loads(text) == {**head, "boxes": classes[:count]}
        assert text.count("\n") == 9 + count


def test_the_density_of_a_pillar_is_the_sum_over_its_voxels():
    from torchvox.cli.voxelize import pillar_counts

    heights = [0.5, 1.5, 1.6, 2.5, 2.6, 2.7, 0.5, 9.0]
    points = torch.tensor([[0.5, 1.5, z] for z in heights])
    points[6, 0] = 1.5
    voxels = torchvox.voxelize(points, [1.0] * 3, [0, 0, 0, 2, 3, 3], 1, -1, reduce="mean")
    assert pillar_counts(voxels, (2, 3)).tolist() == [[0, 0], [6, 1], [0, 0]]
