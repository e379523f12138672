# SPDX-License-Identifier: Apache-2.0
"""Ray casting of generated streets in batches, with the same bits on every device.

float32, one rounding per torch operation, and roots, sines and cosines of portable_math. An object
is met by the columns of rays that its bounding circle spans: a pair of object and column tests all
beams, in the object's frame. The nearest hit of a ray is a minimum of integers, range above owner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchvox.data.counter_random import Draws, mix
from torchvox.data.portable_math import sin_cos, sqrt
from torchvox.data.worlds.street.objects import PARTS, Ellipsoid, Slab, Solid, Value
from torchvox.data.worlds.street.placement import Motion, Objects, ground, phases
from torchvox.data.worlds.street.sensors import View

MIN_RANGE = 0.5  # meters
JITTER = 3e-4  # standard deviation of azimuths in radians
RANGE_NOISE = (0.01, 0.03)  # standard deviation in meters, drawn per scene
GAIN = (0.75, 1.25)  # of intensities, drawn per scene
ROAD = (0.1, 0.3)  # albedo of the ground, drawn per scene; it varies by 0.1 from ray to ray
INTENSITY_NOISE = 0.03
DEAD_BEAMS = 0.03  # share of beams that return nothing in a scene
DROPOUT, DARK_DROPOUT, DARK = 0.05, 0.35, 0.12  # dark paint and glass lose far returns
POROSITY = 0.45  # share of rays that pass through a crown
NOISE_BOUND = math.sqrt(12.0)  # of noise in standard deviations
NOTHING, GROUND = (1 << 31) - 1, (1 << 31) - 2  # owners of rays that meet no object


class Returns(NamedTuple):
    """What B scenes return, rays in firing order.

    xyz: [B, R, 3] meters. intensity: [B, R] 0..1. owner: [B, R] int64, the object's column, -2 for
    the ground. returned: [B, R] bool, rays with a return. hits: [B, O] rays that end on an
    object; alone: [B, O] rays that would if there was nothing else but the ground.
    """

    xyz: Tensor
    intensity: Tensor
    owner: Tensor
    returned: Tensor
    hits: Tensor
    alone: Tensor


class Rays(NamedTuple):
    """Unit directions, x and y [B * C, E] of C columns and E beams, z and level = |x, y| [1, E];
    inside [B * C, E]: in the field of view. offset: [B] by which the columns are shifted. time and
    start [B * C, 1]: when they are cast, in turns, 0 straight ahead, and the sensor's x then."""

    x: Tensor
    y: Tensor
    z: Tensor
    level: Tensor
    inside: Tensor
    offset: Tensor
    time: Tensor
    start: Tensor


def cast(objects: Objects, view: View, draws: Draws, motion: Motion | None = None) -> Returns:
    """What a sensor at the origin of the objects' frames returns. Points of a sensor that moves are
    in the frame of the scene."""
    batch, count = objects.kept.shape
    if motion is None:
        zero = torch.zeros(batch, 1, device=draws.device)
        motion = Motion(draws, zero, zero, zero.expand(-1, count), zero.expand(-1, count))
    rays = _rays(view, draws, motion)
    background = _ground(rays, view, motion)
    nearest = background.clone()
    alone = torch.zeros(batch * count, dtype=torch.int64, device=draws.device)
    albedo = torch.zeros(batch * count, PARTS, device=draws.device)
    porous = draws.bits("porosity", view.rays).view(nearest.shape)
    for kind in dict.fromkeys(objects.kinds):
        first = objects.kinds.index(kind)
        there = objects.kept[:, first : first + objects.kinds.count(kind)].nonzero()
        scene, column = there[:, 0], there[:, 1] + first
        row = scene * count + column
        members = objects.at((scene, column))
        shift = motion.x[scene, column], motion.y[scene, column]
        which, ray = _pairs(members, shift, scene, rays, view)
        local = _local(members, shift, which, ray, rays)
        owner = column[which, None] * PARTS
        key = torch.full_like(local.x, NOTHING, dtype=torch.int64) << 32
        parts = kind.parts(members.length, members.width, members.height, members.albedo)
        for number, (solid, shade) in enumerate(parts):
            albedo[row, number] = _filled(shade, members.x)
            solid = type(solid)(*(_filled(v, members.x)[which, None] for v in solid))
            near, far = _interval(solid, local)
            missed = ~((near <= far) & (near >= MIN_RANGE))  # also NaN
            if isinstance(solid, Ellipsoid):
                near = _pass_through(near, far, mix(porous[ray] + owner))
            key = torch.minimum(key, _key(near.masked_fill_(missed, math.inf), owner + number))
        hit = (key < background[ray]) & rays.inside[ray]
        alone.index_add_(0, row[which], hit.sum(1))
        nearest.scatter_reduce_(0, ray[:, None].expand_as(key), key, "amin")
    alone, albedo = alone.view(batch, count), albedo.view(batch, count * PARTS)
    draw = draws, motion.scene
    return _receive(nearest.view(batch, view.rays), alone, albedo, rays, view, draw)


