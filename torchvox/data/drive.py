# SPDX-License-Identifier: Apache-2.0
"""A drive through the generated crossroads: scans from a sensor that moves and turns.

The sensor comes to the junction in its lane, turns right behind another car and stops in the side
street; a third car comes the other way, straight on. raycast.py scans from the origin alone, so
every scan sees the things moved by the inverse of its pose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox.data.raycast import SLOPE, Lidar, Primitive, cast_rays, tilt
from torchvox.data.scene import Vehicle, car, crossroads, ground_reflectance, moved

START, CURVE, LENGTH = -5.0, 6.5, 15.2  # first x, radius of the turn, way until the stop: meters
AHEAD = 7.0  # of the sensor, along its way: the car that it follows
ONCOMING_FROM, ONCOMING_TO, ONCOMING_Y = 27.0, -6.0, 4.9
MARGIN = 0.1  # boxes are larger than their cars on every side, more than the noise of ranges
Place = tuple[float, float, float]  # x, y, heading


class DriveScan(NamedTuple):
    points: Tensor
    pose: Tensor
    boxes: Tensor


def generate_drive(
    seed: int = 0, scans: int = 10, *, azimuths: int = 1750, step: float = 0.4
) -> list[DriveScan]:
    """Scans of a crossroads from a sensor that drives, turns right, and stops.

    seed: chooses scene and noise; equal seeds give equal clouds on one machine and NumPy version,
        and scan i does not depend on how many follow. azimuths: firings of a turn, which takes no
        time. step: meters from scan to scan until the stop, 15.2 m on; half as far as the
        oncoming car gets in that time.

    Returns for each scan its points [N, 4] float32 (x, y, z in meters in the sensor's frame,
    intensity 0..1), pose [3, 4] float64 (sensor to world), and boxes [K, 7] float64 of the
    vehicles at that time in the world, x, y, z of the center, l, w, h, yaw, each vehicle in the
    same row throughout: the car ahead, the oncoming one, then those that stand. Boxes have a
    margin of 0.1 m and end above the road.
    """
    world = np.random.Generator(np.random.PCG64(seed))
    things = crossroads(world)
    ahead, oncoming = (car(world, 0.0, 0.0, 0.0, van=False) for _ in range(2))
    lidar, drive = Lidar(azimuths), []
    for i in range(scans):
        way = min(i * step, LENGTH)
        x = max(ONCOMING_FROM - 2 * step * i, ONCOMING_TO)
        now = [*_at(ahead, _place(way + AHEAD)), *_at(oncoming, (x, ONCOMING_Y, np.pi)), *things]
        boxes = np.array([_box(thing) for thing in now if isinstance(thing, Vehicle)])
        pose, points = _scan(now, _place(way), lidar, np.random.PCG64([seed, i]))
        drive.append(DriveScan(*(torch.from_numpy(a) for a in (points, pose, boxes))))
    return drive


def _place(way: float) -> Place:
    """Straight on, a quarter of a circle to the right, straight on."""
    if way < -START:
        return START + way, 0.0, 0.0
    angle = min((way + START) / CURVE, np.pi / 2)
    rest = max(way + START - CURVE * np.pi / 2, 0.0)
    return CURVE * np.sin(angle), CURVE * (np.cos(angle) - 1) - rest, -angle


def _at(things: list[Primitive], place: Place) -> list[Primitive]:
    return [moved(thing, place[2], *place[:2]) for thing in things]


def _box(body: Vehicle) -> list[float]:
    low, high = body.z - MARGIN, body.top + MARGIN
    length, width = (2 * (half + MARGIN) for half in (body.half_x, body.half_y))
    return [body.x, body.y, (low + high) / 2, length, width, high - low, body.heading]


def _scan(
    things: list[Primitive], place: Place, lidar: Lidar, bits: np.random.PCG64
) -> tuple[np.ndarray, np.ndarray]:
    """Pose [3, 4] of a sensor above a place, and what it sees."""
    x, y, heading = place
    c, s = np.cos(heading), np.sin(heading)
    inverse = (-c * x - s * y, s * x - c * y, -heading)

    def ground(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        return ground_reflectance(c * u - s * v + x, s * u + c * v + y)

    points = cast_rays(_at(things, inverse), lidar, ground, np.random.Generator(bits))
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return np.column_stack([turn @ tilt(*SLOPE), (x, y, lidar.height)]), points
