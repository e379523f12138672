# SPDX-License-Identifier: Apache-2.0
"""Commands take recordings, and each scan of one as a file."""

import json
from pathlib import Path

import numpy as np
import numpy.lib.recfunctions as rfn
import pytest
import torch
from recordings import STAMP, cloud, points, write_recording

from torchvox.io import open_points
from torchvox.io.paths import ScanPath
from torchvox.mapping import OccupancyMap
from torchvox.mapping.options import RayOptions
from torchvox.mapping.recorded import JoinedScans, RecordedScans

pytest.importorskip("rosbags", reason="the extra ros is not installed")
LINE = "drive.mcap/00000{}: {} points with intensity, t, ring; dropped: none; wrote out/drive."


@pytest.fixture
def drive(tmp_path):
    """A lone MCAP file of four scans with 10, 11, 12 and 13 points."""
    clouds = [cloud(points(count=10 + i, seed=i)) for i in range(4)]
    path = write_recording(tmp_path, "mcap", {"/os/points": clouds}, others=["/odom"])
    return (path / "drive.mcap").rename(tmp_path / "drive.mcap")


def test_info(torchvox_cli, drive):
    lines = (
        "format    ROS 2 bag, MCAP, ",
        "duration  0.3 s, from 2023-11-14 22:13:20 UTC",
        "topic     /odom, nav_msgs/msg/Odometry, 0 messages, 0 Hz",
        "topic     /os/points, sensor_msgs/msg/PointCloud2, 4 messages, 10 Hz",
        "          frame os_sensor, 10 points in the first",
        "          x float32, y float32, z float32, intensity float32, t uint32, ring uint8",
        "          times of points: t, ns after the stamp",
    )
    torchvox_cli("info", drive).ok(*lines)
    assert "frame" not in torchvox_cli("info", drive, "--header").ok(lines[3]).out
    (facts,) = json.loads(torchvox_cli("info", drive, "--json").out)["files"]
    assert facts["topics"][-1]["points"] == 10 and facts["start"] == "1700000000000000000"
    torchvox_cli("info", drive, "--scans", "1:3").ok("000001  11 points", "000002  12 points")
    scan = torchvox_cli("info", drive / "000003").ok("points    13", "finite    13 of 13")
    assert "frame os_sensor, stamp 1700000000000000000 ns" in scan.out


def test_scans_are_files_of_commands(torchvox_cli, drive, tmp_path):
    result = torchvox_cli("convert", drive, "-o", "out", "--every", "3")
    result.ok(LINE.format(0, 10) + "000000.pcd", LINE.format(3, 13) + "000003.pcd")
    merged = torchvox_cli("convert", drive, "--merge", "--scans", "1:", "-o", "all.ply")
    merged.ok("3 files: 36 points")
    (table,) = open_points("all.ply").chunks()
    np.testing.assert_array_equal(table.attributes["t"][:11], points(count=11)["t"])
    small = torchvox_cli("downsample", drive, "--voxel", "5", "--scans", ":2", "-o", "small")
    small.ok("000001: 11 points ->", "small/drive.000001.downsampled.pcd")
    torchvox_cli("view", drive / "000002", "-o", "a.html").ok("drive.mcap/000002: 12 points")
    torchvox_cli("view", drive, "--every", "2", "-o", "b.html").ok("22 points")
    lines = "".join(f"{i} 0 0 0 0 0 0 1\n" for i in range(4))
    (tmp_path / "poses.txt").write_text(lines)
    mapped = torchvox_cli("map", drive, "--poses", "poses.txt", "--device", "cpu", "-o", "m.npz")
    mapped.ok("rays      46 of 46, in 4 calls")
    assert OccupancyMap.load("m.npz").extract("occupied").count > 0


def test_map_takes_the_poses_of_the_recording(torchvox_cli, drive, tmp_path):
    rows = [(STAMP + i * 10**8, [0.1 * i, 0, 0, 0, 0, 0, 1]) for i in range(5)]
    poses = [
        ("/odom", "nav_msgs/msg/Odometry", "os_sensor", rows),
        ("/p", "geometry_msgs/msg/PoseStamped", None, rows),
    ]
    clouds = [cloud(points(), STAMP + i * 10**8) for i in range(4)]
    (tmp_path / "scans").mkdir()
    write_recording(tmp_path / "scans", "bag", {"/points": clouds}, poses=poses)
    torchvox_cli("info", "scans/drive.bag").ok("\nposes     /odom\n")
    words = "map", "scans/drive.bag", "--voxel", "0.5", "--device", "cpu", "-o", "m.npz"
    lines = "rays      240 of 240, in 4 calls", "faster than real time; "
    torchvox_cli(*words).ok(*lines)
    torchvox_cli(*words, "--odom", "/p", "--extrinsic", "identity", "--no-deskew").ok(*lines)
    (tmp_path / "poses.txt").write_text("1 0 0 0 0 1 0 0 0 0 1 0\n" * 4)
    for more, sentence in (
        (("--odom", "/q"), "--odom /q is not a topic of poses: there are /odom"),
        (("--odom", "/p"), "no static transforms from base_link, whose poses it has, to os_sensor"),
        (("--odom", "/p", "--poses", "poses.txt"), "--odom is for recordings without --poses"),
        (("--trajectory", "poses.txt"), "recordings take --poses, or their own"),
        (("--relative",), "--relative needs --poses"),
    ):
        torchvox_cli(*words, *more).assert_one_sentence(2, sentence)
    wrong = "map", "scan.npy", "--no-deskew", "--poses", "poses.txt"
    np.save("scan.npy", np.ones((9, 3), np.float32))
    torchvox_cli(*wrong).assert_one_sentence(2, "--no-deskew is for recordings")


