# SPDX-License-Identifier: Apache-2.0
"""torchvox clean: its files, what it says, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from recordings import OUSTER, STAMP, cloud, write_recording

from torchvox.io import open_points
from torchvox.mapping import Evidence

SIZE = "0.25"


def room(number, rays=800):
    """Points [N, 3] of a round room, of which a third of the scans see a thing in front."""
    source = np.random.default_rng(number)
    away = source.normal(size=(rays, 3))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    reach = np.where((away[:, 0] > 0.6) & (number % 3 == 0), 1.0, 2.2)
    return (away * reach[:, None]).astype(np.float32)


@pytest.fixture
def scans(tmp_path):
    """Scans of four columns in scans/, one point of which is not finite, and poses.txt."""
    (tmp_path / "scans").mkdir()
    rows, poses = [], []
    for i in range(6):
        xyz = room(i)
        xyz[0] = np.nan if i == 1 else xyz[0]
        rows.append(np.column_stack([xyz, np.linspace(0, 1, len(xyz), dtype=np.float32)]))
        rows[-1].tofile(tmp_path / "scans" / f"{i}.bin")
        poses.append([[0, -1, 0, 0.13 * i], [1, 0, 0, 0.07 * i], [0, 0, 1, 100]])
    np.savetxt(tmp_path / "poses.txt", np.array(poses).reshape(6, 12))
    return rows, torch.tensor(poses).double()


CALL = ("clean", "scans", "--layout", "x,y,z,intensity", "--poses", "poses.txt", "--voxel", SIZE)


def test_outputs_are_those_of_the_verdict(torchvox_cli, scans, tmp_path):
    rows, poses = scans
    evidence = Evidence(float(SIZE))
    for points, pose in zip(rows, poses, strict=True):
        evidence.add(torch.from_numpy(points), pose=pose)
    verdict = evidence.verdict()
    judged = [verdict.at(torch.from_numpy(p), pose=q) for p, q in zip(rows, poses, strict=True)]
    reason, hits, empty = (np.concatenate([j[k].numpy() for j in judged]) for k in range(3))
    assert np.bincount(reason).min() > 0 and (reason == 3).sum() == 1
    every = ("-o", "a.laz", "--removed", "b.ply", "--labels", "c", "--save-evidence", "d.npz")
    result = torchvox_cli(*CALL, *every, "--json", "e.json")
    result.ok("scans     6 of 6", "not judged 1 not finite", "wrote     a.laz, b.ply, c, d.npz")
    labels = np.concatenate([np.load(f"c/{i}.label.npy") for i in range(6)])
    np.testing.assert_array_equal(labels, reason)
    evidence.map.save("own.npz")
    assert (tmp_path / "own.npz").read_bytes() == (tmp_path / "d.npz").read_bytes()
    world = np.concatenate([p[:, :3] @ q[:, :3].numpy().T + q[:, 3].numpy()
                            for p, q in zip(rows, poses, strict=True)])  # fmt: skip
    number, stays, moved = np.arange(6).repeat(800), reason == 0, (reason == 1) | (reason == 2)
    (kept,), (left,) = (list(open_points(name).chunks()) for name in ("a.laz", "b.ply"))
    np.testing.assert_allclose(kept.world(), world[stays], atol=0.00051)
    np.testing.assert_array_equal(kept.attributes["scan"], number[stays])
    assert kept.attributes["intensity"].max() == 65535
    np.testing.assert_allclose(left.world(), world[moved], atol=1e-6)
    for name, values in {"scan": number, "reason": reason, "hits": hits, "empty": empty}.items():
        np.testing.assert_array_equal(left.attributes[name], values[moved])
    facts = json.loads((tmp_path / "e.json").read_text())
    own = {"left": int((reason == 1).sum()), "beside": int((reason == 2).sum())}
    assert facts["removed"] == own and facts["not_judged"] == {"not finite": 1}
    assert facts["points"] == 4800 and facts["kept"] == stays.sum()
    assert sum(scan["removed"] for scan in facts["scans"]) == moved.sum()


def test_parts_of_a_drive_and_scans_that_fail(torchvox_cli, scans, tmp_path):
    rows, _ = scans
    torchvox_cli(*CALL, "-o", "whole", "--labels", "c", "--memory-limit", "30KiB").ok()
    lines = (tmp_path / "poses.txt").read_text().splitlines()
    for name, part in {"a": slice(3), "b": slice(3, 6)}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines[part]))
    paths = [f"scans/{i}.bin" for i in range(6)]
    own = [*CALL[2:4], *CALL[6:], "--poses"]
    torchvox_cli("clean", *paths[3:], *own, "b.txt", "--save-evidence", "b.npz").ok("3 of 3")
    torchvox_cli("clean", *paths[:3], *own, "a.txt", "--evidence", "b.npz", "-o", "part").ok()
    for i in range(3):
        kept = (tmp_path / "whole" / f"{i}.bin").read_bytes()
        assert kept == (tmp_path / "part" / f"{i}.bin").read_bytes()
        assert kept == rows[i][np.load(f"c/{i}.label.npy") % 3 == 0].tobytes()
    assert 0 < np.count_nonzero(np.load("c/0.label.npy")) < 800
    (tmp_path / "scans" / "2.bin").write_bytes(b"123")
    failed = torchvox_cli(*CALL, "-o", "c.ply")
    assert failed.code == 1 and "1 of 6 files failed" in failed.err and "5 of 6" in failed.out
    (table,) = open_points("c.ply").chunks()
    assert set(table.attributes["scan"]) == {0, 1, 3, 4, 5}
    far = torchvox_cli(*CALL, "-o", "d.ply", "--origin", "1e9,0,0")
    assert "warning: no point is judged: give --origin, such as 0,0,100" in far.err


def test_all_points_may_be_removed(torchvox_cli, tmp_path):
    side = np.arange(-5, 6)
    near = (np.stack(np.meshgrid(7, side, side), -1).reshape(-1, 3) + 0.5) * float(SIZE)
    np.save(tmp_path / "near.npy", near.astype(np.float32))
    np.save(tmp_path / "far.npy", 5 * near.astype(np.float32))
    (tmp_path / "poses.txt").write_text("1 0 0 0 0 1 0 0 0 0 1 0")
    torchvox_cli("clean", "far.npy", *CALL[4:], "--save-evidence", "far.npz").ok()
    call = ("clean", "near.npy", *CALL[4:], "--evidence", "far.npz", "-o", "a.laz")
    result = torchvox_cli(*call, "--removed", "b.ply").ok("81 left; 40 beside")
    assert "warning: all points are removed" in result.err
    assert (open_points("a.laz").count, open_points("b.ply").count) == (0, len(near))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (CALL, "nothing would be written"),
        ((*CALL[:4], "-o", "a.ply"), "scans need --poses"),
        ((*CALL, "-o", "scans"), "would replace the file that it is made from"),
        ((*CALL, "-o", "a.xyzzy"), "a.xyzzy: points are written as"),
        ((*CALL, "--save-evidence", "a.ply"), "--save-evidence must be .npz"),
        ((*CALL, "-o", "a.ply", "--format", "pcd"), "--format is for a folder"),
        ((*CALL, "-o", "a.ply", "--odom", "x"), "--odom is for recordings"),
        ((*CALL, "-o", "a.ply", "--memory-limit", "10"), "--memory-limit must hold a region"),
        ((*CALL, "-o", "a.ply", "--min-range=-1"), "min_range must be finite"),
    ],
)
def test_wrong_use_writes_nothing(torchvox_cli, scans, tmp_path, call, words):
    before = {*tmp_path.rglob("*")}
    torchvox_cli(*call).assert_one_sentence(2, words)
    assert {*tmp_path.rglob("*")} == before


def test_scans_of_a_recording(torchvox_cli, tmp_path):
    pytest.importorskip("rosbags", reason="the extra ros is not installed")
    clouds = []
    for i in range(6):
        points = np.zeros(802, OUSTER)
        points["x"][2:], points["y"][2:], points["z"][2:] = room(i).T
        points["t"] = np.linspace(0, 99_840_000, len(points)).astype(int) // 10**7 * 10**7
        clouds.append(cloud(points, STAMP + i * 10**8))
    stands = [(STAMP + i * 10**8, [5.0, 0, 0, 0, 0, 0, 1.0]) for i in range(6)]
    odometry = ("/odom", "nav_msgs/msg/Odometry", "os_sensor", stands)
    drive = write_recording(tmp_path, "mcap", {"/points": clouds}, poses=[odometry])
    result = torchvox_cli("clean", drive, "--voxel", SIZE, "-o", "a", "--labels", "b", "--removed",
                          "c.ply", "--scans", "1:")  # fmt: skip
    late = int((np.array(clouds[5]["data"]).view(OUSTER)["t"] > 0).sum())
    result.ok("not judged 10 without a return", f"{late} outside of the trajectory")
    labels = [np.load(f"b/drive.00000{i}.label.npy") for i in range(1, 6)]
    assert all((each[:2] == 3).all() for each in labels) and (labels[0][2:] != 3).all()
    assert (labels[2][2:] > 0).sum() > 50
    for i, each in enumerate(labels):
        (kept,) = open_points(f"a/drive.00000{i + 1}.pcd").chunks()
        stays = (each == 0) | (each == 3)
        np.testing.assert_array_equal(kept.xyz[2:], room(i + 1)[stays[2:]])
    (left,) = open_points("c.ply").chunks()
    assert set(left.attributes["scan"]) == {3} and abs(left.world()[:, 0].mean() - 5.8) < 0.1
