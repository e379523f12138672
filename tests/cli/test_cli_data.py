# SPDX-License-Identifier: Apache-2.0
"""torchvox data check: a folder of labelled scans, right and wrong."""

import shutil

import numpy as np
import pytest

HEAD = "class,x,y,z,l,w,h,yaw\n"


@pytest.fixture
def folder(tmp_path):
    for name in ("points", "boxes"):
        (tmp_path / "mine" / name).mkdir(parents=True)
    for i in range(5):
        points = np.random.default_rng(i).uniform(-1, 1, (100, 4)).astype(np.float32)
        points.tofile(tmp_path / "mine" / "points" / f"{i}.bin")
        boxes = HEAD + "Car,0,0,0,4,2,2,0\n" + "Cyclist,50,0,0,2,1,2,0\n" * (i == 3)
        (tmp_path / "mine" / "boxes" / f"{i}.csv").write_text(boxes)
    return tmp_path / "mine"


def test_a_folder_that_is_right_is_counted(torchvox_cli, folder):
    result = torchvox_cli("data", "check", "mine", "--layout", "kitti")
    assert result.err == ""
    result.ok(
        "train     4 scans, by default",
        "val       1 scans",
        "Car       5 boxes, mean 4.00 x 2.00 x 2.00 m, 100 points (median), 0 wit",
        "Cyclist   1 boxes, mean 2.00 x 1.00 x 2.00 m, 0 points (median), 1 wit",
        "checked   5 of 5 scans are right",
    )


def test_scans_without_boxes_are_named(torchvox_cli, folder):
    (folder / "boxes" / "2.csv").unlink()
    result = torchvox_cli("data", "check", "mine", "--layout", "kitti")
    result.ok("empty     1 scan without boxes: trained as empty (2)\n", "5 of 5 scans are right")
    torchvox_cli("data", "check", "mine").assert_one_sentence(2, "points/0.bin", "give --layout")


def test_every_scan_that_is_wrong_is_reported(torchvox_cli, folder):
    (folder / "boxes" / "0.csv").write_text(HEAD + "Car,0,0,0,4,2,0,0\n")
    (folder / "boxes" / "4.csv").write_text(HEAD + "Car,0,0,0,4,2,2,90\n")
    (folder / "boxes" / "1.csv").write_text(HEAD + "Car,0,0,0,400,200,150,0\n")
    np.full((5, 4), np.nan, np.float32).tofile(folder / "points" / "2.bin")
    result = torchvox_cli(
        "data", "check", "mine", "--layout", "kitti", "--classes", "Bus, Car, cyclist"
    )
    assert result.code == 1 and "checked   0 of 5 scans are right" in result.out
    lines = result.err.splitlines()
    assert len(lines) == 5 and all(line.startswith("torchvox: ") for line in lines)
    sentences = ("0.csv line 2: h must be above 0", "in meters?", "2.bin has no points")
    sentences += (
        "class 'Cyclist' is not one of Bus, Car, cyclist: did you mean cyclist?",
        "4.csv: l, w, h, yaw of a box are [4.0,",
    )
    assert all(words in line for line, words in zip(lines, sentences, strict=True)), lines
    torchvox_cli("data", "check", "nowhere").assert_one_sentence(2, "nowhere is not a folder")
    torchvox_cli("data", "check", "mine/boxes").assert_one_sentence(2, "boxes has neither points/")


@pytest.mark.filterwarnings("ignore:made has no images")
def test_generated_streets_are_written_as_kitti_and_checked(torchvox_cli, tmp_path):
    made = torchvox_cli("data", "export-kitti", "made", "--train", "2", "--val", "1")
    assert made.code == 0 and "made: 2 and 1 frames" in made.out
    torchvox_cli("data", "export-kitti", "made").assert_one_sentence(2, "made must be a new or an")
    (tmp_path / "made" / "training" / "calib" / "000001.txt").write_text("P2: 1 2\n")
    result = torchvox_cli("data", "check", "made", "--classes", "Car, Cyclist")
    assert result.code == 1 and "Pedestrian" in result.out
    assert "checked   2 of 3 scans are right" in result.out and "2 scans, listed" in result.out
    assert "000001.txt: P2 must have 12 finite numbers" in result.err


def test_objects_and_labelled_clouds_are_counted(torchvox_cli, tmp_path):
    for i, kind in enumerate(("mug", "chair", "chair", "chair")):
        for folder in (f"objs/{kind}", "seg/points", "seg/labels"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "objs" / kind / f"{i}.npy", np.ones((9 + i, 3)))
        np.save(tmp_path / "seg" / "points" / f"{i}.npy", np.ones((9, 3)))
        np.save(tmp_path / "seg" / "labels" / f"{i}.npy", np.arange(9) // 4 - (i > 2))
    (tmp_path / "objs" / "chair" / "2.npy").write_bytes(b"no")
    for name in ("._1.npy", "x.npy", "mug/old/y.npy"):
        (tmp_path / "objs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "objs" / name).touch()
    result = torchvox_cli("data", "check", "objs")
    assert result.code == 1 and "2.npy is not a .npy file" in result.err
    words = (
        "chair     2 objects, 10 to 12 points",
        "columns   x, y, z",
        "3 of 4 objects are right",
        "not read  2 files beside or below the folders of classes: objs/x.npy",
    )
    assert all(word in result.out for word in ("train     3 obj", "val       1 obj", *words))
    shutil.rmtree(tmp_path / "objs" / "chair")
    result = torchvox_cli("data", "check", "objs").ok("val       0 objects")
    assert "warning: no objects in val" in result.err and "two classes or more" in result.err
    (tmp_path / "seg" / "train.txt").write_text("0\n1\n")
    (tmp_path / "seg" / "val.txt").write_text("1\n")
    result = torchvox_cli("data", "check", "seg", "--classes", "wall, door", "--ignore", 2)
    result.ok("wall      16 points in 4 clouds", "ignored   7 points in 4 clouds", "4 of 4 clouds")
    assert "1 clouds are in train and in val: 1" in result.err
