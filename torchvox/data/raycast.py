# SPDX-License-Identifier: Apache-2.0
"""Ray casting of boxes, cylinders and ellipsoids on a flat ground with a spinning lidar.

Rays lie on a grid [beams, azimuths]. An object is met only by the columns of rays that its
bounding circle spans, so a scene of hundreds of objects takes a fraction of a second in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

import numpy as np

MAX_RANGE, MIN_RANGE = 110.0, 1.2  # meters
RANGE_NOISE = 0.015  # standard deviation, meters
RANGE_STEP = 0.002  # the sensor reports ranges in 2 mm steps
SLOPE = (0.010, -0.006)  # rise of the sensor's x and y axes against the ground


@dataclass(frozen=True)
class Surface:
    """Surface of an object, at x, y, z. reflectance 0..1; porosity: share of rays that pass
    through; roughness: standard deviation in meters by which returns lie behind the surface."""

    x: float
    y: float
    z: float
    _: KW_ONLY
    reflectance: float
    porosity: float = 0.0
    roughness: float = 0.0


@dataclass(frozen=True)
class Box(Surface):
    """Box around (x, y) from z to z + height, half lengths half_x, half_y, heading in radians."""

    half_x: float
    half_y: float
    height: float
    heading: float = 0.0

    @property
    def radius(self) -> float:
        return float(np.hypot(self.half_x, self.half_y))

    def hit(self, origin: np.ndarray, ray: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distance (inf: missed) and cosine of incidence for rays [..., 3] (slab method)."""
        c, s = np.cos(self.heading), np.sin(self.heading)
        turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
        half = np.array([self.half_x, self.half_y, self.height / 2])
        center = np.array([self.x, self.y, self.z + self.height / 2])
        start, ray = turn @ (origin - center), ray @ turn.T
        near = (-np.copysign(half, ray) - start) / ray
        far = (np.copysign(half, ray) - start) / ray
        axis = near.argmax(axis=-1)[..., None]
        t = np.take_along_axis(near, axis, -1)[..., 0]
        cosine = np.abs(np.take_along_axis(ray, axis, -1)[..., 0])
        return np.where((t <= far.min(axis=-1)) & (t > 0), t, np.inf), cosine


