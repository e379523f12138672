# SPDX-License-Identifier: Apache-2.0
"""nuScenes' measure of detections, `detection_cvpr_2019`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from torchvox._util.errors import expect
from torchvox.evaluation.matching import Columns, Frames, greedy, pairs, select, stack

__all__ = ["evaluate"]

# Classes, and the distance from the ego vehicle in meters below which their boxes are evaluated.
RANGES = dict.fromkeys(("car", "truck", "bus", "trailer", "construction_vehicle"), 50)
RANGES |= dict.fromkeys(("pedestrian", "motorcycle", "bicycle"), 40)
RANGES |= dict.fromkeys(("traffic_cone", "barrier"), 30)
DISTANCES = np.array([0.5, 1.0, 2.0, 4.0])  # of a match, less than
ERRORS_AT = 2  # of DISTANCES
ERRORS = ("trans", "scale", "orient", "vel", "attr")
WITHOUT = {"traffic_cone": ("orient", "vel", "attr"), "barrier": ("vel", "attr")}
RECALLS = np.linspace(0, 1, 101)
FIRST = 11  # of RECALLS: beyond the least recall of 0.1
LEAST_PRECISION = 0.1
MOST = 500  # detections of a sample
WIDTHS = {"xyz": 3, "lwh": 3, "yaw": 0}


def evaluate(
    truth: Frames, found: Frames, *, ego: npt.ArrayLike, racks: Frames | None = None
) -> dict[str, float]:
    """Mean average precision, errors of true positives and the nuScenes detection score.

    truth, found: one mapping of arrays per sample, the same samples in the same order, n boxes
        each, all in one frame (nuScenes': the world):
        name [n]: of the ten classes. xyz [n, 3]: center, lwh [n, 3]: length, width, height, meters.
        yaw [n]: radians. velocity [n, 2]: m/s, NaN if unknown. attribute [n]: "" if none.
        truth only: points [n]: how many of lidar and radar lie in the box; boxes without any
        are dropped. found only: score [n], not negative; at most 500 detections per sample.
    ego: [S, 2] or more columns, where the ego vehicle is at each sample, in meters. Boxes count
        that are nearer than 50, 40 or 30 m, by class.
    racks: one mapping per sample of the bicycle racks, xyz, lwh, yaw as above: bicycles and
        motorcycles whose center lies in one are dropped. None: no racks.

    Returns {"mAP", "NDS", "car/0.5", "car/1.0", "car/2.0", "car/4.0": average precision in 0..1,
    "car/trans", "car/scale", "car/orient", "car/vel", "car/attr": errors in m, 1 - IoU, radians,
    m/s and 1 - accuracy, ..} for each class, NaN where a class has no such error, and "trans", ..:
    means over classes. A class without ground truth has average precision 0 and errors 1.
    Raises ValueError (lengths, columns, shapes, unknown names, values out of range or not finite).
    """
    expect(len(truth) == len(found), f"found must have {len(truth)} samples", len(found))
    gts = _boxes("truth", truth, "points")
    dets = _boxes("found", found, "score")
    most = int(np.bincount(dets["frame"], minlength=1).max())
    expect(most <= MOST, f"found must have at most {MOST} boxes per sample", most)
    lowest = float(dets["score"].min(initial=0))
    expect(lowest >= 0, "found: score must not be negative", lowest)
    at = np.asarray(ego, np.float64)
    good = at.ndim == 2 and len(at) == len(truth) and at.shape[1] >= 2
    expect(good, f"ego must be [{len(truth)}, 2]", [*at.shape])
    expect(bool(np.isfinite(at).all()), "ego must be finite", ego)
    none: Frames = [{key: () for key in WIDTHS}] * len(truth)
    racks = none if racks is None else racks
    expect(len(racks) == len(truth), f"racks must have {len(truth)} samples", len(racks))
    parked = stack("racks", racks, WIDTHS)

    gts = _in_range(select(gts, gts["points"] != 0), at, parked)
    dets = _in_range(dets, at, parked)
    result = {"mAP": 0.0, "NDS": 0.0}
    for name in RANGES:
        rows = (select(boxes, boxes["name"] == name) for boxes in (gts, dets))
        precisions, errors = _evaluate_class(name, *rows)
        result |= {f"{name}/{d}": p for d, p in zip(DISTANCES.tolist(), precisions, strict=True)}
        result |= {f"{name}/{kind}": error for kind, error in errors.items()}
    result["mAP"] = float(np.mean([result[f"{n}/{d}"] for n in RANGES for d in DISTANCES.tolist()]))
    for kind in ERRORS:
        result[kind] = float(np.nanmean([result[f"{name}/{kind}"] for name in RANGES]))
    result["NDS"] = (5 * result["mAP"] + sum(1 - min(1, result[kind]) for kind in ERRORS)) / 10
    return result


def _boxes(what: str, frames: Frames, number: str) -> Columns:
    """The checked columns of truth or found. number: the column that only this one has."""
    widths = {**WIDTHS, "velocity": 2, number: 0}
    boxes = stack(what, frames, widths, words=("name", "attribute"), may_be_nan=("velocity",))
    unknown = sorted({*boxes["name"].tolist()} - RANGES.keys())
    expect(not unknown, f"{what}: name must be of {', '.join(RANGES)}", unknown)
    smallest = float(boxes["lwh"].min(initial=1))
    expect(smallest > 0, f"{what}: lwh must be positive", smallest)
    return boxes


def _in_range(boxes: Columns, ego: np.ndarray, racks: Columns) -> Columns:
    """The boxes that count: near enough, and no two-wheelers in a rack."""
    keep = _norm(boxes["xyz"][:, :2] - ego[boxes["frame"], :2]) < [RANGES[n] for n in boxes["name"]]
    for i, j in pairs(boxes["frame"], racks["frame"]):
        offset, yaw = boxes["xyz"][i] - racks["xyz"][j], racks["yaw"][j]
        sine, cosine = np.sin(yaw), np.cos(yaw)
        along = offset[:, 0] * cosine + offset[:, 1] * sine
        across = offset[:, 1] * cosine - offset[:, 0] * sine
        local = np.abs(np.stack([along, across, offset[:, 2]], 1))
        two_wheels = np.isin(boxes["name"][i], ("bicycle", "motorcycle"))
        keep[i[(local <= racks["lwh"][j] / 2).all(1) & two_wheels]] = False
    return select(boxes, keep)


def _evaluate_class(name: str, gts: Columns, dets: Columns) -> tuple[list[float], dict[str, float]]:
    """Average precision at each of DISTANCES, and the errors."""
    score = dets["score"]
    order = np.argsort(score, kind="stable")[::-1]  # falling, later first at ties
    turn = np.argsort(order)
    near = []
    for i, j in pairs(dets["frame"], gts["frame"]):
        distance = _norm(dets["xyz"][i, :2] - gts["xyz"][j, :2])
        close = distance < DISTANCES[-1]
        near.append((i[close], j[close], distance[close]))
    i, j, distance = (np.concatenate(each) for each in zip(*near, strict=True))
    tried = np.lexsort((j, distance, turn[i], dets["frame"][i]))
    i, j, distance = i[tried], j[tried], distance[tried]
    matches = greedy(dets["frame"][i], i, j, distance[:, None] < DISTANCES)

    precisions = []
    for case, matched in enumerate(matches.T):
        true = np.zeros(len(score), bool)
        true[turn[i[matched]]] = True
        precision, confidence = np.zeros(len(RECALLS)), np.zeros(len(RECALLS))
        if matched.any():
            hits = np.cumsum(true)
            recall = hits / len(gts["frame"])
            share = hits / np.arange(1, len(hits) + 1)
            precision = np.interp(RECALLS, recall, share, right=0)
            confidence = np.interp(RECALLS, recall, score[order], right=0)
        above = np.maximum(precision[FIRST:] - LEAST_PRECISION, 0)
        precisions.append(float(above.mean()) / (1 - LEAST_PRECISION))
        if case == ERRORS_AT:
            rows = np.flatnonzero(matched)
            rows = rows[np.argsort(turn[i[rows]])]
            errors = _errors(name, gts, dets, j[rows], i[rows], confidence)
    return precisions, errors


def _errors(
    name: str, gts: Columns, dets: Columns, t: np.ndarray, f: np.ndarray, confidence: np.ndarray
) -> dict[str, float]:
    """Mean errors over recalls. t, f: [M] matched rows by falling score; confidence: [101], the
    scores at RECALLS."""
    small = np.minimum(gts["lwh"][t], dets["lwh"][f]).prod(1)
    both = gts["lwh"][t].prod(1) + dets["lwh"][f].prod(1) - small
    period = math.pi if name == "barrier" else 2 * math.pi
    turned = gts["yaw"][t] - dets["yaw"][f]
    has_attribute = gts["attribute"][t] != ""
    each = {
        "trans": _norm(dets["xyz"][f, :2] - gts["xyz"][t, :2]),
        "scale": 1 - small / both,
        "orient": np.abs((turned + period / 2) % period - period / 2),
        "vel": _norm(dets["velocity"][f] - gts["velocity"][t]),
        "attr": np.where(has_attribute, gts["attribute"][t] != dets["attribute"][f], math.nan),
    }
    end = 1 + np.flatnonzero(confidence).max(initial=0)
    score = dets["score"][f]
    result = {}
    for kind, error in each.items():
        result[kind] = 1.0
        if kind in WITHOUT.get(name, ()):
            result[kind] = math.nan
        elif end > FIRST:
            # Running mean of the errors that are not NaN: 0 before the first, 1 if there is none.
            finite = ~np.isnan(error)
            mean = np.nancumsum(error) / np.maximum(np.cumsum(finite), 1) + (not finite.any())
            mean = np.interp(confidence[::-1], score[::-1], mean[::-1])[::-1]
            result[kind] = float(mean[FIRST:end].mean())
    return result


def _norm(vector: np.ndarray) -> np.ndarray:
    return np.sqrt((vector * vector).sum(-1))
