# SPDX-License-Identifier: Apache-2.0
"""Average precision from boxes and points alone: no camera, no bias of small sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from torchvox._errors import expect
from torchvox.evaluation.matching import (
    LEAST_OVERLAP,
    LEVELS,
    Columns,
    Frames,
    greedy,
    overlaps,
    select,
    stack,
)

__all__ = ["evaluate"]

RANGES = {
    "": (0.0, math.inf),
    "/0-20": (0.0, 20.0),
    "/20-40": (20.0, 40.0),
    "/40+": (40.0, math.inf),
}
RECALLS = 40
TURN = 2 * math.pi


def evaluate(
    truth: Frames,
    found: Frames,
    classes: Sequence[str] | Mapping[str, tuple[float, float]],
    *,
    min_points: int = 5,
    score: float = 0.3,
) -> dict[str, float]:
    """Average precision of boxes in the sensor's frame, over recalls 1/40, 2/40, .., 1.

    truth: one mapping of arrays a scene: boxes [n, 7] as `torchvox.rotated_iou` takes them, labels
        [n], points [n]: how many lie in the box. Boxes with fewer than min_points, or of a label
        that no class has, are neither found nor missed: points 0 makes a box ignored.
    found: the same scenes in the same order: boxes [n, 7], labels [n], scores [n].
    classes: the names of labels 0, 1, ..: Car, Van, Truck match above an overlap of 0.7 (strict)
        and 0.5 (loose), Pedestrian, Cyclist, Person_sitting above 0.5 and 0.25. Other names come as
        {name: (strict, loose)}.
    score: detections at or above it are those of precision, recall and yaw.

    Returns {"3d/strict/Car": average precision in 0..1, ..} with bev, 3d; strict, loose, and behind
    that /0-20, /20-40, /40+: boxes at that distance in meters seen from above; /precision and
    /recall; over the matched boxes /heading, the mean difference of yaws in radians, /yaw, that up
    to half a turn, and /flipped, the share whose heading is off by more than a quarter of a turn.
    NaN where there is nothing to tell of: no valid box, no detection, no match.
    Raises ValueError (lengths, columns, shapes, values that are not finite, unknown classes).
    """
    expect(len(truth) == len(found), f"found must have {len(truth)} scenes", len(found))
    least = dict(classes) if isinstance(classes, Mapping) else {}
    known = ", ".join(LEAST_OVERLAP)
    for name in classes:
        good = name in least or name.lower() in LEAST_OVERLAP
        expect(good, f"classes must be of {known}, or a mapping", name)
        pair = least.setdefault(name, LEAST_OVERLAP.get(name.lower(), (0, 0)))
        expect(np.shape(pair) == (2,), f"classes[{name!r}] must be (strict, loose)", pair)
    gts = stack("truth", truth, {"boxes": 7, "labels": 0, "points": 0})
    dets = stack("found", found, {"boxes": 7, "labels": 0, "scores": 0})
    result: dict[str, float] = {}
    for label, name in enumerate(classes):
        result |= _evaluate_class(
            name,
            select(gts, gts["labels"] == label),
            select(dets, dets["labels"] == label),
            np.array(least[name]),
            min_points,
            score,
        )
    return result


def _evaluate_class(
    name: str, gts: Columns, dets: Columns, least: np.ndarray, min_points: int, score: float
) -> dict[str, float]:
    order = np.argsort(-dets["scores"], kind="stable")  # falling, earlier first at ties
    turn = np.argsort(order)
    sure = order[: (dets["scores"] >= score).sum()]
    f, t, overlap = overlaps(dets["boxes"], dets["frame"], gts["boxes"], gts["frame"])
    result: dict[str, float] = {}
    for metric, iou in overlap.items():
        for place, (low, high) in RANGES.items():
            valid = _within(gts, low, high) & (gts["points"] >= min_points)
            tried = np.lexsort((t, -iou, ~valid[t], turn[f], dets["frame"][f]))
            i, j = f[tried], t[tried]
            matches = greedy(dets["frame"][i], i, j, iou[tried, None] > least)
            for level, matched in zip(LEVELS, matches.T, strict=True):
                hit = matched & valid[j]
                counted, true = _within(dets, low, high), np.zeros(len(order), bool)
                counted[i[matched]] = true[i[matched]] = valid[j[matched]]
                key = f"{metric}/{level}/{name}"
                result[key + place] = _average_precision(true[order[counted[order]]], valid.sum())
                if place:
                    continue
                result[f"{key}/precision"] = _ratio(true[sure].sum(), counted[sure].sum())
                result[f"{key}/recall"] = _ratio(true[sure].sum(), valid.sum())
                hit &= dets["scores"][i] >= score
                turned = np.abs(dets["boxes"][i[hit], 6] - gts["boxes"][j[hit], 6])
                heading, yaw = (np.abs(turned - p * np.round(turned / p)) for p in (TURN, TURN / 2))
                result[f"{key}/heading"] = _ratio(heading.sum(), len(heading))
                result[f"{key}/yaw"] = _ratio(yaw.sum(), len(yaw))
                result[f"{key}/flipped"] = _ratio((heading > TURN / 4).sum(), len(heading))
    return result


def _within(boxes: Columns, low: float, high: float) -> np.ndarray:
    x, y = boxes["boxes"][:, :2].T
    distance = np.sqrt(x * x + y * y)
    return (low <= distance) & (distance < high)


def _average_precision(true: np.ndarray, num_valid: int) -> float:
    """true [D] bool: the detections by falling score that count, whether each is a match. The mean
    over recalls of the best precision at that recall or beyond."""
    if not num_valid:
        return math.nan
    hits = np.cumsum(true)
    precision = hits / np.arange(1, len(true) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0)
    reached = np.searchsorted(hits * RECALLS, np.arange(1, RECALLS + 1) * num_valid)
    return float(best[reached].mean())


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan
