# SPDX-License-Identifier: Apache-2.0
"""KITTI's measure of detections, by the rules of its usual Python evaluators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from torchvox._util.errors import expect
from torchvox.evaluation import matching
from torchvox.evaluation.matching import LEAST_OVERLAP, LEVELS, Columns, Frames, pairs, stack

__all__ = ["evaluate"]

METRICS = ("2d", "bev", "3d")
RECALLS = 41
SIMILAR = {"car": "van", "pedestrian": "person_sitting"}  # counted neither as hit nor as miss
VALID, IGNORED, ABSENT = 1, 0, -1
NO_ALPHA = -10


class Difficulty(NamedTuple):
    height: float  # of the image box, in pixels: valid boxes are higher
    occluded: int  # at most
    truncated: float  # at most


DIFFICULTIES = {
    "easy": Difficulty(40, 0, 0.15),
    "moderate": Difficulty(25, 1, 0.3),
    "hard": Difficulty(25, 2, 0.5),
}
WIDTHS = {"box": 4, "location": 3, "size": 3, "ry": 0, "alpha": 0}


class Pairs(NamedTuple):
    """Pairs of a ground truth and a detection of a frame that overlap, sorted by both."""

    truth: np.ndarray  # [P] rows
    detection: np.ndarray
    overlap: np.ndarray


def evaluate(truth: Frames, found: Frames, classes: Sequence[str]) -> dict[str, float]:
    """Average precision of 3D detections as KITTI defines it, for a whole set of frames.

    truth, found: one mapping of arrays per frame, the same frames in the same order, n boxes each:
        name [n]: class names as in KITTI's files, case does not matter; "DontCare" in truth.
        box [n, 4]: left, top, right, bottom in the image, in pixels.
        location [n, 3]: center of the bottom in the camera frame (x right, y down, z ahead), in m.
        size [n, 3]: height, width, length in meters.
        ry [n]: rotation about the camera's y in radians. alpha [n]: observation angle in radians.
        truth only: truncated [n] in 0..1, occluded [n] in 0..3. found only: score [n].
    classes: of Car, Pedestrian, Cyclist, Van, Person_sitting, Truck.

    Returns {"3d/strict/Car/moderate/R40": percent, ..}: 2d, bev, 3d, aos; strict, loose; each
    class; easy, moderate, hard; R11, R40. aos is missing where the first detection's alpha is -10.
    With fewer than 41 valid boxes a perfect detector stays below 100, as in KITTI's own program.
    Raises ValueError (lengths, columns, shapes, values that are not finite, unknown classes).
    """
    expect(len(truth) == len(found), f"found must have {len(truth)} frames", len(found))
    for name in classes:
        rule = f"classes must be of {', '.join(LEAST_OVERLAP)}"
        expect(name.lower() in LEAST_OVERLAP, rule, name)
    gts = stack("truth", truth, {**WIDTHS, "truncated": 0, "occluded": 0}, words=["name"])
    dets = stack("found", found, {**WIDTHS, "score": 0}, words=["name"])
    for boxes in (gts, dets):
        boxes["name"] = np.char.lower(boxes["name"].astype(str))
    candidates = _candidates(gts, dets)
    in_dont_care = _share_in_dont_care(gts, dets)
    aos = len(dets["alpha"]) > 0 and dets["alpha"][0] != NO_ALPHA
    result: dict[str, float] = {}
    for name, difficulty, metric in product(classes, DIFFICULTIES, METRICS):
        low, limits = name.lower(), DIFFICULTIES[difficulty]
        small = np.abs(dets["box"][:, 3] - dets["box"][:, 1]) < limits.height
        state = np.where(small, IGNORED, np.where(dets["name"] == low, VALID, ABSENT))
        states = _truth_state(gts, low, limits), state
        strict, loose = LEAST_OVERLAP[low]
        # The overlaps that a match exceeds. In the image both are the strict one, except of trucks.
        least = (strict, strict) if metric == "2d" and low != "truck" else (strict, loose)
        curves = {}
        for overlap in dict.fromkeys(least):
            forgiven = in_dont_care > overlap if metric == "2d" else None
            curves[overlap] = _curves(gts, dets, *states, candidates[metric], overlap, forgiven)
        for level, overlap in zip(LEVELS, least, strict=True):
            for kind, curve in zip((metric, "aos"), curves[overlap], strict=True):
                if kind == metric or (metric == "2d" and aos):
                    key = f"{kind}/{level}/{name}/{difficulty}"
                    result[f"{key}/R11"] = float(curve[::4].mean() * 100)
                    result[f"{key}/R40"] = float(curve[1:].mean() * 100)
    return result


def _truth_state(gts: Columns, name: str, limits: Difficulty) -> np.ndarray:
    valid = gts["box"][:, 3] - gts["box"][:, 1] > limits.height
    valid &= (gts["occluded"] <= limits.occluded) & (gts["truncated"] <= limits.truncated)
    same = gts["name"] == name
    state = np.where(same & valid, VALID, ABSENT)
    state[(same & ~valid) | (gts["name"] == SIMILAR.get(name, ""))] = IGNORED
    return state


def _curves(
    gts: Columns,
    dets: Columns,
    truth_state: np.ndarray,
    found_state: np.ndarray,
    candidates: Pairs,
    least: float,
    forgiven: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Precision and orientation similarity [41] at 41 recalls, both made monotone."""
    keep = candidates.overlap > least
    keep &= truth_state[candidates.truth] != ABSENT
    keep &= found_state[candidates.detection] != ABSENT
    t, f, overlap = (each[keep] for each in candidates)
    frame, score = gts["frame"][t], dets["score"]
    hit = (truth_state[t] == VALID) & (found_state[f] == VALID)
    precision, similarity = np.zeros(RECALLS), np.zeros(RECALLS)

    # Without a threshold each ground truth takes the free detection of the highest score.
    best_score = np.lexsort((f, -score[f], t))
    matched = matching.greedy(frame, t, f[best_score], np.ones((len(t), 1), bool))[:, 0]
    scores = score[f[best_score[matched & hit[best_score]]]]
    thresholds = _thresholds(scores, int((truth_state == VALID).sum()))
    if not len(thresholds):
        return precision, similarity

    # At each threshold the valid one of the largest overlap, else the first ignored one.
    ignored = found_state[f] == IGNORED
    best_overlap = np.lexsort((f, np.where(ignored, 0, -overlap), ignored, t))
    t, f, hit = t[best_overlap], f[best_overlap], hit[best_overlap]
    matched = matching.greedy(frame, t, f, score[f, None] >= thresholds)
    true = matched[hit].sum(0)
    valid = found_state == VALID
    above = len(score[valid]) - np.searchsorted(np.sort(score[valid]), thresholds)
    false = above - matched[valid[f]].sum(0)
    if forgiven is not None:
        rest = (score[:, None] >= thresholds) & (valid & forgiven)[:, None]
        pair, case = np.nonzero(matched)
        rest[f[pair], case] = False
        false = false - rest.sum(0)
    alike = (1 + np.cos(gts["alpha"][t] - dets["alpha"][f])) / 2
    for curve, part in ((precision, true), (similarity, alike[hit] @ matched[hit])):
        share = np.divide(part, true + false, out=np.zeros(len(true)), where=true + false > 0)
        curve[: len(share)] = np.maximum.accumulate(share[::-1])[::-1]
    return precision, similarity


