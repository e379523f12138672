# SPDX-License-Identifier: Apache-2.0
"""Poses of recordings, and maps of their scans, each point from where the sensor was then."""

import numpy as np
import pytest
import torch
from recordings import OUSTER, STAMP, TF, cloud, points, write_recording

from torchvox._util.errors import TorchvoxError
from torchvox.io import Trajectory, find_clouds, open_points, open_recording
from torchvox.io.poses import joined
from torchvox.mapping import OccupancyMap
from torchvox.mapping.job import MapJob, MapOptions

pytest.importorskip("rosbags", reason="the extra ros is not installed")

ODOMETRY, STAMPED, PATH = (
    "nav_msgs/msg/Odometry",
    "geometry_msgs/msg/PoseStamped",
    "nav_msgs/msg/Path",
)
TURN = [0.0, 0.0, np.sin(0.1), np.cos(0.1)]
LIDAR, PLATE = [0.5, 0.0, 1.5, *TURN], [0.1, 0.2, 0.0, 0.0, 0.0, np.sin(0.3), np.cos(0.3)]


def matrix(numbers):
    x, y, z, _, _, sine, cosine = numbers  # about z
    c, s = cosine**2 - sine**2, 2 * sine * cosine
    return np.array([[c, -s, 0, x], [s, c, 0, y], [0, 0, 1, z]])


def inverse(pose):
    back = pose[:, :3].T
    return np.concatenate([back, -back @ pose[:, 3:]], axis=1)


def driven(first=-1, last=6, step=10**8):
    """Poses along an arc, one each step of ns."""
    each = [(STAMP + i * step, i * step / 1e9) for i in range(first, last + 1)]
    return [(ns, [2 * t, t * t, 0.1, 0.0, 0.0, np.sin(t / 2), np.cos(t / 2)]) for ns, t in each]


def static(*edges):
    return [("/tf_static", TF, f"{a}->{b}", [(STAMP, numbers)]) for a, b, numbers in edges]