def _key(distance: Tensor, owner: Tensor | int) -> Tensor:
    """int64 in the order of positive distances, ties in that of owners."""
    return (distance.view(torch.int32).to(torch.int64) << 32) | owner


def _noise(draws: Draws, purpose: str, count: int) -> Tensor:
    """[B, count] float32, the sum of four 16-bit numbers: normal, but within +-NOISE_BOUND."""
    bits = draws.bits(purpose, count)
    total = sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48)) - 2 * 0xFFFF
    return total.to(torch.float32) * (NOISE_BOUND / (2 * 0x10000))


def _rays(view: View, draws: Draws, motion: Motion) -> Rays:
    like = {"dtype": torch.float64, "device": draws.device}
    z, level = sin_cos(torch.tensor([view.sensor.elevations], **like) * (1 / 360.0))
    z, level = z.to(torch.float32), level.to(torch.float32)
    offset = draws.uniform("azimuth", 1)
    column = torch.arange(view.columns, **like) + offset
    turns = (column - view.columns * 0.5) * (1.0 / view.sensor.columns)
    sine, cosine = (v.to(torch.float32).view(-1, 1) for v in sin_cos(turns))
    jitter = _noise(draws, "jitter", view.rays).view(-1, len(view.sensor.elevations)) * JITTER
    x, y = (cosine - sine * jitter) * level, (sine + cosine * jitter) * level
    time = turns.to(torch.float32)
    start = time * motion.advance + motion.start
    times = time.view(-1, 1), start.view(-1, 1)
    return Rays(x, y, z, level, view.inside(x, y, z), offset[:, 0], *times)


def _ground(rays: Rays, view: View, motion: Motion) -> Tensor:
    """Keys of rays if there was only the ground: the plane, and one step of correction."""
    scenes = (len(motion.scene.samples), view.rays)
    height, limit = view.sensor.height, view.sensor.max_range
    down = rays.z < 0
    flat = torch.where(down, torch.full_like(rays.z, -height) / rays.z, limit).clamp(max=limit)
    x, y = (rays.x * flat + rays.start).view(scenes), (rays.y * flat).view(scenes)
    if motion.frame:
        place_x, place_y, cosine, sine = motion.frame
        x, y = place_x + x * cosine - y * sine, place_y + x * sine + y * cosine
    bump = ground(x, y, phases(motion.scene).to(torch.float32)).view(rays.x.shape)
    distance = (bump - height) / rays.z
    met = down & (distance < limit)
    distance = torch.where(met, distance, limit)
    return _key(distance, torch.where(met, GROUND, NOTHING))


def _filled(value: Value, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, value)


def _pairs(
    members: Objects, shift: tuple[Tensor, Tensor], scene: Tensor, rays: Rays, view: View
) -> tuple[Tensor, Tensor]:
    """Objects and rows of rays, [P] each, that may meet. One column more than necessary on either
    side, so that rounding, which differs between devices here, changes no hit."""
    away = torch.hypot(members.x, members.y)
    radius = torch.hypot(members.length, members.width) * 0.5
    radius = radius + torch.hypot(*shift) * 0.5  # half a turn before and after
    half = torch.asin((radius / away).clamp(max=1.0))
    half = torch.where(radius < away, half, math.pi)
    per_radian = view.sensor.columns / (2 * math.pi)
    turn = torch.atan2(members.y, members.x) * per_radian
    middle = turn + view.columns * 0.5 - rays.offset[scene]
    first = torch.floor(middle - half * per_radian).to(torch.int64) - 1
    last = torch.floor(middle + half * per_radian).to(torch.int64) + 2
    if view.columns < view.sensor.columns:
        first, last = first.clamp(min=0), last.clamp(max=view.columns - 1)
    count = (last - first + 1).clamp(0, view.columns)
    which = torch.repeat_interleave(count)
    column = torch.arange(len(which), device=which.device) - (count.cumsum(0) - count)[which]
    return which, scene[which] * view.columns + (first[which] + column) % view.columns


class Local(NamedTuple):
    """Rays of pairs in their objects' frames: directions [P, E] or [1, E], origins [P, 1]."""

    x: Tensor
    y: Tensor
    z: Tensor
    level: Tensor
    origin: tuple[Tensor, Tensor, Tensor]


def _local(
    members: Objects, shift: tuple[Tensor, Tensor], which: Tensor, ray: Tensor, rays: Rays
) -> Local:
    frames = members.x, members.y, members.z, members.cosine, members.sine
    x, y, z, cosine, sine = (v[which, None] for v in frames)
    x, y = (v + s[which, None] * rays.time[ray] for v, s in zip((x, y), shift, strict=True))
    origin = -(x * cosine + y * sine), x * sine - y * cosine, -z
    x, y = rays.x[ray], rays.y[ray]
    return Local(x * cosine + y * sine, y * cosine - x * sine, rays.z, rays.level, origin)


