# SPDX-License-Identifier: Apache-2.0
"""What holds of every measure, for lists of boxes at random, the official programs' numbers, and
rules of KITTI and nuScenes that these numbers do not reach.

golden.json has the results of nuscenes-devkit 1.2.0 and mmdet3d 1.4.0 for the lists of seed 1, as
tests/evaluation/golden.py of commit 3d14238 recorded them.
"""

import json
import math
from pathlib import Path

import box_lists
import numpy as np
import pytest

from torchvox.evaluation import kitti, lidar, nuscenes
from torchvox.evaluation.nuscenes import ERRORS, RANGES

COMMON = ["Car", "Pedestrian", "Cyclist"]
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
MEASURES = {
    "kitti": (box_lists.kitti_frames, lambda t, f: kitti.evaluate(t, f, COMMON)),
    "lidar": (box_lists.lidar_scenes, lambda t, f: lidar.evaluate(t, f, COMMON)),
    "nuscenes": (
        box_lists.nuscenes_samples,
        lambda t, f, ego, racks: nuscenes.evaluate(t, f, ego=ego, racks=racks),
    ),
}


@pytest.mark.parametrize(("which", "count"), [("kitti", 60), ("nuscenes", 40)])
def test_the_numbers_of_the_official_program_come_out(which, count):
    frames, evaluate = MEASURES[which]
    expected = GOLDEN[which]
    assert evaluate(*frames(1, count)) == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert len(set(expected.values())) > 60  # the numbers differ


@pytest.mark.parametrize("which", MEASURES)
def test_the_order_of_frames_and_detections_changes_nothing(which):
    frames, evaluate = MEASURES[which]
    truth, found, *places = frames(21, 20)
    found = box_lists.with_distinct_scores(found, "scores" if which == "lidar" else "score")
    backward = [box_lists.rows(f, slice(None, None, -1)) for f in found][::-1]
    got = evaluate(truth[::-1], backward, *(place[::-1] for place in places))
    assert got == pytest.approx(evaluate(truth, found, *places), nan_ok=True)


CLASSES = ["Car", "Pedestrian", "Cyclist", "Van", "Person_sitting", "Truck"]
HERE, BESIDE = (0, 1.7, 20), (5, 1.7, 20)


def rows_of(n, row, changes):
    """n equal rows of one frame, except for changes: values or lists of them."""
    columns = {**row, **changes}
    return {k: np.array(v if isinstance(v, list) else [v] * n) for k, v in columns.items()}


CAR = {"name": "Car", "box": (100, 100, 200, 180), "location": HERE, "size": (1.5, 1.6, 3.9)}
CAR |= {"ry": 0.3, "alpha": 0.1}


def truth_of(n=1, **changes):
    return rows_of(n, {**CAR, "truncated": 0, "occluded": 0}, changes)


def found_of(n=1, **changes):
    return rows_of(n, {**CAR, "score": 0.5}, changes)


def car(truth, found, metric="3d"):
    """R11 of cars; of one car alone it is 100 / 11 if it is found."""
    return kitti.evaluate([truth], [found], ["Car"])[f"{metric}/strict/Car/moderate/R11"] * 0.11


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_its_least_overlaps(name):
    """Boxes of 4 m, moved to just above and just below an overlap."""

    def levels(metric, overlap):
        x = 4 * (1 - overlap) / (1 + overlap)
        turned = {"name": name, "size": (1.5, 1.6, 4.0), "ry": 0.0}
        truth = truth_of(**turned, box=(100, 100, 300, 200))
        in_image = (100, 100, 100 + 200 * overlap, 200)
        found = found_of(**turned, location=(x, 1.7, 20), box=in_image)
        found["name"] = np.char.lower(found["name"])
        result = kitti.evaluate([truth], [found], [name])
        return [result[f"{metric}/{level}/{name}/easy/R11"] > 0 for level in ("strict", "loose")]

    strict, loose = (0.7, 0.5) if name in ("Car", "Van", "Truck") else (0.5, 0.25)
    for metric in kitti.METRICS:
        least = loose if metric != "2d" or name == "Truck" else strict
        for part in (strict, least):
            for overlap in (part + 0.01, part - 0.01):
                assert levels(metric, overlap) == [overlap > strict, overlap > least], metric


