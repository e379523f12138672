# SPDX-License-Identifier: Apache-2.0
"""The sixteen shapes: which pieces each is made of, from uniform numbers of its sample.

z is up. Lengths are relative: clouds are scaled to the unit sphere in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchvox.data.worlds import surfaces
from torchvox.data.worlds.surfaces import Piece, Slab, arc, disc, dome, patch, ring, triangle

PARAMETERS = 4  # uniform numbers that a shape may use
Pieces = list[Piece | Slab]


@dataclass(frozen=True)
class Shape:
    """parts: names of its parts. build: uniform numbers, PARAMETERS times [B], to its pieces."""

    parts: tuple[str, ...]
    build: Callable[[Sequence[Tensor]], Pieces]


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return u * (high - low) + low


def _sphere(u: Sequence[Tensor]) -> Pieces:
    return [dome(0.0, 1.0, 1, 0), dome(0.0, 1.0, -1, 0)]


def _ellipsoid(u: Sequence[Tensor]) -> Pieces:
    return [surfaces.ellipsoid((1.0, _between(u[0], 0.35, 0.6), _between(u[1], 0.35, 0.6)), 0)]


def _box(u: Sequence[Tensor]) -> Pieces:
    return [Slab((0.0, 0.0, 0.0), (1.0, _between(u[0], 0.5, 1), _between(u[1], 0.5, 1)), 0)]


def _cylinder(u: Sequence[Tensor]) -> Pieces:
    height = _between(u[0], 0.7, 2)
    return [ring(0.0, height, 0.5, 0.5, 0), disc(0.0, 0.5, 1), disc(height, 0.5, 1)]


def _cone(u: Sequence[Tensor]) -> Pieces:
    height = _between(u[0], 0.8, 1.8)
    # Upside down, since a ring's high end must have a radius; the height is negative instead.
    return [ring(height, -height, 0.0, 0.6, 0), disc(0.0, 0.6, 1)]


def _frustum(u: Sequence[Tensor]) -> Pieces:
    top, height = _between(u[0], 0.25, 0.4), _between(u[1], 0.7, 1.6)
    return [ring(0.0, height, 0.6, top, 0), disc(0.0, 0.6, 1), disc(height, top, 1)]


def _torus(u: Sequence[Tensor]) -> Pieces:
    return [arc((0.0, 0.0, 0.0), 1.0, _between(u[0], 0.15, 0.4), (0.0, 1.0), 0)]


def _capsule(u: Sequence[Tensor]) -> Pieces:
    body = _between(u[0], 0.8, 1.8)
    return [ring(0.0, body, 0.4, 0.4, 0), dome(body, 0.4, 1, 1), dome(0.0, 0.4, -1, 1)]


def _pyramid(u: Sequence[Tensor]) -> Pieces:
    height = _between(u[0], 0.7, 1.4)
    corners = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    pieces: Pieces = [patch((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 1)]
    for (x, y), (next_x, next_y) in zip(corners, corners[1:] + corners[:1], strict=True):
        edge, rise = (next_x - x, next_y - y, 0.0), (0.5 - x, 0.5 - y, height)
        pieces.append(triangle((x, y, 0.0), edge, rise, 0))
    return pieces


def _bracket(u: Sequence[Tensor]) -> Pieces:
    thick = _between(u[0], 0.15, 0.3)
    return [
        Slab((0.0, 0.0, 0.0), (1.0, 0.5, thick), 0),
        Slab((0.0, 0.0, thick), (thick, 0.5, 1.0), 1),
    ]


def _helix(u: Sequence[Tensor]) -> Pieces:
    return [surfaces.coil(0.5, 1.6, _between(u[0], 2, 4), 0.05, 0)]


def _legs(width: Tensor | float, depth: Tensor | float, height: Tensor, side: float) -> list[Slab]:
    """Four legs under the corners of a board."""
    return [
        Slab((x, y, 0.0), (x + side, y + side, height), 1)
        for x in (0.0, width - side)
        for y in (0.0, depth - side)
    ]


def _table(u: Sequence[Tensor]) -> Pieces:
    depth, height = _between(u[0], 0.6, 1), _between(u[1], 0.5, 0.9)
    top = Slab((0.0, 0.0, height), (1.0, depth, height + 0.06), 0)
    return [top, *_legs(1.0, depth, height, 0.06)]


def _chair(u: Sequence[Tensor]) -> Pieces:
    height = _between(u[0], 0.4, 0.5)
    top = height + 0.06
    seat = Slab((0.0, 0.0, height), (0.5, 0.5, top), 0)
    back = Slab((0.0, 0.0, top), (0.06, 0.5, top + 0.6), 2)
    return [seat, *_legs(0.5, 0.5, height, 0.05), back]


def _mug(u: Sequence[Tensor]) -> Pieces:
    height = _between(u[0], 0.8, 1.2)
    # The handle begins where its middle line leaves the wall, a little more than half a turn.
    handle, wall = height * 0.3, 0.45
    return [
        ring(0.0, height, wall, wall, 0),
        disc(0.0, wall, 1),
        arc((wall, 0.0, height * 0.5), handle, 0.06, (-0.25, 0.5), 2),
    ]


def _cross(u: Sequence[Tensor]) -> Pieces:
    half = _between(u[0], 0.15, 0.3) * 0.5
    pieces: Pieces = [Slab((-half, -half, -0.7), (half, half, 0.7), 0)]
    for axis in (0, 1):
        for near, far in ((-0.7, -half), (half, 0.7)):
            low, high = [-half] * 3, [half] * 3
            low[axis], high[axis] = near, far
            pieces.append(Slab(tuple(low), tuple(high), 1))
    return pieces


def _stairs(u: Sequence[Tensor]) -> Pieces:
    """3 to 5 steps in a flight 1 long, 1 high and .8 wide; steps not there have no area."""
    most = 5
    count = torch.floor(u[0] * 3.0) + 3.0
    step = torch.ones_like(count) / count
    width, zero = 0.8, 0.0
    pieces: Pieces = [
        patch((zero, zero, zero), (1.0, zero, zero), (zero, width, zero), 2),
        patch((1.0, zero, zero), (zero, width, zero), (zero, zero, 1.0), 2),
    ]
    for i in range(most):
        here = (count > i).to(count.dtype)
        run, low, high = step * here, step * i, step * (i + 1)
        pieces += [
            patch((low, zero, high), (run, zero, zero), (zero, width, zero), 0),
            patch((low, zero, low), (zero, width, zero), (zero, zero, run), 1),
            patch((low, zero, zero), (run, zero, zero), (zero, zero, high), 2),
            patch((low, width, zero), (run, zero, zero), (zero, zero, high), 2),
        ]
    return pieces


SHAPES: dict[str, Shape] = {
    "sphere": Shape(("surface",), _sphere),
    "ellipsoid": Shape(("surface",), _ellipsoid),
    "box": Shape(("surface",), _box),
    "cylinder": Shape(("side", "caps"), _cylinder),
    "cone": Shape(("side", "base"), _cone),
    "frustum": Shape(("side", "ends"), _frustum),
    "torus": Shape(("surface",), _torus),
    "capsule": Shape(("body", "ends"), _capsule),
    "pyramid": Shape(("sides", "base"), _pyramid),
    "bracket": Shape(("base", "upright"), _bracket),
    "helix": Shape(("tube",), _helix),
    "table": Shape(("top", "legs"), _table),
    "chair": Shape(("seat", "legs", "back"), _chair),
    "mug": Shape(("wall", "bottom", "handle"), _mug),
    "cross": Shape(("post", "arms"), _cross),
    "stairs": Shape(("treads", "risers", "body"), _stairs),
}