def _interval(solid: Solid, rays: Local) -> tuple[Tensor, Tensor]:
    """[P, E] distances at which rays enter and leave a solid; the first is larger if they miss."""
    x, y, z = rays.origin
    if isinstance(solid, Ellipsoid):
        return _in_ellipsoid(solid, rays)
    near, far = _between(solid.low - z, solid.high - z, rays.z)
    if isinstance(solid, Slab):
        sides = _between(solid.x - solid.half_x - x, solid.x + solid.half_x - x, rays.x)
        near, far = torch.maximum(near, sides[0]), torch.minimum(far, sides[1])
        sides = _between(solid.y - solid.half_y - y, solid.y + solid.half_y - y, rays.y)
        return torch.maximum(near, sides[0]), torch.minimum(far, sides[1])
    x, y = solid.x - x, solid.y - y
    square = rays.level * rays.level
    cross = x * rays.y - y * rays.x
    root = square * (solid.radius * solid.radius) - cross * cross
    along, half = x * rays.x + y * rays.y, sqrt(root.clamp(min=0.0))
    near = torch.maximum(near, (along - half) / square)
    far = torch.minimum(far, (along + half) / square)
    return near.masked_fill_(root < 0, math.inf), far


def _between(low: Tensor, high: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Distances at which one coordinate of rays passes two planes, nearer first."""
    inverse = torch.ones_like(ray) / ray
    low, high = low * inverse, high * inverse
    return torch.minimum(low, high), torch.maximum(low, high)


def _in_ellipsoid(solid: Ellipsoid, rays: Local) -> tuple[Tensor, Tensor]:
    """The unit ball's, after scaling; by the point of the ray that is nearest to its center."""
    x, y, z = rays.origin
    x, y, z = x / solid.radius, y / solid.radius, (z - solid.z) / solid.half_height
    dx, dy, dz = rays.x / solid.radius, rays.y / solid.radius, rays.z / solid.half_height
    square = dx * dx + dy * dy + dz * dz
    middle = -(x * dx + y * dy + z * dz) / square
    x, y, z = x + middle * dx, y + middle * dy, z + middle * dz
    root = 1.0 - (x * x + y * y + z * z)
    half = sqrt(root.clamp(min=0.0) / square)
    return (middle - half).masked_fill_(root < 0, math.inf), middle + half


def _pass_through(near: Tensor, far: Tensor, bits: Tensor) -> Tensor:
    """Where rays end in leaves: more often just behind the surface than deep, or at infinity."""
    deep = (bits & 0xFFFF).to(torch.float32) * (1 / 0x10000)
    near = near + (far - near) * (deep * deep)
    return near.masked_fill_(((bits >> 16) & 0xFFFF) < round(POROSITY * 0x10000), math.inf)


def _receive(
    nearest: Tensor, alone: Tensor, albedo: Tensor, rays: Rays, view: View, draw: Sequence[Draws]
) -> Returns:
    """Range, intensity and loss of rays [B, R]. draw: draws of the scans, and of their scenes."""
    draws, scene = draw
    batch, beams = len(nearest), rays.z.shape[1]
    owner, inside = nearest & 0xFFFFFFFF, rays.inside.view(nearest.shape)
    distance = (nearest >> 32).to(torch.int32).view(torch.float32)
    is_object = owner < GROUND
    part = torch.where(is_object, owner, 0)
    u = scene.uniform("noise, gain, road", 3)
    noise, gain, road = (
        (low + u[:, i : i + 1] * (high - low)).to(torch.float32)
        for i, (low, high) in enumerate((RANGE_NOISE, GAIN, ROAD))
    )
    bits = draws.bits("surface", view.rays)
    grain, luck = ((bits >> s & 0xFFFF).to(torch.float32) * (1 / 0x10000) for s in (0, 16))
    reflected = albedo.gather(1, part)
    reflected = torch.where(is_object, reflected, grain * 0.1 + road)

    share = distance * (1 / 80.0)
    loss = torch.where(reflected < DARK, share * share * DARK_DROPOUT, 0.0) + DROPOUT
    dead = scene.uniform("beams", beams) < DEAD_BEAMS
    returned = (inside & (owner != NOTHING) & (luck >= loss)).view(batch, view.columns, beams)
    returned = (returned & ~dead[:, None]).flatten(1)

    distance = distance + _noise(draws, "range", view.rays) * noise
    intensity = reflected * (1.0 - share * 0.3) * gain
    intensity = intensity + _noise(draws, "intensity", view.rays) * INTENSITY_NOISE
    z = rays.z.expand_as(rays.x)
    xyz = torch.stack([v.reshape(distance.shape) * distance for v in (rays.x, rays.y, z)], -1)
    xyz[..., 0] += rays.start.expand_as(z).reshape(distance.shape)
    column = part // PARTS
    hits = torch.zeros_like(alone)
    hits.scatter_add_(1, column, (is_object & inside).to(torch.int64))
    owner = torch.where(is_object, column, -2)
    return Returns(xyz, intensity.clamp(0.0, 0.99), owner, returned, hits, alone)