ODOM = ("/odom", ODOMETRY, "base_link", driven())
CHAIN = static(("base_link", "/plate", PLATE), ("os_sensor", "plate", LIDAR))
DRIVEN = np.stack([matrix(numbers) for _, numbers in driven()])
SENSOR = joined(matrix(PLATE), inverse(matrix(LIDAR)))
SOURCES = {
    "odometry": ([ODOM, *CHAIN], {}, SENSOR),
    "latched twice": ([ODOM, *CHAIN, *CHAIN], {}, SENSOR),
    "the same frame": ([("/odom", ODOMETRY, "/os_sensor", driven())], {}, np.eye(3, 4)),
    "poses": ([("/p", STAMPED, None, driven()), *static(("base_link", "os_sensor", PLATE))], {},
              matrix(PLATE)),
    "one of two": ([ODOM, ("/other", ODOMETRY, "x", driven()[:1])],
                   {"odom": "odom", "extrinsic": np.eye(3, 4)}, np.eye(3, 4)),
    "tf": ([("/tf", TF, "odom->base", driven()), ("/tf", TF, "base->os_sensor",
                                                  [(ns, LIDAR) for ns, _ in driven()])], {},
           matrix(LIDAR)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["bag", "mcap"])
@pytest.mark.parametrize("name", SOURCES)
def test_a_trajectory_is_that_of_the_sensor(name, kind, tmp_path):
    poses, how, extrinsic = SOURCES[name]
    path = write_recording(tmp_path, kind, {"/points": [cloud(points())] * 3}, poses=poses)
    recording = open_recording(path)
    found = recording.trajectory(**how)
    at = np.array([(ns - recording.start) / 1e9 for ns, _ in driven()])
    expected = joined(DRIVEN, extrinsic)
    np.testing.assert_allclose(found.at(at).poses, expected, atol=1e-12)
    np.testing.assert_allclose(at, np.arange(len(at)) / 10, atol=1e-12)


@pytest.mark.parametrize(
    ("poses", "words"),
    [
        ([ODOM], r"from base_link, .* to os_sensor \(frames: none\): give --extrinsic"),
        ([ODOM, ("/b", ODOMETRY, "x", driven())], "several topics .* by --odom: /b, /odom"),
        ([], r"not one moving transform but 0 \(none\): give --odom"),
        ([("/tf", TF, "odom->base", driven()), ("/tf", TF, "base->arm", driven())],
         "but 2 .*odom->base, base->arm"),
        ([("/odom", ODOMETRY, "os_sensor", [(STAMP, [0.0] * 7)])], "none of 1 poses"),
        ([("/path", PATH, "base_link", [])], "not one moving"),
    ],
)  # fmt: skip
def test_poses_that_are_not_clear(poses, words, tmp_path):
    path = write_recording(tmp_path, "mcap", {"/points": [cloud(points())]}, poses=poses)
    with pytest.raises(TorchvoxError, match=words):
        open_recording(path).trajectory()


def ring(number, count=400):
    """Points on a sphere of 5 m with times within 0.1 s, two of which met nothing."""
    rows, away = np.zeros(count, OUSTER), np.random.default_rng(number).normal(size=(count, 3))
    away *= 5 / np.linalg.norm(away, axis=1, keepdims=True)
    away[:2] = 0
    rows["x"], rows["y"], rows["z"] = away.T
    rows["t"] = np.linspace(0, 99_840_000, count).astype(int) // 10**6 * 10**6
    return rows


@pytest.fixture
def files(tmp_path):
    """Five scans; odometry ends within the last but one."""
    clouds = [cloud(ring(i), STAMP + i * 10**8) for i in range(5)]
    poses = [("/odom", ODOMETRY, "base_link", driven(last=3)), *CHAIN]
    return find_clouds([write_recording(tmp_path, "mcap", {"/points": clouds}, poses=poses)])


def mapped(files, **options):
    job = MapJob(files, MapOptions(voxel_size=0.5, **options), torch.device("cpu"))
    failed = []
    for i in range(len(files)):
        try:
            job.add(i)
        except TorchvoxError as error:
            failed.append((i, str(error)))
    return job, failed


def expected(files, deskewed):
    made = OccupancyMap(voxel_size=0.5)
    seconds = [(ns - STAMP) / 1e9 for ns, _ in driven(last=3)]
    moving = Trajectory(seconds, DRIVEN[: len(seconds)], extrinsic=SENSOR)
    for i, path in enumerate(files[:4]):
        (table,) = open_points(path).chunks()
        xyz, ns = table.xyz[2:].astype(np.float64), table.attributes["t"][2:]
        times = i / 10 + (ns / 1e9 if deskewed else np.zeros(len(ns)))
        times = np.minimum(times, 0.3) if not deskewed else times
        kept = times <= 0.3 + 1e-9
        if kept.any():
            poses = moving.at(np.minimum(times[kept], 0.3)).poses
            ends = np.einsum("nij,nj->ni", poses[:, :, :3], xyz[kept]) + poses[:, :, 3]
            made.integrate(torch.from_numpy(ends), torch.from_numpy(poses[:, :, 3].copy()))
    return made


def voxels(made):
    return {tuple(row) for row in made.extract("observed").indices.tolist()}


@pytest.mark.parametrize("deskewed", [True, False])
def test_points_are_mapped_from_where_the_sensor_was(deskewed, files):
    job, failed = mapped(files, no_deskew=not deskewed)
    assert [i for i, _ in failed] == [4] and "the trajectory is from" in failed[0][1]
    own, other = voxels(job.map), voxels(expected(files, deskewed))
    assert len(own ^ other) < 0.002 * len(own)  # rounding of poses, at faces of voxels
    wrong = voxels(expected(files, not deskewed))
    assert len(own ^ wrong) > 0.01 * len(own)
    dropped = job.tally.dropped
    assert dropped["without a return"] == 8
    late = sum(int(ns > 0) for ns in ring(3)["t"][2:])
    assert dropped["outside of the trajectory"] == (late if deskewed else 0)
    assert job.tally.measured == pytest.approx(0.3)


def test_a_file_has_a_pose_for_each_scan_or_each_that_is_taken(files, tmp_path):
    rows = DRIVEN[:5].reshape(5, 12)
    np.savetxt(tmp_path / "all.txt", rows)
    np.savetxt(tmp_path / "some.txt", rows[1::2])
    all_, some = (mapped(files[1::2], poses=tmp_path / f"{n}.txt") for n in ("all", "some"))
    assert all_[1] == [] and all_[0].map.equal(some[0].map)
    assert all_[0].tally.dropped["without a return"] == 4
    np.savetxt(tmp_path / "some.txt", rows[:3])
    with pytest.raises(TorchvoxError, match="has 3 poses for 2 scans"):
        mapped(files[1::2], poses=tmp_path / "some.txt")


def test_poses_of_a_file_are_matched_by_time(files, tmp_path):
    lines = [f"{ns // 10**9}.{ns % 10**9:09d} " + " ".join(map(str, n)) for ns, n in driven()]
    (tmp_path / "tum.txt").write_text("\n".join(lines))
    (tmp_path / "turn.txt").write_text("0 0 0 0 0 0 1")
    known = {"poses": tmp_path / "tum.txt"}
    by_time, failed = mapped(files, **known, extrinsic=tmp_path / "turn.txt")
    assert failed == [] and by_time.map.equal(mapped(files, **known, extrinsic="identity")[0].map)
    own = mapped(files, **known, time_field="none")[0].map
    assert own.equal(mapped(files, **known, no_deskew=True)[0].map) and not own.equal(by_time.map)
