# SPDX-License-Identifier: Apache-2.0
"""Tracking of boxes by their centers, in NumPy, after Yin et al., "Center-based 3D Object Detection
and Tracking", CVPR 2021."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torchvox._util.errors import WrongUseError

Array: TypeAlias = npt.NDArray[Any]
# Largest distance in meters, by class, from a track to a detection moved back to its time.
DISTANCES = {
    **{"car": 4.0, "truck": 4.0, "bus": 5.5, "trailer": 3.0, "motorcycle": 13.0},
    **{"bicycle": 3.0, "cyclist": 3.0, "pedestrian": 1.0},
}
TRACK = [("id", "i8"), ("label", "i8"), ("missed", "i8"), ("xy", "f8", 2), ("velocity", "f8", 2)]


class Tracker:
    """Assigns ids to the objects of consecutive frames.

    Detections, by descending score, are moved back along their velocities to the previous frame and
    take the nearest free track of their class; ties go to the first detection and the oldest track.
    If no track is near enough, a new one starts. A track without a detection continues along its
    velocity for `coast` frames.

    classes: names of labels 0, 1, .. distances: largest distance in meters by class, in upper or
    lower case; boxes of other classes are not tracked. Raises WrongUseError.
    """

    def __init__(
        self, classes: Sequence[str], distances: Mapping[str, float] = DISTANCES, coast: int = 3
    ) -> None:
        near = {name.lower(): limit for name, limit in distances.items()}
        good = all(0 <= limit < math.inf for limit in near.values())
        _expect(good, "distances must be finite and not negative", distances)
        self._near = np.array([near.get(name.lower(), -1.0) for name in classes])
        tracked = max(self._near, default=-1.0) >= 0
        _expect(tracked, f"classes must name some of {', '.join(near)}", ", ".join(classes))
        _expect(coast >= 0, "coast must be 0 or more frames", coast)
        self._coast, self._next, self._seconds = coast, 0, -math.inf
        self._tracks = np.zeros(0, TRACK)  # by ascending id, at the time of the last frame

    def update(
        self, boxes: npt.ArrayLike, scores: npt.ArrayLike, labels: npt.ArrayLike, seconds: float
    ) -> Array:
        """Ids of the objects of a frame's boxes, [n] int64, ascending from 0; -1: not tracked.

        boxes: [n, 9] x, y, z, l, w, h, yaw, vx, vy, meters and m/s, in a fixed coordinate frame;
        velocities that are NaN or missing, [n, 7], count as 0. scores [n]. labels [n]: -1 for rows
        that are not boxes, such as the padding of a detector's output. seconds: time of the frame,
        later than the previous one. Raises WrongUseError and then leaves the tracks unchanged.
        """
        objects, order = self._detections(*map(_numbers, (boxes, scores, labels)))
        time = _numbers(seconds)
        seconds = float(time) if time.shape == () else math.nan
        _expect(self._seconds < seconds < math.inf, f"time must rise from {self._seconds}", seconds)
        step = seconds - self._seconds if self._next else 0.0
        tracks, free = self._tracks, np.ones(len(self._tracks), bool)
        before = objects["xy"] - objects["velocity"] * step
        for row in order:
            away = np.hypot(*(tracks["xy"] - before[row]).T)
            away[~free | (tracks["label"] != objects["label"][row])] = math.inf
            if away.min(initial=math.inf) <= self._near[objects["label"][row]]:
                objects["id"][row] = tracks["id"][away.argmin()]
                free[away.argmin()] = False
            else:
                objects["id"][row] = self._next
                self._next += 1
        left = tracks[free & (tracks["missed"] < self._coast)]
        left["xy"] += left["velocity"] * step
        left["missed"] += 1
        self._tracks = np.sort(np.concatenate([left, objects[order]]), order="id")
        self._seconds = seconds
        return objects["id"]

    def _detections(self, box: Array, score: Array, label: Array) -> tuple[Array, Array]:
        """TRACKs without an id, and the rows to track, by descending score."""
        n, shapes = label.size, (box.shape, score.shape, label.shape)
        good = shapes in (((n, 7), (n,), (n,)), ((n, 9), (n,), (n,)))
        _expect(good, "boxes, scores, labels must be [n, 7] or [n, 9], [n], [n]", shapes)
        odd = [value for value in label.tolist() if not (value >= -1 and value == value // 1)]
        _expect(not odd, "labels must be whole numbers from -1 up", odd)
        highest = int(label.max(initial=-1))
        _expect(highest < len(self._near), f"labels must be below {len(self._near)}", highest)
        finite = np.isfinite(np.column_stack([box[:, :2], score])).all(1) | (label < 0)
        _expect(bool(finite.all()), "places and scores must be finite", f"rows {np.where(~finite)}")
        objects = np.zeros(n, TRACK)
        objects["id"], objects["label"], objects["xy"] = -1, label, box[:, :2]
        if box.shape[1] == 9:
            objects["velocity"] = np.where(np.isfinite(box[:, 7:]), box[:, 7:], 0.0)
        near = np.where(objects["label"] < 0, -1.0, self._near[objects["label"]])
        order = np.argsort(-score, kind="stable")
        return objects, order[near[order] >= 0]


def _numbers(value: npt.ArrayLike) -> Array:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise WrongUseError(f"Tracker: boxes, scores, labels, seconds: {error}") from None


def _expect(good: bool, rule: str, got: object) -> None:
    if not good:
        raise WrongUseError(f"Tracker: {rule}, got {got}")
