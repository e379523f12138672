# SPDX-License-Identifier: Apache-2.0
"""Random points on surfaces made of pieces, evenly by true area.

A piece is a patch, triangle, ring, dome, arc of a torus, ellipsoid or coil, with one set of
parameters per cloud. Every point first picks a piece by area, then a place on it. Only operations
of portable_math are used, so CPU and CUDA give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from torchvox.data.counter_random import Draws
from torchvox.data.portable_math import FIXED, sin_cos, sqrt

Value: TypeAlias = Tensor | float
TRIES = 8  # of a point on an ellipsoid; at the flattest, one in ten thousand fails all of them
SPARE = 1.5  # points drawn per point needed where pieces can hide points
PROBE = 1e-6  # how far in front of a face a point must be free
Place: TypeAlias = Callable[[Tensor, Tensor, Draws], Tensor]  # see the functions _on_..


@dataclass(frozen=True)
class Piece:
    """place: points of its kind of surface. area: [B] or a number. part: label of its points.
    values: its parameters, each [B] or a number."""

    place: Place
    area: Value
    part: int
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Slab:
    """Box with faces along the axes; low and high: (x, y, z), each [B] or a number. Points of its
    faces that lie against or inside another slab do not show."""

    low: tuple[Value, Value, Value]
    high: tuple[Value, Value, Value]
    part: int


def patch(corner: Sequence[Value], a: Sequence[Value], b: Sequence[Value], part: int) -> Piece:
    """Parallelogram from a corner along two edges at right angles."""
    return Piece(_on_patch, _norm(a) * _norm(b), part, (*corner, *a, *b))


def triangle(corner: Sequence[Value], a: Sequence[Value], b: Sequence[Value], part: int) -> Piece:
    """Triangle of a corner and the ends of two edges."""
    cross = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return Piece(_on_triangle, _norm(cross) * 0.5, part, (*corner, *a, *b))


def ring(z: Value, height: Value, low: Value, high: Value, part: int) -> Piece:
    """Side of a cone's frustum around the z axis, radius low at z and high at z + height; flat
    (a disc, an annulus) where height is 0. high must be > 0."""
    slant = _norm((height, high - low))
    return Piece(_on_ring, (low + high) * slant * math.pi, part, (z, height, low, high))


def disc(z: Value, radius: Value, part: int) -> Piece:
    return ring(z, 0.0, 0.0, radius, part)


def dome(z: Value, radius: Value, up: int, part: int) -> Piece:
    """Half a sphere around (0, 0, z), above it for up = 1 and below for -1."""
    return Piece(_on_dome, radius * radius * (2 * math.pi), part, (z, radius, float(up)))


def arc(
    center: Sequence[Value], radius: Value, tube: Value, turns: tuple[float, float], part: int
) -> Piece:
    """Torus, or a part of one from turns[0] over turns[1], in the plane of x and z."""
    area = radius * tube * (4 * math.pi**2 * turns[1])
    return Piece(_on_arc, area, part, (*center, radius, tube, *turns))


def ellipsoid(axes: Sequence[Value], part: int) -> Piece:
    """Ellipsoid around the origin; alone in its shape."""
    return Piece(_on_ellipsoid, 1.0, part, tuple(axes))


def coil(radius: Value, height: Value, turns: Value, sigma: float, part: int) -> Piece:
    """Helix around the z axis, centered, as a fuzzy tube; alone in its shape."""
    return Piece(_on_coil, 1.0, part, (radius, height, turns, sigma))


def sample(pieces: Sequence[Piece | Slab], draws: Draws, count: int) -> tuple[Tensor, Tensor]:
    """Points on the pieces: xyz [B, count, 3] float64 and part [B, count] int64."""
    slabs = [piece for piece in pieces if isinstance(piece, Slab)]
    solid = [face for slab in slabs for face in _faces(slab)]
    solid += [piece for piece in pieces if isinstance(piece, Piece)]
    drawn = math.ceil(count * SPARE) if slabs else count
    u = draws.uniform("surface", drawn * 4).view(len(draws.samples), drawn, 4)
    areas = columns([piece.area for piece in solid], draws)
    chosen = pick_by_weight(areas, u[..., 0].contiguous())
    values = _gather(solid, chosen, draws)
    first, *others = dict.fromkeys(piece.place for piece in solid)
    xyz = first(values, u, draws)
    for place in others:
        here = torch.tensor([piece.place == place for piece in solid], device=draws.device)[chosen]
        xyz = torch.where(here[..., None], place(values, u, draws), xyz)
    part = torch.tensor([piece.part for piece in solid], device=draws.device)[chosen]
    if not slabs:
        return xyz, part
    probe = xyz + values[..., 9:12] * PROBE
    low, high = (
        torch.stack([columns(getattr(slab, end), draws) for slab in slabs], 1)[:, None]
        for end in ("low", "high")
    )
    inside = (probe[:, :, None] > low) & (probe[:, :, None] < high)  # [B, drawn, slabs, 3]
    hidden = inside.all(-1).any(-1)
    return take(xyz, hidden, count), take(part, hidden, count)


def take(x: Tensor, without: Tensor, count: int) -> Tensor:
    """The first `count` rows of each cloud x [B, N, ...] that are not marked in without [B, N]."""
    order = without.to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    index = order if x.dim() == 2 else order[..., None].expand(-1, -1, x.shape[2])
    return x.gather(1, index)


def pick_by_weight(weights: Tensor, u: Tensor) -> Tensor:
    """Index [B, N] of a column of weights [B, P] >= 0, with u [B, N] uniform; fixed point."""
    ends = (weights * FIXED).to(torch.int64).cumsum(1)
    at = (u * ends[:, -1:].to(torch.float64)).to(torch.int64)
    return torch.searchsorted(ends, at, right=True).clamp_(max=weights.shape[1] - 1)


def _gather(pieces: Sequence[Piece], chosen: Tensor, draws: Draws) -> Tensor:
    """Parameters of each point's piece, [B, N, width]."""
    width = max(len(piece.values) for piece in pieces)
    padded = [(*piece.values, *[0.0] * (width - len(piece.values))) for piece in pieces]
    table = torch.stack([columns(values, draws) for values in padded], 1)  # [B, P, width]
    return table.gather(1, chosen[..., None].expand(-1, -1, width))


