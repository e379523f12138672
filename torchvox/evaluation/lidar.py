# SPDX-License-Identifier: Apache-2.0
"""Average precision from boxes and points alone: no camera, no bias of small sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from torchvox._util.errors import expect
from torchvox.evaluation import matching
from torchvox.evaluation.matching import LEAST_OVERLAP, LEVELS, Columns, Frames, select, stack

__all__ = ["Details", "details", "evaluate"]

RANGES = {"": (0.0, math.inf), "/0-20": (0.0, 20.0), "/20-40": (20.0, 40.0)}
RANGES["/40+"] = (40.0, math.inf)
RECALLS = 40
MOVES = 0.5  # m/s from which on velocities are compared
TURN = 2 * math.pi
Classes = Sequence[str] | Mapping[str, tuple[float, float]]


class Details(NamedTuple):
    """scores: what `evaluate` gives. curves: of every average precision in it ("3d/strict/Car",
    "3d/strict/Car/0-20", ..) the best precision at recalls 1/40, 2/40, .., 1 or beyond, [40].
    found, truth: by "3d/strict" and the like one array per scene: 1 for a hit, 0 for a false alarm
    or a miss, -1 for boxes that are neither: ignored, of no class, found below `score`."""

    scores: dict[str, float]
    curves: dict[str, np.ndarray]
    found: dict[str, Any]
    truth: dict[str, Any]


def evaluate(
    truth: Frames,
    found: Frames,
    classes: Classes,
    *,
    min_points: int = 5,
    score: float = 0.3,
) -> dict[str, float]:
    """Average precision of boxes in the sensor's frame, over recalls 1/40, 2/40, .., 1.

    truth: one mapping of arrays per scene: boxes [n, 7] as of `torchvox.rotated_iou`, labels [n],
        points [n]: how many lie in the box. Boxes with fewer than min_points, or of a label
        that no class has, are neither found nor missed: points 0 makes a box ignored.
    found: the same scenes in the same order: boxes [n, 7], labels [n], scores [n].
        Both may have velocity [n, 2] in m/s, NaN in truth where it is unknown.
    classes: the names of labels 0, 1, ..: Car, Van, Truck match above an overlap of 0.7 (strict)
        and 0.5 (loose), Pedestrian, Cyclist, Person_sitting above 0.5 and 0.25. Other names come as
        {name: (strict, loose)}.
    score: detections at or above it are those of precision, recall and yaw.

    Returns {"3d/strict/Car": average precision in 0..1, ..} with bev, 3d; strict, loose, and behind
    that /0-20, /20-40, /40+: boxes at that distance in meters seen from above; /precision and
    /recall; over the matched boxes /heading, the mean difference of yaws in radians, /yaw, that up
    to half a turn, and /flipped, the share whose heading is off by more than a quarter of a turn;
    over those that move by more than 0.5 m/s /velocity, the mean error in m/s, with velocities.
    NaN where a number is undefined: no valid box, no detection, no match.
    Raises ValueError (lengths, columns, shapes, values that are not finite, unknown classes).
    """
    return details(truth, found, classes, min_points, score).scores


def details(
    truth: Frames, found: Frames, classes: Classes, min_points: int = 5, score: float = 0.3
) -> Details:
    """The numbers of `evaluate` with curves and hits, from the same arguments."""
    expect(len(truth) == len(found), f"found must have {len(truth)} scenes", len(found))
    least = dict(classes) if isinstance(classes, Mapping) else {}
    rule = f"classes must be of {', '.join(LEAST_OVERLAP)}, or a mapping"
    for name in classes:
        expect(name in least or name.lower() in LEAST_OVERLAP, rule, name)
        pair = least.setdefault(name, LEAST_OVERLAP.get(name.lower(), (0, 0)))
        expect(np.shape(pair) == (2,), f"classes[{name!r}] must be (strict, loose)", pair)
    widths = {"boxes": 7, "labels": 0}
    if all("velocity" in one for one in (*truth, *found)):
        widths["velocity"] = 2
    gts = stack("truth", truth, {**widths, "points": 0}, may_be_nan=("velocity",))
    dets = stack("found", found, {**widths, "scores": 0})
    result = Details({}, {}, {}, {})
    sides = (result.found, dets), (result.truth, gts)
    for (marks, columns), key in product(sides, product(("bev", "3d"), LEVELS)):
        columns["row"] = np.arange(len(columns["frame"]))
        marks["/".join(key)] = np.full(len(columns["frame"]), -1)
    for label, name in enumerate(classes):
        mine = [select(columns, columns["labels"] == label) for columns in (gts, dets)]
        _evaluate_class(result, name, mine, np.array(least[name]), min_points, score)
    for marks, columns in sides:
        ends = np.bincount(columns["frame"], minlength=len(truth)).cumsum()[:-1]
        marks.update({key: np.split(mark, ends) for key, mark in marks.items()})
    return result


def _evaluate_class(
    result: Details,
    name: str,
    boxes: Sequence[Columns],
    least: np.ndarray,
    min_points: int,
    score: float,
) -> None:
    """Add the numbers of one class. boxes: of the truth, and those found."""
    gts, dets = boxes
    order = np.argsort(-dets["scores"], kind="stable")  # falling, earlier first at ties
    turn = np.argsort(order)
    sure = order[: (dets["scores"] >= score).sum()]
    f, t, overlap = matching.overlaps(dets["boxes"], dets["frame"], gts["boxes"], gts["frame"])
    scores = result.scores
    for metric, iou in overlap.items():
        for place, (low, high) in RANGES.items():
            valid = _within(gts, low, high) & (gts["points"] >= min_points)
            tried = np.lexsort((t, -iou, ~valid[t], turn[f], dets["frame"][f]))
            i, j = f[tried], t[tried]
            matches = matching.greedy(dets["frame"][i], i, j, iou[tried, None] > least)
            for level, matched in zip(LEVELS, matches.T, strict=True):
                hit = matched & valid[j]
                counted, true = _within(dets, low, high), np.zeros(len(order), bool)
                counted[i[matched]] = true[i[matched]] = valid[j[matched]]
                key = f"{metric}/{level}/{name}"
                curve = _curve(true[order[counted[order]]], valid.sum())
                result.curves[key + place], scores[key + place] = curve, float(curve.mean())
                if place:
                    continue
                scores[f"{key}/precision"] = _ratio(true[sure].sum(), counted[sure].sum())
                scores[f"{key}/recall"] = _ratio(true[sure].sum(), valid.sum())
                hit &= dets["scores"][i] >= score
                outcomes, marks = (m[f"{metric}/{level}"] for m in (result.found, result.truth))
                outcomes[dets["row"][sure]] = np.where(counted, true, -1)[sure]
                marks[gts["row"][valid]], marks[gts["row"][j[hit]]] = 0, 1
                turned = np.abs(dets["boxes"][i[hit], 6] - gts["boxes"][j[hit], 6])
                heading, yaw = (np.abs(turned - p * np.round(turned / p)) for p in (TURN, TURN / 2))
                scores[f"{key}/heading"] = _ratio(heading.sum(), len(heading))
                scores[f"{key}/yaw"] = _ratio(yaw.sum(), len(yaw))
                scores[f"{key}/flipped"] = _ratio((heading > TURN / 4).sum(), len(heading))
                if "velocity" in gts:
                    v = gts["velocity"][j[hit]]
                    off = np.hypot(*(dets["velocity"][i[hit]] - v).T)[np.hypot(*v.T) > MOVES]
                    scores[f"{key}/velocity"] = _ratio(off.sum(), len(off))


def _within(boxes: Columns, low: float, high: float) -> np.ndarray:
    x, y = boxes["boxes"][:, :2].T
    distance = np.sqrt(x * x + y * y)
    return (low <= distance) & (distance < high)


def _curve(true: np.ndarray, num_valid: int) -> np.ndarray:
    """true [D] bool: the detections by falling score that count, whether each is a match. The best
    precision at each recall or beyond, [40]; NaN without a valid box."""
    if not num_valid:
        return np.full(RECALLS, math.nan)
    hits = np.cumsum(true)
    precision = hits / np.arange(1, len(true) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    reached = np.searchsorted(hits * RECALLS, np.arange(1, RECALLS + 1) * num_valid)
    return best[reached]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan
