# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from torchvox.evaluation import nuscenes
from torchvox.evaluation.nuscenes import ERRORS, RANGES


def boxes(kind, n=1, **changes):
    """n boxes 10 m before the ego vehicle, side by side, except for changes."""
    row = {"name": "car", "lwh": (4, 2, 1.5), "yaw": 0.5, "velocity": (1, 0), "attribute": "moving"}
    row |= {"points": 3} if kind == "truth" else {"score": 0.5}
    frame = {key: np.array([value] * n) for key, value in row.items()}
    frame["xyz"] = np.stack([np.full(n, 10.0), 5.0 * np.arange(n), np.zeros(n)], 1)
    lists = {key: v if isinstance(v, list) else [v] * n for key, v in changes.items()}
    return frame | {key: np.array(values) for key, values in lists.items()}


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
def test_bad_input_is_named(options, words):
    frames = {"truth": [boxes("truth")], "found": [boxes("found")], "ego": [(0, 0)], **options}
    with pytest.raises(ValueError, match=words):
        nuscenes.evaluate(**frames)