@dataclass(frozen=True)
class Cylinder(Surface):
    """Upright cylinder around (x, y) from z to z + height."""

    radius: float
    height: float

    def hit(self, origin: np.ndarray, ray: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dx, dy = origin[0] - self.x, origin[1] - self.y
        a = ray[..., 0] ** 2 + ray[..., 1] ** 2
        b = dx * ray[..., 0] + dy * ray[..., 1]
        root = b * b - a * (dx * dx + dy * dy - self.radius**2)
        t = (-b - np.sqrt(np.maximum(root, 0))) / a
        z = origin[2] + t * ray[..., 2]
        inside = (root > 0) & (t > 0) & (z >= self.z) & (z <= self.z + self.height)
        return np.where(inside, t, np.inf), np.sqrt(np.maximum(root, 0) / a) / self.radius


@dataclass(frozen=True)
class Ellipsoid(Surface):
    """Upright ellipsoid of revolution around (x, y, z)."""

    radius: float
    half_height: float

    def hit(self, origin: np.ndarray, ray: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale = np.array([self.radius, self.radius, self.half_height])
        start, ray = (origin - np.array([self.x, self.y, self.z])) / scale, ray / scale
        a, b = (ray * ray).sum(-1), ray @ start
        root = b * b - a * (start @ start - 1)
        t = (-b - np.sqrt(np.maximum(root, 0))) / a
        return np.where((root > 0) & (t > 0), t, np.inf), np.sqrt(np.maximum(root, 0) / a)


Primitive = Box | Cylinder | Ellipsoid
Reflectance = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of x, y
Seen = tuple[np.ndarray, np.ndarray, np.ndarray]  # distance, cosine of incidence, reflectance


@dataclass(frozen=True)
class Lidar:
    """A 64-beam spinning lidar in the manner of the HDL-64: two blocks of beams."""

    azimuths: int = 2048
    height: float = 1.73  # meters above the ground
    elevations_deg: np.ndarray = field(
        default_factory=lambda: np.concatenate(
            [np.linspace(2.0, -8.33, 32), np.linspace(-8.83, -24.8, 32)]
        )
    )

    def rays(self, rng: np.random.Generator) -> np.ndarray:
        """Unit rays [beams, azimuths, 3] in the sensor frame, beams slightly misaligned."""
        beams = len(self.elevations_deg)
        elevation = np.deg2rad(self.elevations_deg + rng.normal(0, 0.015, beams))[:, None]
        azimuth = np.linspace(-np.pi, np.pi, self.azimuths, endpoint=False)[None, :]
        azimuth = azimuth + rng.normal(0, 0.0004, (beams, 1))
        level = np.cos(elevation)
        return np.stack(
            [
                level * np.cos(azimuth),
                level * np.sin(azimuth),
                np.broadcast_to(np.sin(elevation), azimuth.shape),
            ],
            axis=-1,
        )


def cast_rays(
    things: list[Primitive],
    lidar: Lidar,
    ground_reflectance: Reflectance,
    rng: np.random.Generator,
) -> np.ndarray:
    """Scan the things. Returns [N, 4] float32: x, y, z in the sensor frame, intensity 0..1."""
    sensor_rays = lidar.rays(rng)
    slope = tilt(*SLOPE)
    rays = sensor_rays @ slope.T
    origin = np.array([0.0, 0.0, lidar.height])

    seen = distance, cosine, reflectance = _ground(rays, origin, ground_reflectance)
    for thing in things:
        _meet(thing, rays, origin, seen, rng)

    intensity, returned = _receive(distance, cosine, reflectance, rng)
    noisy = distance + rng.normal(0, RANGE_NOISE, distance.shape)
    noisy = np.round(noisy / RANGE_STEP) * RANGE_STEP
    cloud = np.concatenate([noisy[..., None] * sensor_rays, intensity[..., None]], axis=-1)
    return cloud.swapaxes(0, 1)[returned.T].astype(np.float32)  # in firing order


def tilt(along: float, across: float) -> np.ndarray:
    """Rotation [3, 3] from the sensor frame to the world frame for small slopes."""
    x = np.array([1.0, 0.0, along])
    x /= np.linalg.norm(x)
    y = np.array([0.0, 1.0, across])
    y -= x * (x @ y)
    y /= np.linalg.norm(y)
    return np.stack([x, y, np.cross(x, y)], axis=1)


def _ground(rays: np.ndarray, origin: np.ndarray, ground_reflectance: Reflectance) -> Seen:
    """Distance, cosine of incidence and reflectance [beams, azimuths] of the ground plane."""
    down = -rays[..., 2]
    with np.errstate(divide="ignore"):
        distance = np.where(down > 0, origin[2] / down, np.inf)
    distance[distance > MAX_RANGE] = np.inf
    reach = np.where(np.isfinite(distance), distance, 0)
    x, y = reach * rays[..., 0], reach * rays[..., 1]
    return distance, np.abs(down), ground_reflectance(x, y)


def _meet(
    thing: Primitive, rays: np.ndarray, origin: np.ndarray, seen: Seen, rng: np.random.Generator
) -> None:
    """Let one thing hide what lies behind it, in place."""
    distance, cosine, reflectance = seen
    azimuths = rays.shape[1]
    away = np.hypot(thing.x, thing.y)
    if away - thing.radius > MAX_RANGE:
        return
    if away <= thing.radius * 1.01:
        columns = np.arange(azimuths)
    else:
        half = np.arcsin(thing.radius / away) + 0.015  # the slope turns rays by up to a degree
        first, last = np.arctan2(thing.y, thing.x) + np.array([-half, half])
        step = 2 * np.pi / azimuths
        start, stop = np.floor((np.array([first, last]) + np.pi) / step)
        columns = np.arange(int(start), int(stop) + 2) % azimuths
        columns = columns[:azimuths]
    with np.errstate(divide="ignore", invalid="ignore"):
        t, incidence = thing.hit(origin, rays[:, columns])
    hit = (t < distance[:, columns]) & (t < MAX_RANGE)
    if thing.porosity:
        hit &= rng.random(hit.shape) >= thing.porosity
    if thing.roughness:
        t = t + np.abs(rng.normal(0, thing.roughness, t.shape))
    rows, hit_columns = np.nonzero(hit)
    at = rows, columns[hit_columns]
    distance[at], cosine[at] = t[hit], np.broadcast_to(incidence, t.shape)[hit]
    reflectance[at] = thing.reflectance


def _receive(
    distance: np.ndarray, cosine: np.ndarray, reflectance: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Intensity 0..1 in steps of 1/255, and which rays return at all."""
    shading = np.where(reflectance >= 1.0, 1.0, 0.25 + 0.75 * np.sqrt(cosine))  # retro-reflectors
    intensity = reflectance * shading * rng.normal(1.0, 0.08, distance.shape)
    reach = np.where(np.isfinite(distance), distance, MAX_RANGE)
    echo = reflectance * cosine / (reach / 60.0) ** 2  # grazing and far surfaces return little
    chance = 0.985 * (1 - np.exp(-echo / 0.012))
    returned = np.isfinite(distance) & (distance > MIN_RANGE)
    returned &= rng.random(distance.shape) < chance
    return np.round(np.clip(intensity, 0, 1) * 255) / 255, returned
