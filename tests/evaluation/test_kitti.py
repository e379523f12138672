# SPDX-License-Identifier: Apache-2.0
"""Rules of KITTI's measure that the golden numbers of test_properties.py do not reach."""

import box_lists
import numpy as np
import pytest

from torchvox.evaluation import kitti

CLASSES = ["Car", "Pedestrian", "Cyclist", "Van", "Person_sitting", "Truck"]
HERE, BESIDE = (0, 1.7, 20), (5, 1.7, 20)


def rows_of(kind, n, **changes):
    """n equal rows of one frame, except for changes: values or lists of them."""
    row = {"name": "Car", "box": (100, 100, 200, 180), "location": HERE, "size": (1.5, 1.6, 3.9)}
    row |= {"ry": 0.3, "alpha": 0.1}
    row |= {"truncated": 0, "occluded": 0} if kind == "truth" else {"score": 0.5}
    columns = {**row, **changes}
    return {k: np.array(v if isinstance(v, list) else [v] * n) for k, v in columns.items()}


def truth_of(n=1, **changes):
    return rows_of("truth", n, **changes)


def found_of(n=1, **changes):
    return rows_of("found", n, **changes)


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
def test_bad_input_is_named(change, words):
    truth, found = [truth_of()], [found_of()]
    change(truth, found)
    with pytest.raises(ValueError, match=words):
        kitti.evaluate(truth, found, ["Car"])
    with pytest.raises(ValueError, match=r"classes must be of car, .*, got 'Bus'"):
        kitti.evaluate([truth_of()], [found_of()], ["Car", "Bus"])
