# SPDX-License-Identifier: Apache-2.0
"""KITTI's files: what is read, what is said of what cannot be, and what comes back."""

import hashlib
import json
import struct

import numpy as np
import pytest
import torch
from helpers import DATA, real_scan

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.data.readers.folder import detections
from torchvox.data.readers.kitti import Kitti, export_kitti, standard_split
from torchvox.data.readers.kitti_files import Camera, boxes_of, objects_of
from torchvox.data.worlds.street import World
from torchvox.evaluation.kitti import evaluate
from torchvox.ops import points_in_boxes

pytestmark = pytest.mark.filterwarnings("ignore:.*has no images")
P2 = [[700, 0, 600, 45], [0, 700, 170, 0.2], [0, 0, 1, 0.003]]
TURN = [[0.01, -0.9999, -0.01, 0.1], [0.008, 0.01, -0.9999, -0.08], [0.9999, 0, 0.008, -0.27]]
UPRIGHT = [[0.9999, 0.01, -0.007], [-0.01, 0.9999, -0.004], [0.007, 0.004, 0.9999]]
PARTS = {"Tr_velo_to_cam": TURN, "P3": np.zeros((3, 4)), "P2": P2, "R0_rect": UPRIGHT}
CALIB = "".join(f"{k}: {' '.join(map(str, np.ravel(v)))}\n\n" for k, v in PARTS.items())
DONT_CARE = "DontCare -1 -1 -10 503.9 169.7 590.6 190.1 -1 -1 -1 -1000 -1000 -1000 -10"


def line(name="Car", place="1.0 1.7 20.0", size="1.5 1.6 3.9", ry=0.3):
    return f"{name} 0.00 1 -0.2 500.0 150.0 560.0 200.0 {size} {place} {ry}"


def frame(root, name, lines, points=((5, 0, 0, 0.5),), image=(1242, 375)):
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", *image)
    files = {"label_2/{}.txt": "\n".join(lines).encode(), "calib/{}.txt": CALIB.encode()}
    files |= {"velodyne/{}.bin": np.array(points, np.float32).tobytes(), "image_2/{}.png": head}
    for path, content in files.items():
        file = root / "training" / path.format(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


@pytest.fixture
def root(tmp_path):
    others = [line("Van"), line("Truck"), line("Person_sitting"), DONT_CARE]
    frame(tmp_path, "000000", [line(), "", *others, line("Cyclist", "2 1.7 65.5")])
    frame(tmp_path, "000001", [])
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "kitti"
    export_kitti(folder, 2, 12, seed=3)
    return folder


def test_the_standard_split_is_that_of_the_published_lists():
    texts = ["".join(f"{n}\n" for n in standard_split(split)) for split in ("train", "val")]
    sums = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
    assert sums == ["e85ce0142be11c7e", "6e2394d97c866c3a"]


def test_boxes_stand_where_the_inverse_calibration_says(root):
    upright, turn, data = np.eye(4), np.eye(4), Kitti(root, None)
    upright[:3, :3], turn[:3] = UPRIGHT, TURN
    x, y, z, _ = np.linalg.inv(upright @ turn) @ [1, 1.7, 20, 1]
    expected = [x, y, z + 0.75, 3.9, 1.6, 1.5, -0.3 - np.pi / 2]
    assert data[0]["boxes"][0].tolist() == pytest.approx(expected, abs=1e-5)
    there = objects_of(np.array([expected]), np.array(["Car"]), data.camera(0))
    columns = [*there["location"][0], *there["size"][0], *there["ry"], *there["alpha"]]
    assert columns == pytest.approx([1, 1.7, 20, 1.5, 1.6, 3.9, 0.3, 0.3 - np.arctan2(-y, x)])


def test_image_boxes_hold_the_corners_and_end_at_the_image():
    plain = Camera(np.array(P2), np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]]))
    boxes = [[20, 0, 0, 4, 2, 1, 0], [2, 4, 0, 4, 2, 1, 0], [20, 0, 0, 4, 2, 1, np.pi / 2]]
    found = objects_of(np.array(boxes), np.array(["Car"] * 3), plain)["box"]
    middle, edge = np.array([600 * 18 + 45, 170 * 18 + 0.2]), np.array([700, 350])
    assert np.allclose(found[0] * 18.003, [*(middle - edge), *(middle + edge)])
    assert found[1, 0] == 0 and found[1, 3] == 374  # reaches beside and behind the camera
    assert found[2, 2] - found[2, 0] == pytest.approx(4 * 700 / 19.003)  # seen from its side


