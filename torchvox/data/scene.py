# SPDX-License-Identifier: Apache-2.0
"""A generated crossroads: what stands where, drawn from a seed. raycast.py casts the rays.

Four arms leave the junction. Each is furnished in its own frame, u meters outward from the junction
and v meters to the left, and then turned into the world: x along the sensor's street, y to its
left, z up, the ground at z = 0 and the sensor above the origin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torchvox.data.raycast import Box, Cylinder, Ellipsoid, Lidar, Primitive, cast_rays
from torchvox.io.cloud import PointCloud

COLUMNS = ("x", "y", "z", "intensity")

JUNCTION = np.array([9.0, 2.4])  # its center in the world: the sensor waits in the right lane
ARMS = np.deg2rad([0.0, 90.0, 180.0, 270.0])  # headings of the arms
PARK = 0  # the quarter to the left of this arm is a park, the others are built up
KERB, FRONT = 8.4, 12.6  # from the middle of the street to the kerb, and to the house fronts
REACH = 100.0

SIGN = 1.0  # reflectance from which a surface is retro-reflecting
ASPHALT, PAVING, STEEL, BARK, CLOTHES, LAWN = 0.15, 0.28, 0.40, 0.22, 0.35, 0.42
LEAVES = {"reflectance": 0.45, "porosity": 0.45, "roughness": 0.45}
GLASS = {"reflectance": 0.08, "porosity": 0.55}


@dataclass(frozen=True)
class Vehicle(Box):
    """The body of a car, van or bus; `top`: z of the highest part of the vehicle."""

    top: float = 0.0


def generate_scan(seed: int = 0, azimuths: int = 1750) -> PointCloud:
    """Scan a crossroads with a 64-beam spinning lidar: rings, shadows, noise and drop-outs.

    seed: chooses scene and noise; equal seeds give equal clouds on one machine and NumPy version.
    azimuths: firings per turn; the default gives about 100 thousand points.
    Returns columns x, y, z (meters, sensor frame: x forward, y left, z up, the road about 1.73 m
    below) and intensity (0..1), in firing order.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    points = cast_rays(crossroads(rng), Lidar(azimuths), ground_reflectance, rng)
    return PointCloud(points, COLUMNS)


def crossroads(rng: np.random.Generator) -> list[Primitive]:
    """Everything that stands on the ground, in world coordinates."""
    world: list[Primitive] = []
    for number, heading in enumerate(ARMS):
        arm = _traffic(rng)
        for side in (-1, 1):
            open_side = (number, side) in ((PARK, 1), ((PARK + 1) % len(ARMS), -1))
            arm += _kerbside(rng, side)
            arm += [] if open_side else _houses(rng, side)
        if number == PARK:
            arm += _park(rng)
        world += [moved(thing, heading, *JUNCTION) for thing in arm]
    return world


