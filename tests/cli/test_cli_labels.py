# SPDX-License-Identifier: Apache-2.0
"""torchvox labels: outputs, resumed runs, sources that agree, and what is refused."""

import json
import threading

import numpy as np
import pytest
from recordings import STAMP, cloud, write_recording

from benchmarks.labels import make_set
from torchvox.data import label_stages

GRID = ["--voxel", "1", "--bounds=-20,-20,-3,20,20,3"]
BOXES = "class,x,y,z,l,w,h,yaw,track\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    sizes = {"keyframes": 4, "columns": 60, "beams": 8, "objects": 8, "size": (24, 12)}
    return make_set(tmp_path_factory.mktemp("labels") / "set", 2, **sizes)


def contents(folder):
    """Name -> digest of every file of labels."""
    digests = {}
    for path in folder.glob("*/*/labels.npz"):
        with np.load(path) as file:
            own = label_stages.digest_of_arrays(dict(file))
            digests[f"{path.parent.parent.name}/{path.parent.name}"] = own["sha256"]
    return digests


def test_a_killed_run_goes_on_and_two_runs_at_once_agree(torchvox_cli, root, tmp_path, monkeypatch):
    options = [root, *GRID, "--cameras", "--sweeps", "3,12"]
    torchvox_cli("labels", *options, "-o", "whole", "--json", "r.json").ok("labelled 8 of 8")
    whole, rows = contents(tmp_path / "whole"), json.loads((tmp_path / "r.json").read_text())
    assert sorted(whole) == [f"scene-{s:04}/{s}-{k}" for s in (0, 1) for k in range(4)]
    assert {row["sha256"] for row in rows["keyframes"]} == {*whole.values()}
    assert [row["sweeps"] for row in rows["keyframes"]][:4] == [13, 16, 14, 4]
    with np.load(tmp_path / "whole" / "scene-0000" / "0-1" / "labels.npz") as file:
        assert {*file.files} == {"semantics", "mask_lidar", "mask_camera"}
        assert file["mask_camera"].any() and {0, 17, 255} < {*np.unique(file["semantics"])}
    seen, write = [], label_stages.write_npz

    def killed(path, **arrays):
        seen.append(path)
        if len(seen) == 3:
            raise KeyboardInterrupt
        write(path, **arrays)

    monkeypatch.setattr(label_stages, "write_npz", killed)
    assert torchvox_cli("labels", *options, "-o", "part").code == 130
    assert 0 < len(contents(tmp_path / "part")) < 8
    monkeypatch.setattr(label_stages, "write_npz", write)
    result = torchvox_cli("labels", *options, "-o", "part", "--json", "again.json").ok("were there")
    assert "0 were there" not in result.out and contents(tmp_path / "part") == whole
    again = json.loads((tmp_path / "again.json").read_text())["keyframes"]
    assert {row["file"][5:]: row["sha256"] for row in again} == {
        row["file"][6:]: row["sha256"] for row in rows["keyframes"]}  # fmt: skip
    chosen = label_stages.LabelOptions(1.0, (-20.0, -20, -3, 20, 20, 3), (3, 12), cameras=True)
    work = label_stages.scene_rows([root], tmp_path / "both", chosen)
    stage = label_stages.LabelScene(tmp_path / "both", chosen, "cpu")
    threads = [threading.Thread(target=lambda: [*map(stage, work)]) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert contents(tmp_path / "both") == whole


def test_a_damaged_sweep_fails_the_keyframes_that_need_it(torchvox_cli, root, tmp_path):
    path = root / "sweeps" / "0_9.pcd.bin"
    data = path.read_bytes()
    (tmp_path / "some.txt").write_text("scene-0000\n")
    options = ["labels", root, *GRID, "--sweeps", "3,3", "--scenes", "some.txt"]
    try:
        path.write_bytes(data[:-3])
        result = torchvox_cli(*options)
        assert result.code == 1 and "labelled 3 of 4 keyframes" in result.out
        assert "0-1/labels.npz" in result.err and path.name in result.err
        assert sorted(contents(tmp_path / "gts")) == [f"scene-0000/0-{k}" for k in (0, 2, 3)]
    finally:
        path.write_bytes(data)
    torchvox_cli(*options).ok("labelled 1 of 4", "3 were there, 0 failed")
    write = [[0.0, 0, 0, 0, 0]] * (len(data) // 20)
    np.array(write, np.float32).tofile(path)
    torchvox_cli(*options, "-o", "zeros", "--json", "r.json").ok("labelled 4")
    path.write_bytes(data)
    rows = json.loads((tmp_path / "r.json").read_text())["keyframes"]
    assert [row["no_return"] for row in rows] == [0, len(data) // 20, 0, 0]


def make_folder(folder, scans):
    """points/, boxes/ and poses.txt of scans of (points, boxes in text, place)."""
    (folder / "points").mkdir(parents=True)
    (folder / "boxes").mkdir()
    for i, (rows, boxes, _) in enumerate(scans):
        np.save(folder / "points" / f"drive.{i:06d}.npy", rows)
        (folder / "boxes" / f"drive.{i:06d}.csv").write_text(BOXES + boxes)
    lines = [f"1 0 0 {x} 0 1 0 {y} 0 0 1 {z}" for _, _, (x, y, z) in scans]
    (folder / "poses.txt").write_text("\n".join(lines))
    return folder


def make_drive(folder, rows, places, first=0):
    """A recording of scans; its odometry begins with the first one that has a place."""
    kind = np.dtype([(axis, "f4") for axis in "xyz"])
    times = [STAMP + i * 10**8 for i in range(len(rows))]
    clouds = [cloud(own.view(kind)[:, 0], time) for own, time in zip(rows, times, strict=True)]
    own = [(t, [*place, 0.0, 0, 0, 1]) for t, place in zip(times[first:], places, strict=True)]
    poses = [("/odom", "nav_msgs/msg/Odometry", "os_sensor", own)]
    return write_recording(folder, "mcap", {"/points": clouds}, poses)


def test_a_recording_its_boxes_and_a_folder_of_its_scans_agree(torchvox_cli, tmp_path):
    pytest.importorskip("rosbags", reason="the extra ros is not installed")
    rng, scans = np.random.default_rng(0), []
    for i in range(5):
        rows = rng.uniform(-15, 15, (300, 3)).astype(np.float32) * np.float32([1, 1, 0.15])
        text = f"Car,{5 - i},{i},0,4,3,2,{0.3 * i},a\nbike,{-5 - 2 * i},0,0,4,3,3,0,\n"
        scans.append((rows, text + "cat,0,-8,0,4,4,4,1,c\n" * (i > 1), (0.5 * i, 0.25 * i, 0.0)))
    folder, (rows, _, places) = make_folder(tmp_path / "own", scans), zip(*scans, strict=True)
    drive = make_drive(tmp_path, rows, places)
    (tmp_path / "names.txt").write_text("bike\nCar\n")
    more = [*GRID, "--sweeps", "1,2", "--classes", "names.txt", "--every", "2", "-o"]
    for words in (["a", folder], ["b", drive, "--boxes", folder / "boxes"],
                  ["none", drive, "--poses", folder / "poses.txt"]):  # fmt: skip
        torchvox_cli("labels", *more, *words).ok("labelled 3 of 3")
    a, b, none = (contents(tmp_path / name) for name in ("a", "b", "none"))
    assert sorted(b) == [f"drive/{i:06d}" for i in (0, 2, 4)]
    assert sorted(a.values()) == sorted(b.values()) and not {*none.values()} & {*b.values()}
    with np.load(tmp_path / "a" / "own" / "drive.000002" / "labels.npz") as file:
        assert {0, 1, 2, 17, 255} == {*np.unique(file["semantics"])}


def test_scans_before_the_odometry_are_left_out(torchvox_cli, tmp_path):
    pytest.importorskip("rosbags", reason="the extra ros is not installed")
    rows = [np.random.default_rng(0).uniform(-9, 9, (50, 3)).astype(np.float32)] * 4
    drive = make_drive(tmp_path, rows, [[0.0] * 3] * 3, 1)
    result = torchvox_cli("labels", drive, *GRID, "--every", "1", "--json", "r.json")
    frames = json.loads((tmp_path / "r.json").read_text())["keyframes"]
    assert [frame.get("sweeps") for frame in frames] == [None, 3, 3, 3]
    assert result.code == 1 and "000000/labels.npz" in result.err


def test_points_of_keyframes_have_the_classes_of_lidarseg(torchvox_cli, tmp_path):
    root = make_set(tmp_path / "set", 1, 2, columns=60, beams=8, objects=4, size=(24, 12))
    (segments := root / "lidarseg" / "v1.0-made").mkdir(parents=True)
    np.zeros(480, np.uint8).tofile(segments / "0.0_lidarseg.bin")  # 0: a car
    np.zeros(479, np.uint8).tofile(segments / "0.10_lidarseg.bin")
    result = torchvox_cli("labels", root, *GRID, "--sweeps", "0,0")
    assert result.code == 1 and "0.10_lidarseg.bin has 479 labels, not 480" in result.err
    with np.load(tmp_path / "gts" / "scene-0000" / "0-0" / "labels.npz") as file:
        assert {4, 17, 255} == {*np.unique(labels := file["semantics"])}
    assert np.argwhere(labels == 4)[:, 2].min() == 2  # the road, at z = 0 of the vehicle


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sweeps", "3"], "--sweeps takes 2 numbers"),
        (["--sweeps", "3,-1"], "--sweeps takes two numbers of sweeps or all"),
        (["--voxel", "0"], "voxel"),
        (["--poses", "poses.txt"], "is nuScenes, which takes no --poses"),
        (["--scenes", "names.txt"], "there is no scene x"),
        (["--classes", "names.txt"], "--classes must list 1 to 16 different classes"),
        (["--sweeps", "all", "-o", "old"], "old has labels of other options or rules"),
        (["-o", "names.txt"], "--output must be a folder"),
    ],
)
def test_what_does_not_fit_is_refused(torchvox_cli, root, tmp_path, options, words):
    (tmp_path / "names.txt").write_text("x\nx\n")
    (tmp_path / "old").mkdir()
    text = {"rules": 1, "options": {"voxel_size": 0.1}, "scenes": {}}
    (tmp_path / "old" / "labels.json").write_text(json.dumps(text))
    torchvox_cli("labels", root, *options).assert_one_sentence(2, words)
    assert not (tmp_path / "gts").exists()


def test_other_inputs_are_refused(torchvox_cli, root, tmp_path):
    folder = make_folder(tmp_path / "own", [(np.ones((3, 3)), "", (0, 0, 0))])
    (tmp_path / "names.txt").write_text("car")
    own = ["labels", folder, "--classes", "names.txt", *GRID]
    torchvox_cli("labels", folder).assert_one_sentence(2, "--classes is needed")
    torchvox_cli("labels", tmp_path).assert_one_sentence(2, "is neither nuScenes")
    torchvox_cli("labels", "nowhere").assert_one_sentence(2, "nowhere does not exist")
    torchvox_cli(*own, folder).assert_one_sentence(2, "two inputs would both write own")
    torchvox_cli(*own).ok("labelled 1 of 1")  # one sweep, one without boxes
    (folder / "boxes" / "drive.000000.csv").write_text(BOXES + "car,0,0,0,1,1,1,0,a\n")
    torchvox_cli(*own).assert_one_sentence(2, "has labels of other inputs")
    (folder / "boxes" / "drive.000000.csv").write_text(BOXES + "car,0,0,0,1,1,1,0,a\n" * 2)
    torchvox_cli(*own, "-o", "new").assert_one_sentence(1, "two boxes of track a")
