# SPDX-License-Identifier: Apache-2.0
"""Folders of labelled scans: what is read, and what is said of what cannot be."""

import json

import numpy as np
import pytest
import torch

from torchvox._util.errors import CloudFileError, WrongUseError
from torchvox.data.readers.folder import ScanFolder, find_scans, read_boxes

HEAD = "class,x,y,z,l,w,h,yaw"
CLASSES = ["Car", "Pedestrian"]


def line(name="Car", **changes) -> str:
    values = {"x": 1.5, "y": -2, "z": 0.5, "l": 4, "w": 2, "h": 1.5, "yaw": 0.3, **changes}
    return ",".join(map(str, [name, *values.values()]))


@pytest.fixture
def folder(tmp_path):
    """Six scans of 10 to 60 points; boxes in both formats, one scan without."""
    for name in ("points", "boxes"):
        (tmp_path / name).mkdir()
    for i in range(6):
        points = np.random.default_rng(i).normal(size=(10 * (i + 1), 4)).astype(np.float32)
        points.tofile(tmp_path / "points" / f"{i:03}.bin")
    rows = [
        [HEAD + ",ignore", line() + ",0", line("Van") + ",0", line("Pedestrian") + ",1"],
        [HEAD + ",vx,vy", line() + ",1.5,-1", line() + ",,"],
        [HEAD],
        [HEAD, "", line("Car")],
    ]
    for i, lines in enumerate(rows):
        (tmp_path / "boxes" / f"{i:03}.csv").write_text("\n".join(lines) + "\n")
    found = {**dict(zip(HEAD.split(","), ["Car", 1, 2, 3, 4, 5, 6, 0.7], strict=True)), "vx": None}
    (tmp_path / "boxes" / "004.json").write_text(json.dumps([found, {**found, "ignore": 1.0}]))
    return tmp_path  # fmt: skip


def scans(folder, **options):
    options = {"classes": CLASSES, "similar": {"Van": "Car"}, "layout": "kitti", **options}
    return ScanFolder(folder, options.pop("split", None), points=50, boxes=4, **options)


def test_a_batch_holds_what_the_files_say(folder):
    batch = scans(folder).batch(range(6))
    assert batch["points"].shape == (6, 50, 4) and batch["boxes"].shape == (6, 4, 9)
    assert batch["num_points"].tolist() == [10, 20, 30, 40, 50, 50]
    assert batch["num_boxes"].tolist() == [3, 2, 0, 1, 2, 0] and batch["id"].tolist() == [*range(6)]
    assert batch["labels"][:2].tolist() == [[0, 0, 1, -1], [0, 0, -1, -1]]
    assert batch["weight"].sum(1).tolist() == [1, 2, 0, 1, 1, 0]
    assert batch["boxes"][0, 0, :7].tolist() == pytest.approx([1.5, -2, 0.5, 4, 2, 1.5, 0.3])
    assert batch["boxes"][1, 0, 7:].tolist() == [1.5, -1.0]
    assert batch["boxes"][1, 1, 7:].isnan().all() and batch["boxes"][4, 0, 2] == 3
    assert batch["points"][0, 10:].isnan().all() and not batch["points"][0, :10].isnan().any()
    types = {name: tensor.dtype for name, tensor in batch.items()}
    assert types["labels"] == types["num_boxes"] == types["num_points"] == torch.int32
    alone = scans(folder).batch([3])
    assert all(torch.equal(alone[k].nan_to_num(-9), v[3:4].nan_to_num(-9)) for k, v in batch.items()
               if k != "id")  # fmt: skip


def test_of_too_many_points_a_random_part_is_taken_the_same_each_time(folder):
    whole = np.fromfile(folder / "points" / "005.bin", np.float32).reshape(-1, 4)
    first, again = (scans(folder).cloud(5) for _ in range(2))
    rows = [np.flatnonzero((whole == row.numpy()).all(1))[0] for row in first]
    assert torch.equal(first, again) and rows == sorted(set(rows)) and len(rows) == 50
    assert rows[-1] > 50  # not the first ones


def test_points_that_are_not_finite_are_left_out(folder):
    (folder / "points" / "000.bin").unlink()
    points = np.ones((5, 4))
    points[[1, 3, 0], [0, 3, 0]] = np.nan, np.inf, 1e39  # more than float32 holds
    np.save(folder / "points" / "000.npy", points)
    assert scans(folder).batch([0])["num_points"].tolist() == [2]


