# SPDX-License-Identifier: Apache-2.0
"""Frames of boxes for the evaluators, with every edge of their rules: functions of a seed, so that
other programs' results for them can be kept as numbers.
"""

import numpy as np
import torch

from torchvox.data.counter_random import Draws
from torchvox.evaluation.nuscenes import RANGES

KITTI_SIZES = {"Car": (1.5, 1.6, 3.9), "Van": (2.2, 1.9, 5.0), "Pedestrian": (1.75, 0.6, 0.8)}
KITTI_SIZES |= {"Person_sitting": (1.3, 0.6, 0.8), "Cyclist": (1.7, 0.6, 1.8)}
KITTI_SIZES |= {"Truck": (3.2, 2.6, 10.0), "DontCare": (-1.0, -1.0, -1.0)}  # h, w, l in meters
KITTI_MIX = ["Car"] * 5 + ["Pedestrian"] * 4 + ["Cyclist"] * 3 + [*KITTI_SIZES] + ["DontCare"]
ATTRIBUTES = ["", "vehicle.moving", "vehicle.parked"]


class Rolls:
    """Random numbers of one frame, one purpose after the other."""

    def __init__(self, kind: str, seed: int, frame: int):
        self.draws, self.calls = Draws(seed, kind, torch.tensor([frame])), 0

    def uniform(self, low, high, *shape):
        self.calls += 1
        u = self.draws.uniform(f"call {self.calls}", int(np.prod(shape))).numpy().reshape(shape)
        return low + (high - low) * u

    def chance(self, share, n):
        return self.uniform(0, 1, n) < share

    def pick(self, n, of):
        return self.uniform(0, of, n).astype(int)


def rows(boxes, index):
    return {key: values[index] for key, values in boxes.items()}


def joined(*parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def with_distinct_scores(frames, key="score"):
    """The frames, scores moved a little."""
    n = [1e-5 * np.arange(len(f[key])) + 1e-7 * number for number, f in enumerate(frames)]
    return [{**f, key: f[key] + more} for f, more in zip(frames, n, strict=True)]


def kitti_frames(seed: int, frames: int):
    """(truth, found): crowded, often off, heights at the limits, equal scores."""
    both = [_kitti_frame(Rolls("kitti", seed, frame)) for frame in range(frames)]
    return [truth for truth, _ in both], [found for _, found in both]


def _kitti_frame(roll):
    n = 4 + int(roll.pick(1, 10)[0])
    name = np.array(KITTI_MIX)[roll.pick(n, len(KITTI_MIX))]
    location = np.stack([roll.uniform(*r, n) for r in ((-8, 8), (1.5, 1.8), (6, 46))], 1)
    size = np.array([KITTI_SIZES[k] for k in name]) * roll.uniform(0.9, 1.1, n, 1)
    ry = roll.uniform(-3.1, 3.1, n)
    truth = {
        "name": name,
        "box": _image_box(location, np.abs(size)),
        "location": location,
        "size": size,
        "ry": ry,
        "alpha": ry - np.arctan2(location[:, 0], location[:, 2]),
        "truncated": np.array([0, 0, 0, 0.15, 0.2, 0.4, 0.6])[roll.pick(n, 7)],
        "occluded": np.array([0, 0, 0, 1, 2, 3])[roll.pick(n, 6)],
    }
    region = name == "DontCare"
    truth["box"][region, 2:] = truth["box"][region, :2] + roll.uniform(60, 150, region.sum(), 2)
    truth["location"][region], truth["alpha"][region], truth["ry"][region] = -1000, -10, -10
    truth["truncated"][region], truth["occluded"][region] = -1, -1

    # Detections of boxes, some twice, and of places where nothing is.
    of = np.concatenate([np.flatnonzero(roll.chance(0.9, n)), roll.pick(n // 2, n)])
    k = len(of)
    near = {key: truth[key][of].copy() for key in ("name", "location", "size", "ry")}
    near["name"][region[of]] = "Car"
    other = roll.chance(0.2, k)
    near["name"][other] = np.array(KITTI_MIX[:12])[roll.pick(k, 12)][other]
    wide = np.where(roll.chance(0.3, k), 0.5, 0.08)[:, None]
    near["location"] = near["location"] + roll.uniform(-1, 1, k, 3) * wide * [1, 0.4, 1]
    near["size"] = np.abs(near["size"]) * (1 + roll.uniform(-0.1, 0.1, k, 3))
    near["ry"] = near["ry"] + roll.uniform(-0.1, 0.1, k) + np.pi * roll.chance(0.1, k)
    near["box"] = _image_box(near["location"], near["size"])
    inside = truth["box"][of] + roll.uniform(-9, 9, k, 4)
    near["box"][region[of]] = inside[region[of]]
    short = roll.chance(0.2, k)
    near["box"][short, 1] = near["box"][short, 3] - roll.pick(k, 45)[short]
    near["alpha"] = near["ry"] - np.arctan2(near["location"][:, 0], near["location"][:, 2])
    score = roll.uniform(0, 1, k) ** 0.5 - wide[:, 0] * 0.3
    near["score"] = np.where(roll.chance(0.5, k), np.round(score, 1), score)
    stray = rows(near, roll.pick(4, k))
    stray["location"] = stray["location"] + [3.0, 0, 5.0]
    stray["box"] = stray["box"] + 37.0
    stray["score"] = stray["score"] * 0.8
    return truth, joined(near, stray)


def _image_box(location, size):
    """Whole pixels, so that heights of exactly 25 and 40 occur."""
    x, y, z = location.T
    height, width = 700 * size[:, 0] / z, 500 * (size[:, 1] + size[:, 2]) / z
    u, v = 621 + 700 * x / z, 180 + 700 * y / z
    return np.round(np.stack([u - width / 2, v - height, u + width / 2, v], 1))


def nuscenes_samples(seed: int, samples: int):
    """(truth, found, ego [S, 2], racks)."""
    each = [_nuscenes_sample(Rolls("nuscenes", seed, sample)) for sample in range(samples)]
    truth, found, ego, racks = map(list, zip(*each, strict=True))
    return truth, found, np.array(ego), racks


def _nuscenes_sample(roll):
    n, names = 24, np.array([*RANGES])
    ego = roll.uniform(500, 1500, 3)
    truth = {
        "name": names[roll.pick(n, 9)],  # there is no barrier
        "xyz": ego + np.stack([roll.uniform(*r, n) for r in ((-45, 45), (-45, 45), (-1, 1))], 1),
        "lwh": roll.uniform(0.4, 5, n, 3),
        "yaw": roll.uniform(-3.1, 3.1, n),
        "velocity": roll.uniform(-5, 5, n, 2),
        "attribute": np.array(ATTRIBUTES)[roll.pick(n, 3)],
        "points": roll.pick(n, 8),
    }
    if roll.chance(0.5, 1)[0]:
        truth["name"][:2] = "barrier"
    truth["velocity"][roll.chance(0.2, n)] = np.nan
    of = np.concatenate([np.flatnonzero(roll.chance(0.95, n)), roll.pick(2 * n, n)])
    k = len(of)
    found = rows({key: truth[key] for key in truth if key != "points"}, of)
    other = roll.chance(0.1, k)
    found["name"][other] = names[roll.pick(k, 10)][other]
    found["xyz"] = found["xyz"] + roll.uniform(-1, 1, k, 3) * roll.uniform(0, 1, k, 1) ** 2 * 4
    found["lwh"] = found["lwh"] * roll.uniform(0.7, 1.3, k, 3)
    found["yaw"] = found["yaw"] + roll.uniform(-0.5, 0.5, k) + np.pi * roll.chance(0.2, k)
    found["velocity"] = found["velocity"] + roll.uniform(-1, 1, k, 2)
    found["velocity"][roll.chance(0.05, k)] = np.nan
    found["attribute"] = np.where(roll.chance(0.3, k), "vehicle.parked", found["attribute"])
    score = roll.uniform(0, 1, k)
    found["score"] = np.where(roll.chance(0.5, k), np.round(score, 1), score)
    on = roll.pick(1, n)
    rack = {"xyz": truth["xyz"][on], "lwh": roll.uniform(2, 30, 1, 3)}
    return truth, found, ego[:2], {**rack, "yaw": truth["yaw"][on] + 0.7}


def lidar_scenes(seed: int, scenes: int):
    """(truth, found) of labels 0 to 2."""
    both = [_lidar_scene(Rolls("lidar", seed, scene)) for scene in range(scenes)]
    return [truth for truth, _ in both], [found for _, found in both]


def _lidar_scene(roll):
    n = 4 + int(roll.pick(1, 10)[0])
    labels = roll.pick(n, 3)
    size = np.array([(3.9, 1.6, 1.5), (0.8, 0.6, 1.75), (1.8, 0.6, 1.7)])[labels]
    place = np.stack([roll.uniform(*r, n) for r in ((-45, 45), (-45, 45), (-1, 1))], 1)
    boxes = np.concatenate([place, size, roll.uniform(-3.1, 3.1, n, 1)], 1)
    truth = {"boxes": boxes, "labels": labels, "points": roll.pick(n, 20)}
    of = np.concatenate([np.arange(n), roll.pick(n, n)])
    k = len(of)
    noise = roll.uniform(-1, 1, k, 7) * np.where(roll.chance(0.4, k), 0.3, 0.05)[:, None]
    near = boxes[of] + noise * [1, 1, 0.5, 0.5, 0.3, 0.3, 1]
    near[:, 6] += np.pi * roll.chance(0.2, k)
    score = roll.uniform(0, 1, k)
    found = {
        "boxes": near,
        "labels": np.where(roll.chance(0.1, k), 0, labels[of]),
        "scores": np.where(roll.chance(0.5, k), np.round(score, 1), score),
    }
    return truth, found
