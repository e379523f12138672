# SPDX-License-Identifier: Apache-2.0
"""Where the objects of generated streets stand, for many scenes at once.

All candidates of all scenes are drawn together, in float64; an object is kept unless its circle
meets that of an earlier one, and a building unless it meets any of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchvox.data.counter_random import Draws
from torchvox.data.portable_math import sin_cos, sqrt
from torchvox.data.worlds.street.objects import ALBEDO, BUILDING, KINDS, Kind

NEAR, MARGIN = 3.0, 0.25  # meters around the sensor, and around every object, that stay free
SIDE = 0.55  # half the width of the world, as a share of its length
LANES, LANE, LANE_SHARE = 5, 3.5, 0.6
FREE_YAW = 0.35  # share of vehicles that do not follow the road
BUILDINGS = 10  # in front of the sensor, at most
WALLS = 0.25  # share of the buildings that are walls
FULL_TURN = 2 * math.pi


class Objects(NamedTuple):
    """Objects [B, O] of B scenes in the sensor's frame: place of the base's middle, size and yaw,
    float32. kept: objects that exist. kinds: the kind of each column."""

    kinds: tuple[Kind, ...]
    x: Tensor
    y: Tensor
    z: Tensor
    length: Tensor
    width: Tensor
    height: Tensor
    yaw: Tensor
    cosine: Tensor
    sine: Tensor
    albedo: Tensor
    kept: Tensor

    def at(self, index: slice | tuple[Tensor, Tensor]) -> Objects:
        """A part of the scenes, or objects [M] by scene and column."""
        return Objects(self.kinds, *(v[index] for v in self[1:]))


class Motion(NamedTuple):
    """scene: draws of what scans of a scene share: ground, beams, noise. start, advance [B, 1]: the
    sensor's x in its scene when it looks ahead, and how far it goes in a turn of 360 degrees. x, y
    [B, O]: how far objects go in that time, seen from the sensor. frame: x, y, cosine and sine of
    the sensor's frame over the ground, if that is another one. Meters, float32."""

    scene: Draws
    start: Tensor
    advance: Tensor
    x: Tensor
    y: Tensor
    frame: tuple[Tensor, ...] = ()


def ground(x: Tensor, y: Tensor, phase: Tensor) -> Tensor:
    """Height of the ground above its mean at places [B, ..] of any float type; phase [B, 2]."""
    first, second = (p.view(-1, *[1] * (x.dim() - 1)) for p in phase.unbind(1))
    along, _ = sin_cos(x * (0.07 / FULL_TURN) + first)
    _, across = sin_cos(y * (0.09 / FULL_TURN) + second)
    return along * across * 0.08


def phases(draws: Draws) -> Tensor:
    """[B, 2] float64, by which the grounds of scenes differ."""
    return draws.uniform("ground", 2)


def place(
    draws: Draws, reach: float, slope: float | None, sensor_height: float, road_yaw: float = 0.15
) -> Objects:
    """Objects of the draws' scenes.

    reach: meters ahead. slope: |y| <= slope x is where objects in front of the sensor stand; None:
    behind it there are as many again, and y is limited by the width of the world alone. road_yaw:
    standard deviation of the road's heading from the sensor's, in radians.
    """
    sides = 2 if slope is None else 1
    kinds, size, counted, albedo = _sizes(draws, "object", KINDS, sides)
    u = draws.uniform("place", len(kinds) * 6).unflatten(1, (-1, 6))
    n = draws.normal("place", len(kinds) * 2).unflatten(1, (-1, 2))
    radius = sqrt(size[..., 0] * size[..., 0] + size[..., 1] * size[..., 1]) * 0.5 + MARGIN
    road = draws.normal("road", 1) * (road_yaw / FULL_TURN)
    sine, cosine = sin_cos(road)

    distance = u[..., 0] * sqrt(sqrt(u[..., 0]))  # more of them near the sensor
    x = radius + NEAR + (reach - 2 * NEAR - radius) * distance
    limit = torch.full_like(x, SIDE * reach)
    if slope is not None:
        limit = torch.minimum(limit, x * slope)
    y = (u[..., 1] * 2.0 - 1.0) * limit
    traffic = _constant(draws, [float(kind.in_traffic) for kind in kinds]) > 0
    lane = torch.floor(u[..., 2] * LANES) - LANES // 2
    on_lane = traffic & (u[..., 3] < LANE_SHARE)
    lane_y = lane * LANE + n[..., 0] * 0.4
    lane_x = x * cosine - lane_y * sine
    y = torch.where(on_lane, x * sine + lane_y * cosine, y)
    x = torch.where(on_lane, lane_x, x)
    if sides == 2:
        behind = _constant(draws, [1.0 - 2.0 * (i % 2) for i in range(len(kinds))])
        x, y = x * behind, y * behind
    along = torch.floor(u[..., 5] * 2.0) * 0.5 + n[..., 1] * (0.08 / FULL_TURN) + road
    turns = torch.where(traffic & (u[..., 4] >= FREE_YAW), along, u[..., 5])

    dx, dy = x[:, :, None] - x[:, None], y[:, :, None] - y[:, None]
    apart = radius[:, :, None] + radius[:, None]
    kept = keep(dx * dx + dy * dy < apart * apart, counted)
    houses = _buildings(draws, reach, sides, (x, y, radius, kept), (sine, cosine))
    x, y = torch.cat([x, houses[0]], 1), torch.cat([y, houses[1]], 1)
    turns = torch.cat([turns, road.expand_as(houses[0])], 1)
    turns = turns - torch.floor(turns + 0.5)  # half a turn to either side
    sine, cosine = sin_cos(turns)
    z = ground(x, y, phases(draws)) - sensor_height
    size, albedo = torch.cat([size, houses[2]], 1), torch.cat([albedo, houses[3]], 1)
    numbers = (x, y, z, *size.unbind(2), turns * FULL_TURN, cosine, sine, albedo)
    fields = [*(v.to(torch.float32) for v in numbers), torch.cat([kept, houses[4]], 1)]
    return Objects(kinds + (BUILDING,) * houses[0].shape[1], *fields)