def test_splits_are_listed_or_every_fifth_is_for_validation(folder):
    def names(split="val"):
        return [scan.name for scan in find_scans(folder, split)]

    assert names() == ["004"] and len(names("train")) == 5
    for content, listed in ((b"005\n\n001\n", ["005", "001"]), (b"\xef\xbb\xbf002\r\n", ["002"])):
        (folder / "val.txt").write_bytes(content)
        assert names() == listed and len(scans(folder, split="val")) == len(listed)
    for content, words in (
        ("\n", "has no scans of val"),
        ("\xff", "not a readable list of scans"),
        ("005\nnothing\n", "val.txt line 2: there is no scan nothing"),
        ("005\n\n005.bin\n", "val.txt line 3: 005.bin is in line 1 too"),
    ):
        (folder / "val.txt").write_text(content, encoding="latin1")
        with pytest.raises(ValueError, match=words):
            scans(folder, split="val")
    with pytest.raises(WrongUseError, match=r"test.txt does not exist, which lists the scans"):
        find_scans(folder, "test")


def test_sizes_and_headings_have_the_names_of_openpcdet_too(tmp_path):
    names = HEAD.replace("l,w,h,yaw", "dx,dy,dz,heading").split(",")
    row = dict(zip(names, line().split(","), strict=True))
    (tmp_path / "a.csv").write_text(HEAD + "\n" + line())
    (tmp_path / "b.csv").write_text(",".join(names) + "\n" + line())
    (tmp_path / "c.json").write_text(json.dumps([row]))
    boxes = [read_boxes(tmp_path / name).boxes for name in ("a.csv", "b.csv", "c.json")]
    np.testing.assert_array_equal(boxes[1:], [boxes[0]] * 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD + "\n" + line(l=0), r"line 2: l must be above 0, got '0'"),
        (HEAD + "\n" + line(x="nan"), r"line 2: x must be a finite number, got 'nan'"),
        (HEAD + "\nCar,1,2", r"line 2: z, l, w, h, yaw is missing"),
        (HEAD + "\n" + line(x="1e39"), r"line 2: x must be a finite number, got '1e39'"),
        (HEAD + ",vx\n" + line() + ",inf", r"line 2: vx must be a finite number, got 'inf'"),
        (HEAD + ",ignore\n" + line() + ",yes", r"line 2: ignore must be 0 or 1, got 'yes'"),
        (HEAD + "\n" + line() + '\n"Car"s', r"not a readable file of boxes: line 3: ',' expected"),
        (HEAD + "\n" + line() + ",7", r"line 2 has more values than line 1 has names"),
        ("class,x,y,z,l,w,h\n" + line(), r"line 1: yaw is missing"),
        (HEAD + ",dx\n" + line() + ",4", r"line 2: 'dx' is not one of class"),  # beside l
        (line(), r"line 1: class, x, y, z, l, w, h, yaw is missing"),  # a box without a head
        (json.dumps([dict.fromkeys(HEAD.split(","), 10**400)]), r"box 0: x must be a finite num"),
        ("[1, 2]", r"it must be a list of objects"),
        ('[{"class": "Car", "x": 1}]', r"box 0: y, z, l, w, h, yaw is missing"),
    ],
)
def test_a_wrong_file_of_boxes_is_named_with_its_line(content, words, tmp_path):
    kind = "json" if content.startswith("[") else "csv"
    path = tmp_path / f"a.{kind}"
    path.write_text(content)
    with pytest.raises(CloudFileError, match=f"{path}.*({words})"):
        read_boxes(path)


@pytest.mark.parametrize(
    ("file", "content", "options", "words"),
    [
        ("", "", {"similar": {}}, "000.csv: class 'Van' is not one of Car, Ped"),
        ("", "", {"columns": ("x", "y", "z", "ring")}, "000.bin has no column ring: it has x, y"),
        ("boxes/000.csv", "\n".join([HEAD, *[line()] * 5]), {}, "5 boxes, but a sample has roo"),
        ("boxes/009.csv", HEAD, {}, "009.csv has no point cloud 009"),
        ("boxes/005.txt", HEAD, {}, "005.txt must be a .csv or .json file"),
        ("boxes/003.JSON", "[]", {}, r"/003.\w+ and 003.\w+ belong to the same scan"),
        ("points/003.npy", "[]", {}, r"/003.\w+ and 003.\w+ belong to the same scan"),
        ("", "", {"classes": ["Car", "Car"]}, "classes must be different names"),
        ("", "", {"similar": {"Van": "Bus"}}, "similar must map other names to some of"),
        ("", "", {"similar": {"Car": "Pedestrian"}}, "similar must map other names to some of"),
    ],
)
def test_what_does_not_belong_together_is_named(folder, file, content, options, words):
    if file:
        (folder / file).write_text(content)
    with pytest.raises(ValueError, match=words):
        scans(folder, **options).batch([0])


def test_other_classes_may_be_dropped_and_a_root_has_two_folders(folder):
    assert scans(folder, similar={}, others="drop").batch([0])["num_boxes"].tolist() == [2]
    with pytest.raises(WrongUseError, match="folders points and boxes: points is missing"):
        find_scans(folder / "boxes")
