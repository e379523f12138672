# SPDX-License-Identifier: Apache-2.0
"""KITTI's files of objects: calibration, labels, results. Boxes in the lidar's frame are x, y, z of
the center, l, w, h, yaw; in the camera's (x right, y down, z ahead) columns as of `evaluate` in
torchvox.evaluation.kitti."""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchvox._util.errors import CloudFileError, explained, short

Objects = dict[str, np.ndarray]
IMAGE = (1242, 375)  # pixels of a frame without an image
CALIBRATION = {"P2": (3, 4), "R0_rect": (3, 3), "Tr_velo_to_cam": (3, 4)}
COLUMNS: dict[str, Any] = {  # of the numbers of a line
    **{"truncated": 0, "occluded": 1, "alpha": 2, "box": slice(3, 7), "size": slice(7, 10)},
    **{"location": slice(10, 13), "ry": 13},
}
CORNERS = np.array(list(product((-0.5, 0.5), (-1.0, 0.0), (-0.5, 0.5))))  # of l, h, w
NEAREST = 0.01  # m: corners beside and behind the camera lie far off the image


class Camera(NamedTuple):
    """image: [3, 4], from the camera's frame to pixels times their depth. frame: [3, 4], from the
    lidar's frame to the camera's. float64. size: width and height of the image in pixels."""

    image: np.ndarray
    frame: np.ndarray
    size: tuple[int, int] = IMAGE

    def to_camera(self, xyz: np.ndarray) -> np.ndarray:
        return xyz @ self.frame[:, :3].T + self.frame[:, 3]

    def project(self, xyz: np.ndarray) -> np.ndarray:
        """u and v times the depth, and the depth, of places in the camera's frame."""
        return xyz @ self.image[:, :3].T + self.image[:, 3]

    def sees(self, xyz: np.ndarray) -> np.ndarray:
        """Which points [N, 3] of the lidar's frame fall into the image. [N] bool."""
        u, v, depth = self.project(self.to_camera(xyz)).T
        inside = (u >= 0) & (u < self.size[0] * depth) & (v >= 0) & (v < self.size[1] * depth)
        return inside & (depth >= self.image[2, 3])


def read_camera(training: Path, name: str) -> Camera:
    """P2, R0_rect and Tr_velo_to_cam of a frame, in any order, and the size of its PNG image, or
    IMAGE without one. Raises CloudFileError."""
    path, matrices = training / "calib" / f"{name}.txt", []
    with explained(path, "calibration"):
        lines = [line.partition(":") for line in path.read_text().splitlines()]
    rows = {key.strip(): numbers.split() for key, _, numbers in lines}
    for key, shape in CALIBRATION.items():
        if key not in rows:
            raise CloudFileError(f"{path} has no {key}")
        matrices.append(_numbers(rows[key], math.prod(shape), f"{path}: {key}").reshape(shape))
    camera = Camera(matrices[0], matrices[1] @ matrices[2])
    if not 0.9 < np.linalg.det(camera.frame[:, :3]) < 1.1:
        raise CloudFileError(f"{path}: R0_rect and Tr_velo_to_cam must be rotations")
    if not (path := training / "image_2" / f"{name}.png").exists():
        return camera
    with explained(path, "PNG image"), path.open("rb") as file:
        head = file.read(24)
        if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < 24:
            raise ValueError("bad signature")
        return camera._replace(size=struct.unpack(">II", head[16:]))


def read_objects(path: Path) -> Objects:
    """The labels of a frame, DontCare too. Raises CloudFileError."""
    names, rows = [], []
    with explained(path, "file of labels"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if words := line.split():
                names.append(words[0])
                rows.append(_numbers(words[1:], 14, f"{path} line {number}: {short(words[0])}"))
    table = np.array(rows).reshape(-1, 14)
    return {"name": np.array(names, str), **{key: table[:, at] for key, at in COLUMNS.items()}}


def _numbers(words: Sequence[str], count: int, place: str) -> np.ndarray:
    with contextlib.suppress(ValueError):
        values = np.array(words, np.float64)
        if len(values) == count and np.isfinite(values).all():
            return values
    rule = f"must have {count} finite numbers, got {short(' '.join(words))!r}"
    raise CloudFileError(f"{place} {rule}")


def objects_text(objects: Objects, decimals: int) -> str:
    """Lines of labels or, with a score, of results, which lack truncation and occlusion."""
    unknown, lines = np.full(len(objects["name"]), -1.0), []
    keys = [*COLUMNS, "score"] if "score" in objects else COLUMNS
    table = np.column_stack([objects.get(key, unknown) for key in keys])
    for name, row in zip(objects["name"], table, strict=True):
        numbers = " ".join(f"{value:.{decimals}f}" for value in row[2:])
        lines.append(f"{name} {row[0]:.2f} {row[1]:.0f} {numbers}\n")
    return "".join(lines)


def boxes_of(objects: Objects, camera: Camera) -> np.ndarray:
    """Boxes [n, 7] float64 in the lidar's frame."""
    (height, width, length), frame = objects["size"].T, camera.frame
    x, y, z = np.linalg.solve(frame[:, :3], objects["location"].T - frame[:, 3:])
    yaw = _wrapped(-objects["ry"] - math.pi / 2)
    return np.stack([x, y, z + height / 2, length, width, height, yaw], 1)


def objects_of(boxes: np.ndarray, names: np.ndarray, camera: Camera) -> Objects:
    """Columns of boxes [n, 7] in the lidar's frame, except truncated, occluded and score. Boxes in
    the image hold the projected corners, as far as they lie in it."""
    x, y, z, length, width, height, yaw = np.asarray(boxes, np.float64).T
    ry = _wrapped(-yaw - math.pi / 2)
    location = camera.to_camera(np.stack([x, y, z - height / 2], 1))
    along, up, across = np.stack([length, height, width])[:, :, None] * CORNERS.T[:, None]
    cos, sin = np.cos(ry)[:, None], np.sin(ry)[:, None]
    corners = np.stack([cos * along + sin * across, up, cos * across - sin * along], -1)
    pixels = camera.project(location[:, None] + corners)
    pixels = pixels[..., :2] / np.maximum(pixels[..., 2:], NEAREST)
    pixels = pixels.clip(0, np.array(camera.size) - 1)
    return {
        **{"name": names, "location": location, "size": np.stack([height, width, length], 1)},
        **{"ry": ry, "alpha": _wrapped(ry - np.arctan2(-y, x))},
        "box": np.concatenate([pixels.min(1), pixels.max(1)], 1),
    }


def _wrapped(angle: np.ndarray) -> np.ndarray:
    """In -pi .. pi."""
    return angle - 2 * math.pi * np.floor(angle / (2 * math.pi) + 0.5)