def ground_reflectance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Reflectance of the ground at world x, y [...]: asphalt with painted markings."""
    painted = np.zeros(np.shape(x), bool)
    for heading in ARMS:
        c, s = np.cos(heading), np.sin(heading)
        dx, dy = x - JUNCTION[0], y - JUNCTION[1]
        u, v = c * dx + s * dy, c * dy - s * dx
        center = (np.abs(v) < 0.11) & (np.mod(u, 6.0) < 3.0) & (u > 20)
        edge = (np.abs(np.abs(v) - 5.6) < 0.11) & (u > 17.5)
        stop = (np.abs(u - 17.2) < 0.25) & (v > 0) & (v < 5.6)
        zebra = (np.abs(u - 14.4) < 1.6) & (np.mod(v, 1.2) < 0.6)
        painted |= (center | edge | stop | zebra) & (np.abs(v) < KERB - 0.4)
    worn = ASPHALT + 0.03 * np.sin(0.9 * x + 0.4) * np.sin(0.7 * y)
    return np.where(painted, 0.72, worn)


def moved(thing: Primitive, heading: float, x: float, y: float) -> Primitive:
    """A thing of a frame at (x, y) with this heading, as the frame around it sees it."""
    c, s = np.cos(heading), np.sin(heading)
    at = {"x": c * thing.x - s * thing.y + x, "y": s * thing.x + c * thing.y + y}
    if isinstance(thing, Box):
        return replace(thing, heading=thing.heading + heading, **at)
    return replace(thing, **at)


def _kerbside(rng: np.random.Generator, side: int) -> list[Primitive]:
    """The pavement, 14 cm high, with what stands on it and along it."""
    middle, half = side * (KERB + FRONT + 4) / 2, (FRONT + 4 - KERB) / 2
    length = (REACH - KERB) / 2
    things: list[Primitive] = [
        Box(KERB + length, middle, 0, length, half, 0.14, reflectance=PAVING)
    ]
    edge = side * (KERB + 0.7)
    for i, u in enumerate(np.arange(13.5, REACH, 10.5)):
        u += rng.uniform(-1, 1)
        if i % 3 == 0:
            things += _lamp(u, edge, side)
        elif rng.random() < 0.75:
            things += _tree(rng, u, edge + side * 0.4)
        else:
            things += _sign(u, edge)
    for u in np.arange(19.0, 78.0, 6.3):
        if rng.random() < 0.45:
            v = side * (KERB - 1.3 + rng.uniform(-0.12, 0.12))
            heading = (np.pi if side > 0 else 0) + rng.normal(0, 0.02)
            things += car(rng, u + rng.uniform(-0.5, 0.5), v, heading, van=rng.random() < 0.12)
    for u in rng.uniform(13, 55, 7):
        things.append(_pedestrian(rng, u, side * rng.uniform(KERB + 1.3, FRONT - 0.4)))
    return things


def _houses(rng: np.random.Generator, side: int) -> list[Primitive]:
    """A row of houses with bays, some set back, and gardens behind walls between them."""
    things: list[Primitive] = []
    u = FRONT + 0.3
    while u < REACH - 6:
        half, depth, height = rng.uniform(4.5, 9.5), rng.uniform(5, 8), rng.uniform(6, 17)
        front = FRONT + rng.choice([0.2, 0.2, 0.9, 3.6])
        wall = rng.uniform(0.25, 0.6)
        if rng.random() < 0.72 or u < 20:
            things.append(
                Box(u + half, side * (front + depth), 0, half, depth, height, reflectance=wall)
            )
            things += [
                Box(u + offset, side * front, rng.uniform(0, 2.5), 1.0, 0.5, 2.6, reflectance=0.5)
                for offset in np.arange(2.5, 2 * half - 2, 5.0)
                if rng.random() < 0.6
            ]
        else:
            fence = side * (FRONT + 0.3)
            things.append(Box(u + half, fence, 0, half, 0.12, 1.2, reflectance=wall))
            things += _tree(rng, u + half, side * (FRONT + rng.uniform(4, 9)))
        u += 2 * half + rng.choice([0.0, 0.0, 3.0])
    return things


def _park(rng: np.random.Generator) -> list[Primitive]:
    """A lawn with trees, hedges and benches in the quarter to the left of the arm."""
    start, size = FRONT + 4, 60.0
    center = start + size / 2
    things: list[Primitive] = [Box(center, center, 0, size / 2, size / 2, 0.12, reflectance=LAWN)]
    for u, v in rng.uniform(start + 2, start + size, (34, 2)):
        things += _tree(rng, u, v)
    for u, v in rng.uniform(start + 1, start + 30, (9, 2)):
        things.append(Box(u, v, 0.12, 0.9, 0.25, 0.75, rng.uniform(0, np.pi), reflectance=BARK))
    for offset in np.arange(start + 6, start + 46, 13.0):
        things.append(Box(offset, start, 0, 3.2, 0.35, 0.7, **LEAVES))
        things.append(Box(start, offset, 0, 0.35, 3.2, 0.7, **LEAVES))
    return things


def _traffic(rng: np.random.Generator) -> list[Primitive]:
    """Cars leaving on the right, cars arriving on the left, one of them a bus now and then."""
    things: list[Primitive] = []
    for v, heading in ((-2.5, 0.0), (2.5, np.pi)):
        u = 23.0 + rng.uniform(0, 10)
        while u < 80:
            if rng.random() < 0.12:
                bus = (u + 3, v, 0.3, 5.8, 1.27, 2.8, heading)
                things.append(Vehicle(*bus, reflectance=0.5, top=3.1))
                u += 8
            else:
                turn = heading + rng.normal(0, 0.03)
                things += car(rng, u, v + rng.normal(0, 0.15), turn, van=rng.random() < 0.1)
            u += rng.uniform(9, 26)
    return things


def car(rng: np.random.Generator, u: float, v: float, heading: float, van: bool) -> list[Primitive]:
    """A body, a glass cabin under a roof, and a retro-reflecting plate at each end."""
    length, width = rng.uniform(1.95, 2.35), rng.uniform(0.84, 0.93)  # half of each
    paint = rng.uniform(0.10, 0.65)
    forward = np.array([np.cos(heading), np.sin(heading)])
    things: list[Primitive]
    if van:
        body = (u, v, 0.25, length + 0.5, width + 0.1, 1.95, heading)
        things = [Vehicle(*body, reflectance=paint, top=2.2)]
        length += 0.5
    else:
        cu, cv = (u, v) - 0.25 * forward
        half, narrow = 0.5 * length, 0.88 * width
        things = [
            Vehicle(u, v, 0.22, length, width, 0.68, heading, reflectance=paint, top=1.5),
            Box(cu, cv, 0.90, half, narrow, 0.55, heading, **GLASS),
            Box(cu, cv, 1.45, 0.8 * half, narrow, 0.05, heading, reflectance=paint),
        ]
    for end in (-1, 1):
        pu, pv = (u, v) + end * (length + 0.02) * forward
        things.append(Box(pu, pv, 0.45, 0.01, 0.26, 0.12, heading, reflectance=SIGN))
    return things


def _tree(rng: np.random.Generator, u: float, v: float) -> list[Primitive]:
    crown, trunk = rng.uniform(1.2, 2.2), rng.uniform(1.8, 3.0)
    return [
        Cylinder(u, v, 0, rng.uniform(0.12, 0.24), trunk + crown, reflectance=BARK),
        Ellipsoid(u, v, trunk + crown, crown, 1.15 * crown, **LEAVES),
    ]


def _lamp(u: float, v: float, side: int) -> list[Primitive]:
    return [
        Cylinder(u, v, 0, 0.10, 6.0, reflectance=STEEL),
        Box(u, v - side * 0.8, 5.8, 0.15, 0.9, 0.2, reflectance=STEEL),
    ]


def _sign(u: float, v: float) -> list[Primitive]:
    return [
        Cylinder(u, v, 0, 0.04, 2.1, reflectance=STEEL),
        Box(u, v, 2.1, 0.03, 0.32, 0.64, reflectance=SIGN),
    ]


def _pedestrian(rng: np.random.Generator, u: float, v: float) -> Primitive:
    return Cylinder(u, v, 0.14, 0.22, rng.uniform(1.45, 1.8), reflectance=CLOTHES)
