# SPDX-License-Identifier: Apache-2.0
"""Streets in motion: a sensor that drives along its lane, among objects of which some move.

Cars and cyclists go on arcs (bicycle models of constant speed and steering), pedestrians and the
ego straight, and reach their places of `place` at the end of a sequence. Objects that meet the ego
or an earlier object are dropped. A rolling shutter casts each column of rays at its own time;
within a turn objects go straight and keep their heading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchvox.data.counter_random import Draws
from torchvox.data.portable_math import sin_cos, sqrt
from torchvox.data.worlds.street import placement
from torchvox.data.worlds.street.cast import Returns, cast
from torchvox.data.worlds.street.objects import CAR, CYCLIST, PEDESTRIAN
from torchvox.data.worlds.street.placement import Motion, Objects, ground, phases, place
from torchvox.data.worlds.street.sensors import View

PERIOD = 0.1  # seconds per turn of the sensor
MOVING = 0.6  # share of the cars, pedestrians and cyclists
# Lowest and highest speed in m/s, strongest bend of the path in 1/m, by label.
MOVES = {CAR: (3.0, 12.0, 0.01), CYCLIST: (2.0, 6.0, 0.03), PEDESTRIAN: (0.6, 1.8, 0.0)}
EGO_MOVES, EGO_SIZE = (0.0, 12.0, 0.0), (4.5, 1.9)  # length and width in meters
# Objects, returns, and where the world moves velocities x and y, instances [B, O], poses [B, 3, 4].
Seen: TypeAlias = tuple[Objects, Returns, Sequence[Tensor]]


class Traffic(NamedTuple):
    """The ego, first, and O objects [B, 1 + O] float64. x, y, heading: at the end of a sequence, in
    the sensor's frame then; speed in m/s; turning per second. Angles are parts of a turn."""

    x: Tensor
    y: Tensor
    heading: Tensor
    length: Tensor
    width: Tensor
    speed: Tensor
    turning: Tensor

    def at(self, seconds: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """x, y and heading, `seconds` (a number or [B, 1]) after the end."""
        half = self.turning * seconds * 0.5
        arc, (sine, cosine) = half * math.tau, sin_cos(self.heading + half)
        way = self.speed * seconds * torch.where(arc == 0, 1.0, sin_cos(half)[0] / arc)
        return self.x + way * cosine, self.y + way * sine, self.heading + half * 2.0


def drive(draws: Draws, reach: float, view: View, turns: int) -> tuple[Objects, Traffic]:
    """Objects of scenes at the end of a sequence, and their motion until then."""
    objects = place(draws, reach, view.slope, view.sensor.height, road_yaw=0.0)
    moves = [EGO_MOVES, *(MOVES.get(kind.label, (0.0, 0.0, 0.0)) for kind in objects.kinds)]
    slow, fast, bend = torch.tensor(moves, dtype=torch.float64, device=draws.device).unbind(1)
    u = draws.uniform("motion", len(moves) * 3).unflatten(1, (-1, 3))
    u[:, 0, 0] = 0.0  # the ego always moves
    speed = torch.where(u[..., 0] < MOVING, slow + (fast - slow) * u[..., 1], 0.0)
    turning = (u[..., 2] * 2.0 - 1.0) * bend * speed * (1 / math.tau)
    heading = objects.yaw.to(torch.float64) * (1 / math.tau)
    fields = (objects.x, objects.y, heading, objects.length, objects.width)
    mine = zip(fields, (0.0, 0.0, 0.0, *EGO_SIZE), strict=True)
    columns = [pad(v.to(torch.float64), (1, 0), value=ego) for v, ego in mine]
    traffic = Traffic._make([*columns, speed, turning])
    kept = placement.keep(_meets(traffic, turns), pad(objects.kept, (1, 0), value=True))[:, 1:]
    return objects._replace(kept=kept), traffic


def _meets(traffic: Traffic, turns: int) -> Tensor:
    """[B, 1 + O, 1 + O]: at some turn the circle of each meets the rectangle of the other."""
    length, width = traffic.length[..., None] * 0.5, traffic.width[..., None] * 0.5
    radius = sqrt(length * length + width * width) + placement.MARGIN
    meets = torch.zeros_like(radius.mT * radius, dtype=torch.bool)
    for turn in range(turns):
        x, y, heading = (v[..., None] for v in traffic.at(-turn * PERIOD))
        sine, cosine = sin_cos(heading)
        x, y = x.mT - x, y.mT - y
        ahead = ((x * cosine + y * sine).abs() - length).clamp(min=0.0)
        aside = ((y * cosine - x * sine).abs() - width).clamp(min=0.0)
        near = ahead * ahead + aside * aside < (radius * radius).mT
        meets |= near & near.mT
    return meets


def watch(
    key: tuple[int, str, Tensor], reach: float, view: View, counts: tuple[int, int], rolling: bool
) -> Seen:
    """The sweeps of B frames, the last first, objects and hits as of it. key: seed, split, numbers
    [B] of the frames. counts: frames of a sequence, sweeps. All frames see the same in a turn."""
    (seed, split, samples), (frames, sweeps) = key, counts
    turns = frames + sweeps - 1
    draws = Draws(seed, split, samples // frames)
    objects, traffic = drive(draws, reach, view, turns)
    scans: list[Returns] = []
    for turn in (samples % frames + number for number in range(sweeps)):
        seconds = (turn - (turns - 1)).to(torch.float64)[:, None] * PERIOD
        now, velocity, motion = _seen(draws, objects, traffic, seconds, view, rolling)
        own = Draws(seed, f"{split} turns", draws.samples * turns + turn)
        scans.insert(0, cast(now, view, own, motion))
    xyz, intensity, owner, returned = (torch.cat(v, 1) for v in list(zip(*scans, strict=True))[:4])
    xyz[..., 0] -= motion.start
    scan = Returns(xyz, intensity, owner, returned, scans[0].hits, scans[0].alone)
    pose = torch.eye(3, 4, dtype=torch.float64, device=xyz.device).repeat(len(samples), 1, 1)
    pose[:, 0, 3] = motion.start[:, 0]
    column = torch.arange(now.x.shape[1], device=xyz.device)
    instance = draws.samples[:, None] * len(column) + column
    return now, scan, [*velocity, instance, pose]


def _seen(
    draws: Draws, objects: Objects, traffic: Traffic, seconds: Tensor, view: View, rolling: bool
) -> tuple[Objects, tuple[Tensor, Tensor], Motion]:
    """Objects in the sensor's frame, `seconds` [B, 1] after the end, and their velocities."""
    x, y, heading = traffic.at(seconds)
    start, way = (v[:, :1].to(torch.float32) for v in (x, traffic.speed * PERIOD))
    base = ground(x, y, phases(draws)) - view.sensor.height
    sine, cosine = sin_cos(heading)
    yaw = (heading - torch.floor(heading + 0.5)) * math.tau
    places = (x - x[:, :1], y, base, yaw, cosine, sine)
    velocities = traffic.speed * cosine, traffic.speed * sine
    x, y, z, yaw, cosine, sine, vx, vy = (v[:, 1:].to(torch.float32) for v in places + velocities)
    now = objects._replace(x=x, y=y, z=z, yaw=yaw, cosine=cosine, sine=sine)
    in_turn = (way, vx * PERIOD - way, vy * PERIOD)
    return now, (vx, vy), Motion(draws, start, *(v * float(rolling) for v in in_turn))
