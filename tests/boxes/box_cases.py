# SPDX-License-Identifier: Apache-2.0
"""Boxes for the tests, and what overlaps should be: polygons clipped in float64."""

import cmath
import json
import math

import numpy as np
import pytest
import torch
from helpers import DATA, real_scan
from torch import Tensor


def box(x=0.0, y=0.0, l=4.0, w=2.0, yaw=0.0, z=0.0, h=1.5) -> list[float]:  # noqa: E741
    return [x, y, z, l, w, h, yaw]


def random_pairs(
    n: int, seed: int, scale: float = 2.0, sizes=(0.3, 5.0), offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """[n, 7] float32 each: boxes that mostly overlap."""
    rng = np.random.default_rng(seed)
    a = rng.normal(0, scale, (n, 7))
    b = a + rng.normal(0, 0.3 * scale, (n, 7))
    for boxes in (a, b):
        boxes[:, 3:6] = np.exp(rng.uniform(*np.log(sizes), (n, 3)))
        boxes[:, 6] = rng.uniform(-7, 7, n)
        boxes[:, :2] += offset
    return torch.from_numpy(a.astype(np.float32)), torch.from_numpy(b.astype(np.float32))


def exact_iou(a: Tensor, b: Tensor, volume: bool = False) -> np.ndarray:
    """[n] float64, of pairs."""
    pairs = zip(a.double().tolist(), b.double().tolist(), strict=True)
    return np.array([_iou(p, q, volume) for p, q in pairs])


def _iou(a: list[float], b: list[float], volume: bool) -> float:
    # float64 loses nothing in these differences, at the origin or far away
    near = [b[0] - a[0], b[1] - a[1], *b[2:]]
    shared = _shared_area(_corners([0.0, 0.0, *a[2:]]), _corners(near))
    size_a, size_b = a[3] * a[4], b[3] * b[4]
    if volume:
        top = min(a[2] + a[5] / 2, b[2] + b[5] / 2)
        shared *= max(0.0, top - max(a[2] - a[5] / 2, b[2] - b[5] / 2))
        size_a, size_b = size_a * a[5], size_b * b[5]
    return shared / (size_a + size_b - shared)


def _corners(b: list[float]) -> list[complex]:
    """Counterclockwise, as x + iy."""
    halves = [complex(i * b[3], j * b[4]) / 2 for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    return [complex(b[0], b[1]) + half * cmath.rect(1, b[6]) for half in halves]


def _cross(u: complex, v: complex) -> float:
    return u.real * v.imag - u.imag * v.real


def _shared_area(polygon: list[complex], window: list[complex]) -> float:
    """Sutherland and Hodgman 1974."""
    for begin, end in zip(window, window[1:] + window[:1], strict=True):
        sides = [_cross(end - begin, p - begin) for p in polygon]
        clipped = []
        for i, (p, side) in enumerate(zip(polygon, sides, strict=True)):
            q, other = polygon[(i + 1) % len(polygon)], sides[(i + 1) % len(polygon)]
            if side >= 0:
                clipped.append(p)
            if (side >= 0) != (other >= 0):
                clipped.append(p + side / (side - other) * (q - p))
        polygon = clipped
    return sum(_cross(p, q) for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True)) / 2


def kitti_cars() -> tuple[Tensor, Tensor]:
    """Points [N, 4] and cars [6, 7] float64 of KITTI 000008, moved to the LiDAR frame."""
    path = DATA / "lidar/kitti_000008.labels.json"
    if not path.exists():
        pytest.skip(f"no {path}: set TORCHVOX_DATA to the folder of real scans")
    labels = json.loads(path.read_text())
    to_lidar = np.linalg.inv(np.array(labels["lidar2cam"]))
    cars = []
    for label in labels["objects"]:
        if label["type"] != "Car":
            continue
        x, y, z, l, h, w, ry = label["box3d_cam"]  # noqa: E741
        bottom = to_lidar @ np.array([x, y, z, 1])
        cars.append([*bottom[:2], bottom[2] + h / 2, l, w, h, -ry - math.pi / 2])
    return real_scan("lidar/kitti_000008.bin", 4), torch.tensor(cars, dtype=torch.float64)
