# SPDX-License-Identifier: Apache-2.0
import math
from itertools import product

import box_lists
import numpy as np
import pytest
import torch

from torchvox.evaluation import lidar
from torchvox.evaluation.matching import pairs
from torchvox.ops.boxes import rotated_iou

CLASSES = ["Car", "Pedestrian", "Cyclist"]


def scene(*x, y=0.0, yaw=0.0, labels=0, **column):
    """Cars along x; points or scores of each."""
    rows = np.array([[at, y, 0, 4, 2, 1.5, yaw] for at in x], np.float64).reshape(-1, 7)
    return {"boxes": rows, "labels": np.full(len(x), labels), **column}


def cars(truth, found, key="3d/strict/Car", **options):
    return lidar.evaluate([truth], [found], CLASSES, **options)[key]


def plain_loops(truth, found, overlaps, label, least, low, high, score):
    """Average precision, and precision, recall and share of flips of detections from a score on.
    overlaps: [G, D] of each scene."""

    def inside(box):
        return low <= math.hypot(box[0], box[1]) < high

    order = [
        (-float(f["scores"][d]), s, d)
        for s, f in enumerate(found)
        for d in range(len(f["labels"]))
        if f["labels"][d] == label
    ]
    valid = {
        (s, g): t["points"][g] >= 5 and inside(t["boxes"][g])
        for s, t in enumerate(truth)
        for g in range(len(t["labels"]))
        if t["labels"][g] == label
    }
    n, taken, outcomes, flips, above = sum(valid.values()), set(), [], [], 0
    for falling, s, d in sorted(order):
        box, best = found[s]["boxes"][d], None
        for (at, g), good in valid.items():
            if at == s and (s, g) not in taken:
                iou = overlaps[s][g, d]
                if iou > least and (best is None or (good, iou) > best[:2]):
                    best = good, iou, g
        if best:
            taken.add((s, best[2]))
            if best[0]:
                turned = (box[6] - truth[s]["boxes"][best[2]][6]) % (2 * math.pi)
                flips.append(math.pi / 2 < turned < 3 * math.pi / 2)
        if best[0] if best else inside(box):
            outcomes.append(bool(best))
            above = len(outcomes) if -falling >= score else above
    points = [(sum(outcomes[: k + 1]), k + 1) for k in range(len(outcomes))]
    best = [max((h / k for h, k in points if 40 * h >= r * n), default=0) for r in range(1, 41)]
    hits = sum(outcomes[:above])
    shares = (hits, above), (hits, n), (sum(flips[:hits]), hits)
    return [sum(best) / 40 if n else math.nan, *(a / b if b else math.nan for a, b in shares)]


@pytest.mark.parametrize(("seed", "scenes"), [(11, 15), (12, 4), (13, 1)])
def test_it_equals_the_plain_loops(seed, scenes):
    truth, found = box_lists.lidar_scenes(seed, scenes)
    result = lidar.evaluate(truth, found, CLASSES, score=0.5)
    for metric, (label, name) in product(("bev", "3d"), enumerate(CLASSES)):
        overlaps = [
            rotated_iou(*(torch.from_numpy(f["boxes"]) for f in both), mode=metric)
            for both in zip(truth, found, strict=True)
        ]
        for level, least in (("strict", (0.7, 0.5)), ("loose", (0.5, 0.25))):
            key = f"{metric}/{level}/{name}"
            for place, limits in lidar.RANGES.items():
                rule = label, least[label > 0], *limits, 0.5
                ap, *shares = plain_loops(truth, found, overlaps, *rule)
                assert result[key + place] == pytest.approx(ap, abs=1e-9, nan_ok=True), key
                if not place:
                    got = [result[f"{key}/{kind}"] for kind in ("precision", "recall", "flipped")]
                    assert got == pytest.approx(shares, nan_ok=True)


def test_boxes_of_few_points_are_neither_found_nor_missed():
    truth = scene(0, 10, points=[4, 5])
    assert cars(truth, scene(0, 10, scores=[0.9, 0.5])) == 1
    assert cars(truth, scene(10, scores=[0.5]), min_points=4) == 0.5
    assert cars(scene(0, 0.3, points=[0, 9]), scene(0, scores=[0.5])) == 1  # valid ones go first