def _constant(draws: Draws, values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=draws.device)


def _sizes(
    draws: Draws, purpose: str, kinds: tuple[Kind, ...], sides: int
) -> tuple[tuple[Kind, ...], Tensor, Tensor, Tensor]:
    """The kinds of O candidates; their lengths, widths and heights [B, O, 3]; which of them the
    scenes' numbers of objects include [B, O]; and albedos [B, O]."""
    columns = [(k, i) for k, kind in enumerate(kinds) for i in range(kind.many * sides)]
    of = tuple(kinds[k] for k, _ in columns)
    u = draws.uniform(purpose, len(of) * 4).unflatten(1, (-1, 4))
    n = draws.normal(purpose, len(of) * 3).unflatten(1, (-1, 3))
    table = _constant(draws, [(kind.length, kind.width, kind.height) for kind in of])
    mean, deviation, low, high = table.unbind(-1)
    size = torch.where(deviation > 0, mean + deviation * n, low + (high - low) * u[..., :3])
    size = torch.minimum(torch.maximum(size, low), high)
    few, many = _constant(draws, [(kind.few, kind.many) for kind in of]).unbind(-1)
    share = draws.uniform(purpose + " count", len(kinds))
    share = share[:, torch.tensor([k for k, _ in columns], device=draws.device)]
    number = _constant(draws, [float(i // sides) for _, i in columns])
    counted = number < few + torch.floor(share * (many - few + 1.0))
    return of, size, counted, ALBEDO[0] + (ALBEDO[1] - ALBEDO[0]) * u[..., 3]


def keep(meets: Tensor, counted: Tensor) -> Tensor:
    """[B, O]: objects that meet no earlier kept one. One step per object, for all scenes."""
    kept = torch.zeros_like(counted)
    for i in range(counted.shape[1]):
        kept[:, i] = counted[:, i] & ~(meets[:, i] & kept).any(1)
    return kept


def _buildings(
    draws: Draws,
    reach: float,
    sides: int,
    objects: tuple[Tensor, Tensor, Tensor, Tensor],
    road: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Candidates [B, K] along the road: x, y, size, albedo and which are kept."""
    kinds, size, counted, albedo = _sizes(draws, "building", (BUILDING,), sides)
    u = draws.uniform("building place", len(kinds) * 4).unflatten(1, (-1, 4))
    wall = (u[..., 0] < WALLS)[..., None]
    size = torch.where(wall, size * _constant(draws, [1.0, 0.04, 0.2]), size)
    along = u[..., 1] * reach
    if sides == 2:
        along = along * 2.0 - reach
    across = u[..., 2] * 22.0 + 12.0 + size[..., 1] * 0.5
    across = torch.where(u[..., 3] < 0.5, across, -across)
    x, y, radius, there = objects
    sine, cosine = road
    u_object, v_object = x * cosine + y * sine, y * cosine - x * sine
    du = (u_object[:, None] - along[..., None]).abs() - size[..., 0:1] * 0.5
    dv = (v_object[:, None] - across[..., None]).abs() - size[..., 1:2] * 0.5
    free = ~((du < radius[:, None]) & (dv < radius[:, None]) & there[:, None]).any(2) & counted
    kept = free & (free.to(torch.int64).cumsum(1) <= BUILDINGS * sides)
    return along * cosine - across * sine, along * sine + across * cosine, size, albedo, kept