def test_a_batch_holds_the_classes_and_ignores_what_is_like_them(root):
    batch = Kitti(root, None, points=8, boxes=6).batch([0, 1])
    assert batch["points"].shape == (2, 8, 4) and batch["boxes"].shape == (2, 6, 7)
    assert batch["labels"].tolist() == [[0, 0, 1, 2, -1, -1], [-1] * 6]
    assert batch["weight"].tolist() == [[1, 0, 0, 1, 0, 0], [0] * 6]
    assert batch["num_boxes"].tolist() == [4, 0] and batch["num_points"].tolist() == [1, 1]
    assert Kitti(root, None, ignored="background")[0]["labels"][:3].tolist() == [0, 2, -1]
    vans = Kitti(root, None, classes=["Van", "Car"])[0]
    assert vans["labels"][:3].tolist() == [1, 0, -1] and vans["weight"].sum() == 2
    for low, high, points, boxes in ((0, 60, 1, 3), (6, 70, 0, 4), (5, 70, 1, 4)):
        held = Kitti(root, None, point_cloud_range=[low, -40, -3, high, 40, 1])[0]
        assert (held["num_points"], held["num_boxes"]) == (points, boxes)
    frame(root, "000001", [line(size="1 0 2")])
    assert Kitti(root, None)[1]["weight"][0] == 0


def test_points_outside_of_the_image_are_left_out(root):
    points = [(10, 0, 0, 1), (-10, 0, 0, 2), (10, 9.5, 0, 3), (10, -6, 0, 4), (5, 0, 3, 5)]
    for size, expected in (((1242, 375), [1, 4]), ((900, 375), [1]), ((1242, 100), [])):
        frame(root, "000002", [], [*points, (10, 0, np.nan, 6)], size)
        assert Kitti(root, None).read_points(2)[:, 3].tolist() == expected, size
    assert Kitti(root, None, crop=False)[2]["num_points"] == 5


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("label_2/000000.txt", "\n" + line() + " 1", "line 2: Car must have 14 finite numbers"),
        ("label_2/000000.txt", line(ry="nan"), "line 1: Car must .* got '0.00 1 .* nan'"),
        ("label_2/000000.txt", line(ry="left"), "line 1: Car must .* got '0.00 1 .* left'"),
        ("label_2/000000.txt", "\n".join([line()] * 9), "has 9 boxes, but a sample has room for 8"),
        ("calib/000000.txt", "P2: 1 2 3", "P2 must have 12 finite numbers, got '1 2 3'"),
        ("calib/000000.txt", CALIB.replace("R0_rect", "R"), "000000.txt has no R0_rect"),
        ("calib/000000.txt", CALIB.replace("0.9999", "0"), "Tr_velo_to_cam must be rotations"),
        ("calib/000000.txt", None, "calib/000000.txt: No such file"),
        ("velodyne/000000.bin", "abc", "velodyne/000000.bin"),
        ("image_2/000000.png", "GIF89a", "000000.png is not a readable PNG image: bad sign"),
    ],
)
def test_a_file_that_is_wrong_is_named(file, text, words, root):
    path = root / "training" / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CloudFileError, match=words):
        Kitti(root, None, boxes=8).batch([0])


def test_splits_are_listed_or_the_standard_ones(root):
    (root / "ImageSets").mkdir()
    (root / "ImageSets" / "own.txt").write_text("000001\n\n000000\n")
    assert [scan.name for scan in Kitti(root, "own").scans] == ["000001", "000000"]
    for place, split, words in (
        (root, "train", "train.txt does not exist; standard split line 2: .* scan 000003"),
        (root, "test", "test.txt does not exist, which lists the scans of this split"),
        (root / "training", "val", "training/velodyne does not exist, a folder of KITTI's obj"),
    ):
        with pytest.raises(WrongUseError, match=words):
            Kitti(place, split)
    with pytest.raises(ValueError, match=r"point_cloud_range must be x, y, z from and, above"):
        Kitti(root, None, point_cloud_range=[70, -40, -3, 0, 40, 1])
    with pytest.raises(ValueError, match=r"classes must be of Car, .*, got \(\('Bus',\)"):
        Kitti(root, None, classes=["Bus"])