def test_dont_care_forgives_in_the_image_alone():
    region = truth_of(name="DontCare", size=(-1, -1, -1), location=(-1000,) * 3)
    truth = box_lists.joined(region, truth_of())
    truth["box"] = np.array([(300, 100, 400, 200), (100, 100, 200, 180)])
    found = found_of(2, location=[BESIDE, HERE], score=[0.9, 0.5])
    inside, wider, beside = (320, 110, 380, 180), (280, 100, 380, 200), (370, 100, 470, 200)
    just = 300, 100, 400, 200  # .7 exactly of it is covered: more is needed
    for box, forgiven in ((inside, 1), (wider, 1), (beside, 0), (just, 0)):
        truth["box"][0, 2] = 370 if box is just else 400
        found["box"] = np.array([box, (100, 100, 200, 180)])
        assert car(truth, found, "2d") == pytest.approx(1 if forgiven else 0.5)
        assert car(truth, found, "3d") == pytest.approx(0.5)


def test_orientation_counts_where_the_first_detection_knows_alpha():
    assert car(truth_of(alpha=0.0), found_of(alpha=np.pi / 2), "aos") == pytest.approx(0.5)
    found = found_of(2, alpha=[-10, 0.1], score=[0.5, 0.6])
    kinds = {key.split("/")[0] for key in kitti.evaluate([truth_of()], [found], ["Car"])}
    assert kinds == {"2d", "bev", "3d"}
    # The first detection may come in a later frame.
    result = kitti.evaluate([truth_of()] * 2, [found_of(0), found_of()], ["Car"])
    assert result["aos/strict/Car/easy/R11"] > 0


def test_frames_without_boxes():
    for truth, found in ((0, 0), (0, 1), (1, 0)):
        result = kitti.evaluate([truth_of(truth)], [found_of(found)], ["Car"])
        assert set(result.values()) == {0.0}
    nothing = {key: [] for key in truth_of()}
    result = kitti.evaluate([nothing, truth_of()], [found_of(0), found_of()], ["Car"])
    assert result["3d/strict/Car/easy/R11"] == pytest.approx(100 / 11)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, f: f.append(f[0]), r"found must have 1 frames, got 2"),
        (lambda t, f: t[0].pop("ry"), r"truth\[0\] must have the column 'ry', got \["),
        (lambda t, f: f[0].update(box=np.zeros((1, 5))), r"\['box'\] must be \[1, 4\], got \[1, 5"),
        (lambda t, f: f[0].update(score=[np.nan]), r"found\[0\]\['score'\] must be finite, got"),
        (lambda t, f: f[0].update(score=[]), r"found\[0\]\['score'\] must be \[1\], got \[0\]"),
        (lambda t, f: (t.clear(), f.clear()), r"truth must have one frame at least"),
    ],
)  # fmt: skip
def test_bad_frames_of_kitti_are_named(change, words):
    truth, found = [truth_of()], [found_of()]
    change(truth, found)
    with pytest.raises(ValueError, match=words):
        kitti.evaluate(truth, found, ["Car"])
    with pytest.raises(ValueError, match=r"classes must be of car, .*, got 'Bus'"):
        kitti.evaluate([truth_of()], [found_of()], ["Car", "Bus"])


def boxes(kind, n=1, **changes):
    """n boxes 10 m before the ego vehicle, side by side, except for changes."""
    row = {"name": "car", "lwh": (4, 2, 1.5), "yaw": 0.5, "velocity": (1, 0), "attribute": "moving"}
    row |= {"points": 3} if kind == "truth" else {"score": 0.5}
    places = [(10.0, 5.0 * i, 0.0) for i in range(n)]
    return rows_of(n, {**row, "xyz": places}, changes)


def one(truth, found, ego=(0, 0), **options):
    return nuscenes.evaluate([truth], [found], ego=[ego], **options)