def test_detect(torchvox_cli, drive, detector_file):
    words = "--device", "cpu", "-m", detector_file, "-o", "boxes"
    torchvox_cli("detect", drive, *words).ok("wrote boxes/drive.000003.boxes.json")
    report = json.loads(Path("boxes/drive.000003.boxes.json").read_text())
    assert (report["number"], report["stamp"]) == (3, str(STAMP))


def test_detect_joins_scans(torchvox_cli, tmp_path, detector_file):
    """Beside the points of each scan in the frame of the newest, by hand."""
    rows = [(STAMP + i * 10**8, [0.5 * i, 0, 0, 0, 0, 0, 1]) for i in range(4)]
    poses = [("/odom", "nav_msgs/msg/Odometry", "os_sensor", rows)]
    own = [points(count=10 + i, seed=i) for i in range(4)]
    clouds = [cloud(each, STAMP + i * 10**8) for i, each in enumerate(own)]
    path = write_recording(tmp_path, "bag", {"/points": clouds}, poses=poses)
    names = ["x", "y", "z", "intensity"]
    sweeps = [rfn.structured_to_unstructured(each[names]) for each in own]
    places = [ScanPath(path, "", i) for i in range(4)]
    scans = JoinedScans(RecordedScans(places, RayOptions()), 3, 5)
    for i, sweep in enumerate(sweeps):
        joined = scans.join(open_points(path / f"{i:06}").scan, torch.from_numpy(sweep))
        expected = []
        for k in range(i, max(i - 3, -1), -1):
            age = np.full((len(sweeps[k]), 1), 0.1 * (i - k))
            expected.append(np.hstack([sweeps[k] - [0.5 * (i - k), 0, 0, 0], age]))
        np.testing.assert_allclose(joined, np.concatenate(expected), rtol=1e-6, atol=1e-6)

    words = "detect", path, "--device", "cpu", "-m", detector_file, "-o", "boxes"
    torchvox_cli(*words, "--sweeps", "3").ok("wrote boxes/drive.000003.boxes.json")
    for more, sentence in (
        (("--odom", "/odom"), "--odom needs --sweeps"),
        (("--sweeps", "2", "--odom", "/p"), "--odom /p is not a topic of poses"),
    ):
        torchvox_cli(*words, *more).assert_one_sentence(2, sentence)
    np.save("scan.npy", np.ones((9, 4), np.float32))
    result = torchvox_cli("detect", "scan.npy", "--sweeps", "2", *words[2:])
    result.assert_one_sentence(2, "--sweeps is for recordings")


def test_wrong_use(torchvox_cli, drive, scan):
    for words, sentence in (
        (("convert", drive, "--topic", "/odom"), "none of the topics of clouds"),
        (("convert", drive, "--scans", "9:"), "has 4 scans, none that --scans takes"),
        (("convert", drive, "--scans", "1-3"), "--scans takes A:B"),
        (("convert", drive, "--layout", "kitti"), "already names its columns"),
        (("downsample", scan, "--layout", "kitti", "--voxel", 1, "--every", 2), "none among"),
        (("info", scan, "--layout", "kitti", "--topic", "/points"), "there is none among"),
        (("info", drive / "000004"), "has no scan 4: it has 4, from 0 on"),
    ):
        torchvox_cli(*words).assert_one_sentence(2, sentence)


def test_a_damaged_scan_stops_no_other(torchvox_cli, tmp_path):
    scans = [cloud(points(count=9)), None, cloud(points(count=8))]
    write_recording(tmp_path, "bag", {"/points": scans})
    result = torchvox_cli("convert", "drive.bag", "-o", "out")
    assert result.code == 1 and "drive.000002.pcd" in result.out
    assert "drive.bag/000001 is not a readable sensor_msgs/msg/PointCloud2" in result.err