def test_an_exported_scene_comes_back(made):
    with pytest.warns(UserWarning, match=r"has no images: \(1242, 375\) pixels are assumed"):
        data = Kitti(made, "val")
    options = {"view": "camera", "min_points": 0, "seed": 3, "boxes": 64, "points": 32768}
    truth, batch = World("val", **options).batch(range(12)), data.batch(range(12))
    for name, tensor in batch.items():
        tolerance = 1e-5 if name == "boxes" else 0
        assert torch.allclose(tensor, truth[name], 0, tolerance, equal_nan=True), name
    rows, n = data.objects(0), int(truth["num_boxes"][0])
    assert rows["occluded"].tolist() == truth["occlusion"][0, :n].tolist()
    assert np.abs(rows["truncated"] - truth["truncation"][0, :n].numpy()).max() < 0.006
    assert ((batch["weight"] == 0) & (batch["labels"] == 0)).any()  # vans


def test_detections_are_measured_and_written_as_kitti_labels_them(made, tmp_path):
    data, frames = Kitti(made, "val"), []
    batch, truth = data.batch(range(12)), [data.objects(i) for i in range(12)]
    for i, n in enumerate(batch["num_boxes"].tolist()):
        rows = {key: batch[key][i, :n].numpy() for key in ("boxes", "labels")}
        frames.append({**rows, "scores": np.linspace(0.9 - i / 50, 0.5, n)})
    results = [{**t, "score": f["scores"]} for t, f in zip(truth, frames, strict=True)]
    for result in results:
        result["name"] = np.where(result["name"] == "Van", "Car", result["name"])
    scores = data.measure(frames)
    assert scores == pytest.approx(evaluate(truth, results, data.classes), abs=1e-3)
    assert scores["3d/strict/Car/easy/R11"] > 20

    frames[1] = {"boxes": np.empty((0, 7), np.float32), "labels": [], "scores": []}
    data.write(frames, tmp_path / "results")
    lines = [line.split() for line in (tmp_path / "results/000002.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == results[0]["name"].tolist()
    assert all(line[1:3] == ["-1.00", "-1"] for line in lines)
    columns = [results[0][key] for key in ("size", "location", "ry", "score")]
    table = np.array([line[8:] for line in lines], float)
    assert np.abs(table - np.column_stack(columns)).max() < 1e-3
    assert (tmp_path / "results/000003.txt").read_text() == ""


def test_detections_of_another_form_are_refused():
    one = {"boxes": np.zeros((1, 9)), "labels": [0], "scores": [1]}  # with velocities
    assert len([*detections([one] * 2, 2, 3)]) == 2
    for frames, words in (
        ([{**one, "labels": [-1]}], r"found\[0\] must have labels from 0 to 2, got"),
        ([{**one, "scores": [np.nan]}], r"found\[0\] must have finite boxes and scores"),
        ([{**one, "scores": [1, 0]}], r"found\[0\] must have boxes \[n, 7\] or .*\(2,\), \(1,\)"),
        ([], "found must have 1 frames, got 0"),
    ):
        with pytest.raises(ValueError, match=words):
            [*detections(frames, 1, 3)]


def test_points_of_a_real_frame_lie_in_its_boxes():
    points = real_scan("lidar/kitti_000008.bin", 4)[:, :3].contiguous()
    frame = json.loads((DATA / "lidar/kitti_000008.labels.json").read_text())
    camera = Camera(np.array(frame["cam2img"])[:3], np.array(frame["lidar2cam"])[:3])
    seen = [o for o in frame["objects"] if o["type"] != "DontCare"]
    rows = np.array([o["box3d_cam"] for o in seen])  # l, h, w
    objects = {"location": rows[:, :3], "size": rows[:, [4, 5, 3]], "ry": rows[:, 6]}
    boxes = boxes_of(objects, camera)
    inside = points_in_boxes(points[None], torch.tensor(boxes[None]).float())
    counts = torch.bincount(inside[inside >= 0].long(), minlength=len(seen)).tolist()
    assert counts == pytest.approx([o["num_lidar_pts"] for o in seen], rel=0.02)
    assert camera.sees(points.double().numpy()).mean() > 0.999
    there = objects_of(boxes, np.array(["Car"] * len(seen)), camera)
    whole = [i for i, o in enumerate(seen) if o["truncated"] == 0]
    assert np.abs(there["box"][whole] - [seen[i]["bbox2d"] for i in whole]).max() < 12
    assert there["alpha"][whole] == pytest.approx([seen[i]["alpha"] for i in whole], abs=0.05)