def test_classes_that_do_not_occur_count_as_nothing_found():
    result = one(boxes("truth"), boxes("found"))
    assert result["car/0.5"] == pytest.approx(1) and result["mAP"] == pytest.approx(0.1)
    assert result["bus/2.0"] == 0 and result["bus/trans"] == 1
    assert result["trans"] == pytest.approx(0.9)
    assert result["orient"] == pytest.approx(8 / 9)  # cones have none
    assert math.isnan(result["traffic_cone/orient"]) and math.isnan(result["barrier/vel"])
    assert result["barrier/orient"] == 1


def test_a_match_is_nearer_than_the_distance_and_boxes_nearer_than_the_range():
    result = one(boxes("truth"), boxes("found", xyz=(12.0, 0, 5)))
    assert [result[f"car/{d}"] > 0 for d in (0.5, 1.0, 2.0, 4.0)] == [False, False, False, True]
    assert result["car/trans"] == 1  # nothing matches at 2 m
    for name, reach in RANGES.items():
        for far, counts in ((reach - 0.01, True), (reach, False)):
            place = {"name": name, "xyz": (far + 7.0, -7.0, 99)}
            result = one(boxes("truth", **place), boxes("found", **place), ego=(7, -7))
            assert (result[f"{name}/1.0"] > 0) is counts, (name, far)


def test_too_little_recall_is_the_error_1():
    truth = boxes("truth", 10)
    assert one(truth, boxes("found"))["car/trans"] == 1  # recall .1 is not beyond .1
    assert one(boxes("truth", 9), boxes("found"))["car/trans"] == 0


def test_errors_of_each_kind():
    found = boxes("found", lwh=(2, 2, 1.5), yaw=0.5 + math.pi + 0.1, velocity=(1, 3), attribute="x")
    result = one(boxes("truth"), found)
    errors = [result[f"car/{kind}"] for kind in ERRORS]
    assert errors == pytest.approx([0, 0.5, math.pi - 0.1, 3, 1])
    assert result["vel"] > 1 and result["NDS"] == pytest.approx(0.05 + (0.1 + 0.05) / 10)
    found["name"] = np.array(["barrier"])
    assert one(boxes("truth", name="barrier"), found)["barrier/orient"] == pytest.approx(0.1)
    unknown = one(boxes("truth", velocity=(math.nan, 0), attribute=""), boxes("found"))
    assert unknown["car/vel"] == 1 and unknown["car/attr"] == 1


def test_samples_without_boxes():
    result = one(boxes("truth", 0), boxes("found", 0))
    assert result["mAP"] == 0 and result["NDS"] == 0 and result["trans"] == 1
    assert one(boxes("truth", 0), boxes("found"))["car/0.5"] == 0
    assert one(boxes("truth"), boxes("found", 0))["car/0.5"] == 0
    many = boxes("found", 500, score=np.linspace(1, 0, 500).tolist())  # as many as there may be
    assert one(boxes("truth"), many)["car/0.5"] > 0.98  # at recall 1 the last counts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"found": [boxes("found", name="van")]}, r"found: name must be of car, .*, got \['van'\]"),
        ({"found": [boxes("found", score=-0.1)]}, "found: score must not be negative, got -0.1"),
        ({"found": [boxes("found", lwh=(1, 0, 1))]}, "found: lwh must be positive, got 0.0"),
        ({"found": [boxes("found", velocity=(math.inf, 0))]}, r"\['velocity'\] must be finite"),
        ({"found": [boxes("found", 501)]}, "found must have at most 500 boxes per sample, got 501"),
        ({"found": [boxes("found")] * 2}, "found must have 1 samples, got 2"),
        ({"ego": [0, 0]}, r"ego must be \[1, 2\], got \[2\]"),
        ({"ego": [(math.nan, 0)]}, "ego must be finite"),
        ({"racks": []}, "racks must have 1 samples, got 0"),
    ],
)
def test_bad_samples_of_nuscenes_are_named(options, words):
    frames = {"truth": [boxes("truth")], "found": [boxes("found")], "ego": [(0, 0)], **options}
    with pytest.raises(ValueError, match=words):
        nuscenes.evaluate(**frames)