def columns(values: Sequence[Value], draws: Draws) -> Tensor:
    """[B, len(values)] float64 of values [B] or numbers."""
    like = {"dtype": torch.float64, "device": draws.device}
    batch = len(draws.samples)
    return torch.stack([torch.as_tensor(v, **like).expand(batch) for v in values], 1)


def _faces(slab: Slab) -> list[Piece]:
    """Six patches; columns 9-11 hold the outward normal."""
    size = [high - low for low, high in zip(slab.low, slab.high, strict=True)]
    faces = []
    for axis in range(3):
        others = [i for i in range(3) if i != axis]
        edges = [tuple(size[i] if i == j else 0.0 for j in range(3)) for i in others]
        for end, sign in ((slab.low, -1.0), (slab.high, 1.0)):
            corner = [end[i] if i == axis else slab.low[i] for i in range(3)]
            normal = [sign if i == axis else 0.0 for i in range(3)]
            area, values = (
                size[others[0]] * size[others[1]],
                (*corner, *edges[0], *edges[1], *normal),
            )
            faces.append(Piece(_on_patch, area, slab.part, values))
    return faces


def _norm(vector: Sequence[Value]) -> Value:
    square = vector[0] * vector[0]
    for v in vector[1:]:
        square = square + v * v
    return sqrt(square) if isinstance(square, Tensor) else math.sqrt(square)


# The points of each kind: values [B, N, width] and u [B, N, 4], whose column 0 is used up, to
# [B, N, 3].


def _on_patch(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    a, b = u[..., 1:2], u[..., 2:3]
    return values[..., 0:3] + values[..., 3:6] * a + values[..., 6:9] * b


def _on_triangle(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    a, b = u[..., 1:2], u[..., 2:3]
    beyond = a + b > 1.0  # the other half of the parallelogram, folded back
    a, b = torch.where(beyond, 1.0 - a, a), torch.where(beyond, 1.0 - b, b)
    return values[..., 0:3] + values[..., 3:6] * a + values[..., 6:9] * b


def _on_ring(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    z, height, low, high = (values[..., i] for i in range(4))
    v = u[..., 2]
    radius = sqrt((low * low + v * (high * high - low * low)).clamp(min=0.0))
    # Share of the slant below the radius, (radius - low) / (high - low), also where that is 0/0.
    along = v * (low + high) / (low + radius).clamp(min=1e-12)
    sine, cosine = sin_cos(u[..., 1])
    return torch.stack([radius * cosine, radius * sine, z + height * along], -1)


def _on_dome(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    z, radius, up = (values[..., i] for i in range(3))
    rise = u[..., 2]  # Archimedes: equal heights hold equal areas
    level = radius * sqrt(1.0 - rise * rise)
    sine, cosine = sin_cos(u[..., 1])
    return torch.stack([level * cosine, level * sine, z + radius * rise * up], -1)


def _on_arc(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    x, y, z, radius, tube, first, turns = (values[..., i] for i in range(7))
    around_sine, around = sin_cos(u[..., 2])
    # The density is 1 + e cos: reject with chance (1 - e cos) / 2, and a rejected angle's mirror
    # image makes up exactly what is missing on the other side.
    rejected = u[..., 3] * 2.0 < 1.0 - around * tube / radius.clamp(min=1e-12)
    around = torch.where(rejected, -around, around)
    sine, cosine = sin_cos(first + turns * u[..., 1])
    reach = radius + tube * around
    return torch.stack([x + reach * cosine, y + tube * around_sine, z + reach * sine], -1)


def _on_ellipsoid(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    axes = values[..., 0:3]
    tries = draws.uniform("ellipsoid", u.shape[1] * TRIES * 3).view(*u.shape[:2], TRIES, 3)
    best = axes.amin(-1)
    point = None
    for i in reversed(range(TRIES)):  # so that the first accepted try is written last
        rise = tries[:, :, i, 1] * 2.0 - 1.0
        level = sqrt(1.0 - rise * rise)
        sine, cosine = sin_cos(tries[:, :, i, 0])
        unit = torch.stack([level * cosine, level * sine, rise], -1)
        x, y, z = (unit / axes).unbind(-1)
        stretch = sqrt(x * x + y * y + z * z) * best  # of area against the unit sphere's
        on = unit * axes
        accepted = tries[:, :, i, 2] < stretch
        point = on if point is None else torch.where(accepted[..., None], on, point)
    return point


def _on_coil(values: Tensor, u: Tensor, draws: Draws) -> Tensor:
    radius, height, turns, sigma = (values[..., i] for i in range(4))
    along = u[..., 1]
    sine, cosine = sin_cos(turns * along)
    line = torch.stack([radius * cosine, radius * sine, height * (along - 0.5)], -1)
    fuzz = draws.normal("coil", u.shape[1] * 3).view(*u.shape[:2], 3)
    return line + fuzz * sigma[..., None]