def _thresholds(scores: np.ndarray, num_valid: int) -> np.ndarray:
    """The scores [T <= 41] at which the recall is nearest to 0, 1/40, 2/40, .., falling."""
    scores, kept, recall = np.sort(scores)[::-1], [], 0.0
    for i, score in enumerate(scores.tolist()):
        last = i + 1 == len(scores)
        if not last and (i + 2) / num_valid - recall < recall - (i + 1) / num_valid:
            continue
        kept.append(score)
        recall += 1 / (RECALLS - 1)
    return np.array(kept)


def _candidates(gts: Columns, dets: Columns) -> dict[str, Pairs]:
    first, second = ((_from_above(boxes), boxes["frame"]) for boxes in (gts, dets))
    t, f, rotated = matching.overlaps(*first, *second)
    pairs_of = {metric: Pairs(t, f, overlap) for metric, overlap in rotated.items()}
    t, f, shared = _image_overlap(gts["box"], gts["frame"], dets)
    union = _area(gts["box"])[t] + _area(dets["box"])[f] - shared
    return {"2d": Pairs(t, f, shared / union), **pairs_of}


def _share_in_dont_care(gts: Columns, dets: Columns) -> np.ndarray:
    """[detections]: the largest share of a detection's area that one region DontCare covers."""
    regions = gts["name"] == "dontcare"
    _, f, shared = _image_overlap(gts["box"][regions], gts["frame"][regions], dets)
    share = np.zeros(len(dets["score"]))
    np.maximum.at(share, f, shared / _area(dets["box"])[f])
    return share


def _image_overlap(
    boxes: np.ndarray, frame: np.ndarray, dets: Columns
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows of boxes, rows of detections, shared area in pixels) of the pairs that overlap."""
    parts = []
    for i, j in pairs(frame, dets["frame"]):
        a, b = boxes[i], dets["box"][j]
        side = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
        meet = (side > 0).all(1)
        parts.append((i[meet], j[meet], side[meet].prod(1)))
    i, j, shared = (np.concatenate(each) for each in zip(*parts, strict=True))
    return i, j, shared


def _area(box: np.ndarray) -> np.ndarray:
    return (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])


def _from_above(boxes: Columns) -> np.ndarray:
    """[N, 7] for `rotated_iou`: camera x, z and the height above y = 0. In this view ry turns
    clockwise."""
    x, y, z = boxes["location"].T
    height, width, length = boxes["size"].T
    return np.stack([x, z, height / 2 - y, length, width, height, -boxes["ry"]], axis=1)