def test_yaw_is_off_up_to_half_a_turn_heading_by_all_of_it():
    truth = scene(0, 10, 20, yaw=3.1, points=[9, 9, 9])
    found = scene(0, 10, 20, yaw=3.1, scores=[0.9, 0.8, 0.1])
    found["boxes"][:, 6] += [2 * np.pi + 0.1, np.pi - 0.2, np.pi]
    result = lidar.evaluate([truth], [found], CLASSES)
    assert result["bev/loose/Car/heading"] == pytest.approx((0.1 + np.pi - 0.2) / 2)
    assert result["bev/loose/Car/yaw"] == pytest.approx(0.15)
    assert result["bev/loose/Car/flipped"] == 0.5
    assert result["bev/loose/Car/precision"] == 1
    assert result["bev/loose/Car/recall"] == pytest.approx(2 / 3)
    nothing = lidar.evaluate([truth], [scene(scores=[])], CLASSES)
    assert nothing["3d/strict/Car"] == 0 and nothing["3d/strict/Car/recall"] == 0
    for kind in ("precision", "heading", "yaw", "flipped"):
        assert math.isnan(nothing[f"3d/strict/Car/{kind}"])


def test_velocities_are_compared_where_things_move():
    truth, found = scene(0, 10, 20, 30, points=[9] * 4), scene(0, 10, 20, 30, scores=[0.9] * 4)
    truth["velocity"] = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, np.nan], [0.0, -2.0]])
    found["velocity"] = np.array([[3.0, 3.0], [9.0, 9.0], [9.0, 9.0], [0.0, -1.5]])
    result = lidar.evaluate([truth], [found], CLASSES)
    assert result["3d/loose/Car/velocity"] == pytest.approx((1 + 0.5) / 2)
    assert math.isnan(result["3d/loose/Cyclist/velocity"])
    del found["velocity"]
    assert "3d/loose/Car/velocity" not in lidar.evaluate([truth], [found], CLASSES)


def test_details_tell_hits_misses_false_alarms_and_the_curve():
    truth = [scene(points=[]), scene(0, 20, 40, points=[9, 9, 2])]
    found = [scene(5, scores=[0.1]), scene(20, 10, 40, 0, scores=[0.2, 0.8, 0.7, 0.9])]
    result = lidar.details(truth, found, CLASSES)
    assert result.scores == pytest.approx(lidar.evaluate(truth, found, CLASSES), nan_ok=True)
    # By falling score a hit, a false alarm, one of an ignored box, a hit; the last two are lower.
    assert [one.tolist() for one in result.found["3d/strict"]] == [[-1], [-1, 0, -1, 1]]
    assert [one.tolist() for one in result.truth["bev/loose"]] == [[], [1, 0, -1]]
    assert result.curves["3d/strict/Car"].tolist() == [1.0] * 20 + [2 / 3] * 20
    assert np.isnan(result.curves["3d/strict/Cyclist/40+"]).all()
    unknown = lidar.details(truth[1:], [scene(0, labels=7, scores=[1.0])], CLASSES)
    assert unknown.found["3d/loose"][0].tolist() == [-1]


def test_other_classes_bring_their_overlaps():
    truth, found = scene(0, points=[9]), scene(0.8, scores=[1.0])  # 3.2 / 4.8 = .67
    assert cars(truth, found) == 0 and cars(truth, found, "3d/loose/Car") == 1
    result = lidar.evaluate([truth], [found], {"crane": (0.6, 0.1), "bus": (0.9, 0.8)})
    assert result["3d/strict/crane"] == 1 and math.isnan(result["3d/loose/bus"])
    with pytest.raises(ValueError, match=r"classes must be of car, .* or a mapping, got 'crane'"):
        lidar.evaluate([truth], [found], ["Car", "crane"])
    with pytest.raises(ValueError, match="found must have 1 scenes, got 2"):
        lidar.evaluate([truth], [found] * 2, CLASSES)
    with pytest.raises(ValueError, match=r"classes\['crane'\] must be \(strict, loose\), got 0.5"):
        lidar.evaluate([truth], [found], {"crane": 0.5})


def test_pairs_are_the_same_whatever_the_size_of_a_chunk(monkeypatch):
    first, second = np.array([0, 0, 2, 3, 3, 3]), np.array([0, 1, 2, 2, 3, 5, 5])
    expected = [(i, j) for i in range(6) for j in range(7) if first[i] == second[j]]
    for chunk in (1, 2, 3, 100):
        monkeypatch.setattr("torchvox.evaluation.matching.CHUNK", chunk)
        got = [(i, j) for a, b in pairs(first, second) for i, j in zip(a, b, strict=True)]
        assert got == expected
    assert [len(i) for i, _ in pairs(first[:0], second)] == [0]
