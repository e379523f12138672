# SPDX-License-Identifier: Apache-2.0
"""A drive along a generated street: scans of a sensor that moves and turns.

The sensor keeps its lane, turns right behind another car and stops in the side street; a third car
comes the other way, straight on. Objects in the way of these three are dropped.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device
from torchvox.data.portable_math import sin_cos
from torchvox.data.worlds.street.cast import cast
from torchvox.data.worlds.street.objects import CAR, PEDESTRIAN, ROUND, Cylinder, Kind, Parts
from torchvox.data.worlds.street.placement import Motion, Objects, ground, phases, place
from torchvox.data.worlds.street.sensors import SENSORS, View
from torchvox.io.cloud import PointCloud

COLUMNS = ("x", "y", "z", "intensity")
REACH = 70.0  # meters that objects stand away at most
START, CURVE, LENGTH = -5.0, 6.5, 15.2  # first x, radius of the turn, way until the stop: meters
AHEAD = 7.0  # meters along the way from the sensor to the car that it follows
ONCOMING_FROM, ONCOMING_TO, ONCOMING_Y = 27.0, -6.0, 3.5
CLEAR = 1.9  # meters that stay free on either side of the way of the sensor and both cars
MARGIN = 0.1  # boxes are larger than their cars on every side, more than the noise of ranges
UNDERSIDE = 0.18  # meters from the ground to the lowest part of a car
# Where walkers walk to and fro: x, y, and the heading as steps along x and y; STROLL meters long.
WALKS = ((4.0, 7.0, 1, 0), (22.0, 6.5, -1, 0), (-4.0, -4.5, -1, 0), (14.0, 1.0, 0, -1),
         (17.0, -4.0, 1, 0))  # fmt: skip
STROLL, PACE = 8.0, 0.35  # meters; meters for each of the sensor
Place = tuple[float, float, float]  # x, y and heading, a part of a turn


def _walker(_: Tensor, wide: Tensor, tall: Tensor, clothes: Tensor) -> Parts:
    return [(Cylinder(0.0, 0.0, UNDERSIDE, tall, wide * 0.5), clothes)]


WALKER = Kind(PEDESTRIAN, _walker, 0, 0, ROUND, ROUND, ROUND)  # whose sizes are not drawn


class DriveScan(NamedTuple):
    """points: [N, 4] float32; pose: [3, 4] float64; boxes: [K, 7] float64, see generate_drive."""

    points: Tensor
    pose: Tensor
    boxes: Tensor


def generate_scan(seed: int = 0, azimuths: int = 1750) -> PointCloud:
    """The first scan of `generate_drive`: rings, shadows, noise and drop-outs.

    seed: chooses street and noise. azimuths: firings per turn; the default gives about 100 thousand
    points. Returns columns x, y, z (meters, sensor frame: x forward, y left, z up, the road about
    1.73 m below) and intensity (0..1), in firing order.
    """
    return PointCloud(generate_drive(seed, 1, azimuths=azimuths)[0].points.numpy(), COLUMNS)


def generate_drive(
    seed: int = 0,
    scans: int = 10,
    *,
    azimuths: int = 1750,
    step: float = 0.4,
    walkers: int = 0,
    device: Device = "cpu",
) -> list[DriveScan]:
    """Scans of a street by a 64-beam lidar that drives, turns right, and stops.

    seed: chooses street and noise; a scan has the same bits on any device, however many follow.
    azimuths: firings of a turn, which takes no time. step: meters from scan to scan until the stop,
        15.2 m on; half as far as the oncoming car gets in that time.
    walkers: people, upright cylinders that walk to and fro, 5 at most; the street of 0 has more
        objects, since none stands in their way.

    Returns for each scan its points [N, 4] float32 (x, y, z in meters in the sensor's frame,
    intensity 0..1), pose [3, 4] float64 (sensor to world), and boxes [K, 7] float64 of the
    vehicles at that time in the world, x, y, z of the center, l, w, h, yaw, each vehicle in the
    same row throughout: the car ahead, the oncoming one, then the parked ones, then walkers. Boxes
    have a margin of 0.1 m and end above the road.
    """
    if not 0 <= walkers <= len(WALKS):
        raise ValueError(f"generate_drive: walkers must be from 0 to {len(WALKS)}, got {walkers}")
    view = View(replace(SENSORS["hdl64"], columns=azimuths), "full")
    street = Draws(seed, "drive", torch.zeros(1, dtype=torch.int64, device=device))
    objects = place(street, REACH, None, view.sensor.height, road_yaw=0.0)
    objects = objects._replace(kept=objects.kept & _beside_the_way(objects, walkers))
    objects.kept[:, :2] = True  # the two cars that move
    vehicle = torch.tensor([kind.label == CAR for kind in objects.kinds], device=device)
    rows = (objects.kept[0] & vehicle).nonzero()[:, 0]
    people = torch.arange(walkers, device=device) + len(objects.kinds)
    rows = torch.cat([rows, people])
    drive = []
    for i in range(scans):
        way = min(i * step, LENGTH)
        oncoming = max(ONCOMING_FROM - 2 * step * i, ONCOMING_TO)
        cars = _on_way(way + AHEAD), (oncoming, ONCOMING_Y, 0.5)
        now = _with_cars(objects, cars, street, view)
        now = _with_walkers(now, PACE * step * i, walkers, street, view)
        number = torch.full((1,), i, device=device)
        points, pose = _scan(now, _on_way(way), view, Draws(seed, "drive scans", number), street)
        drive.append(DriveScan(points, pose, _boxes(now.at((rows * 0, rows)), view)))
    return drive


def _on_way(way: float) -> Place:
    """The place `way` meters on: straight, a quarter of a circle to the right, straight."""
    if way < -START:
        return START + way, 0.0, 0.0
    angle = min((way + START) / CURVE, math.pi / 2)
    rest = max(way + START - CURVE * math.pi / 2, 0.0)
    x, y = CURVE * math.sin(angle), CURVE * (math.cos(angle) - 1) - rest
    return x, y, -angle / math.tau


def _beside_the_way(objects: Objects, walkers: int) -> Tensor:
    """[1, O]: neither the sensor nor one of the two cars nor a walker comes near the object."""
    way = [_on_way(0.5 * i)[:2] for i in range(math.ceil(2 * (LENGTH + AHEAD + 3)))]
    way += [(x, ONCOMING_Y) for x in range(int(ONCOMING_TO) - 3, int(ONCOMING_FROM) + 4)]
    way += [
        (x + i * a, y + i * b) for x, y, a, b in WALKS[:walkers] for i in range(int(STROLL) + 1)
    ]
    x, y = torch.tensor(way, device=objects.x.device).T[..., None]
    x, y = x - objects.x, y - objects.y
    width = torch.where(objects.width == 0, objects.length, objects.width)  # of round ones
    ahead = (x * objects.cosine + y * objects.sine).abs() - objects.length * 0.5
    aside = (y * objects.cosine - x * objects.sine).abs() - width * 0.5
    return (torch.maximum(ahead, aside) > CLEAR).all(0, keepdim=True)


def _with_cars(objects: Objects, cars: tuple[Place, Place], street: Draws, view: View) -> Objects:
    """The objects in the world, of which the first two have moved to the places."""
    places = torch.tensor(cars, dtype=torch.float64, device=street.device)
    own = zip(places[None].unbind(2), (objects.x, objects.y), strict=False)
    x, y = (torch.cat([place, v[:, 2:].double()], 1) for place, v in own)
    z = (ground(x, y, phases(street)) - view.sensor.height).float()
    sine, cosine = sin_cos(places[None, :, 2])
    moved = {"yaw": places[None, :, 2] * math.tau, "cosine": cosine, "sine": sine}
    columns = {k: torch.cat([v.float(), getattr(objects, k)[:, 2:]], 1) for k, v in moved.items()}
    return objects._replace(x=x.float(), y=y.float(), z=z, **columns)


def _with_walkers(objects: Objects, way: float, walkers: int, street: Draws, view: View) -> Objects:
    """The objects and the people behind them, who have gone `way` meters."""
    if walkers == 0:
        return objects
    like = {"dtype": torch.float64, "device": street.device}
    x, y, ahead, aside = torch.tensor(WALKS[:walkers], **like).T
    turn = (street.uniform("walkers", walkers)[0] * (2 * STROLL) + way) % (2 * STROLL)
    along = STROLL - (STROLL - turn).abs()
    x, y = (x + along * ahead)[None], (y + along * aside)[None]
    height = 1.6 + 0.3 * street.uniform("heights of walkers", walkers)
    z, one = ground(x, y, phases(street)) - view.sensor.height, torch.ones_like(x)
    own = x, y, z, one * 0.5, one * 0.5, height, one * 0, one, one * 0, one * 0.4
    columns = [
        torch.cat(pair, 1) for pair in zip(objects[1:-1], (v.float() for v in own), strict=True)
    ]
    kept = torch.cat([objects.kept, one > 0], 1)
    return Objects._make([objects.kinds + (WALKER,) * walkers, *columns, kept])


def _scan(
    world: Objects, where: Place, view: View, draws: Draws, street: Draws
) -> tuple[Tensor, Tensor]:
    """What a sensor above a place sees, and its pose [3, 4]."""
    place = torch.tensor(where, dtype=torch.float64, device=draws.device)
    sine, cosine = sin_cos(place[2])
    x, y = world.x - place[0].float(), world.y - place[1].float()
    c, s = cosine.float(), sine.float()
    turned = world.cosine * c + world.sine * s, world.sine * c - world.cosine * s
    seen = world._replace(x=x * c + y * s, y=y * c - x * s, cosine=turned[0], sine=turned[1])
    zero = torch.zeros_like(world.x)
    frame = place[0].float(), place[1].float(), c, s
    scan = cast(seen, view, draws, Motion(street, zero[:, :1], zero[:, :1], zero, zero, frame))
    points = torch.cat([scan.xyz, scan.intensity[..., None]], 2)[scan.returned]
    pose = torch.eye(3, 4, dtype=torch.float64, device=draws.device)
    pose[:2, :2] = torch.stack([cosine, -sine, sine, cosine]).view(2, 2)
    pose[:, 3] = torch.stack([place[0], place[1], torch.full_like(place[0], view.sensor.height)])
    return points, pose


def _boxes(cars: Objects, view: View) -> Tensor:
    """[K, 7] float64 in the world."""
    low, high = UNDERSIDE - MARGIN, cars.height + MARGIN
    z = cars.z + view.sensor.height + (low + high) * 0.5
    sizes = cars.length + 2 * MARGIN, cars.width + 2 * MARGIN, high - low
    return torch.stack([cars.x, cars.y, z, *sizes, cars.yaw], 1).double()
