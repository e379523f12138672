# SPDX-License-Identifier: Apache-2.0
"""The sixteen shapes: which pieces each is made of, from uniform numbers of its sample.

z is up. Lengths are relative: clouds are scaled to the unit sphere in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from torchvox.data.worlds import surfaces
from torchvox.data.worlds.surfaces import Piece, Slab, arc, disc, dome, patch, ring, triangle

PARAMETERS = 4  # uniform numbers that a shape may use
Pieces = list[Piece | Slab]


@dataclass(frozen=True)
class Shape:
    """parts: names of its parts. build: its parameters, [B] each, to its pieces. ranges: least and
    largest value of each parameter."""

    parts: tuple[str, ...]
    build: Callable[..., Pieces]
    ranges: tuple[tuple[float, float], ...] = ()

    def pieces(self, u: Sequence[Tensor]) -> Pieces:
        """The pieces of uniform numbers, PARAMETERS times [B]."""
        ranges = zip(u, self.ranges, strict=False)
        return self.build(*(one * (high - low) + low for one, (low, high) in ranges))


def _sphere() -> Pieces:
    return [dome(0.0, 1.0, 1, 0), dome(0.0, 1.0, -1, 0)]


def _ellipsoid(y: Tensor, z: Tensor) -> Pieces:
    return [surfaces.ellipsoid((1.0, y, z), 0)]


def _box(y: Tensor, z: Tensor) -> Pieces:
    return [Slab((0.0, 0.0, 0.0), (1.0, y, z), 0)]


def _cylinder(height: Tensor) -> Pieces:
    return [ring(0.0, height, 0.5, 0.5, 0), disc(0.0, 0.5, 1), disc(height, 0.5, 1)]


def _cone(height: Tensor) -> Pieces:
    # Upside down, since a ring's high end must have a radius; the height is negative instead.
    return [ring(height, -height, 0.0, 0.6, 0), disc(0.0, 0.6, 1)]


def _frustum(top: Tensor, height: Tensor) -> Pieces:
    return [ring(0.0, height, 0.6, top, 0), disc(0.0, 0.6, 1), disc(height, top, 1)]


def _torus(tube: Tensor) -> Pieces:
    return [arc((0.0, 0.0, 0.0), 1.0, tube, (0.0, 1.0), 0)]


def _capsule(body: Tensor) -> Pieces:
    return [ring(0.0, body, 0.4, 0.4, 0), dome(body, 0.4, 1, 1), dome(0.0, 0.4, -1, 1)]


def _pyramid(height: Tensor) -> Pieces:
    corners = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    pieces: Pieces = [patch((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), 1)]
    for (x, y), (next_x, next_y) in zip(corners, corners[1:] + corners[:1], strict=True):
        edge, rise = (next_x - x, next_y - y, 0.0), (0.5 - x, 0.5 - y, height)
        pieces.append(triangle((x, y, 0.0), edge, rise, 0))
    return pieces


def _bracket(thick: Tensor) -> Pieces:
    base = Slab((0.0, 0.0, 0.0), (1.0, 0.5, thick), 0)
    return [base, Slab((0.0, 0.0, thick), (thick, 0.5, 1.0), 1)]


def _helix(turns: Tensor) -> Pieces:
    return [surfaces.coil(0.5, 1.6, turns, 0.05, 0)]


def _legs(width: Tensor | float, depth: Tensor | float, height: Tensor, side: float) -> list[Slab]:
    """Four legs under the corners of a board."""
    places = product((0.0, width - side), (0.0, depth - side))
    return [Slab((x, y, 0.0), (x + side, y + side, height), 1) for x, y in places]


def _table(depth: Tensor, height: Tensor) -> Pieces:
    top = Slab((0.0, 0.0, height), (1.0, depth, height + 0.06), 0)
    return [top, *_legs(1.0, depth, height, 0.06)]


def _chair(height: Tensor) -> Pieces:
    top = height + 0.06
    seat = Slab((0.0, 0.0, height), (0.5, 0.5, top), 0)
    back = Slab((0.0, 0.0, top), (0.06, 0.5, top + 0.6), 2)
    return [seat, *_legs(0.5, 0.5, height, 0.05), back]


def _mug(height: Tensor) -> Pieces:
    wall = 0.45
    # The handle begins where its middle line leaves the wall, a little more than half a turn.
    handle = arc((wall, 0.0, height * 0.5), height * 0.3, 0.06, (-0.25, 0.5), 2)
    return [ring(0.0, height, wall, wall, 0), disc(0.0, wall, 1), handle]


def _cross(thick: Tensor) -> Pieces:
    half = thick * 0.5
    pieces: Pieces = [Slab((-half, -half, -0.7), (half, half, 0.7), 0)]
    for axis in (0, 1):
        for near, far in ((-0.7, -half), (half, 0.7)):
            low, high = [-half] * 3, [half] * 3
            low[axis], high[axis] = near, far
            pieces.append(Slab(tuple(low), tuple(high), 1))
    return pieces


def _stairs(more: Tensor) -> Pieces:
    """3 to 5 steps in a flight 1 long, 1 high and .8 wide; steps not there have no area."""
    most, width, zero = 5, 0.8, 0.0
    count = torch.floor(more) + 3.0
    step = torch.ones_like(count) / count
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


SHAPES = {
    "sphere": Shape(("surface",), _sphere),
    "ellipsoid": Shape(("surface",), _ellipsoid, ((0.35, 0.6), (0.35, 0.6))),
    "box": Shape(("surface",), _box, ((0.5, 1), (0.5, 1))),
    "cylinder": Shape(("side", "caps"), _cylinder, ((0.7, 2),)),
    "cone": Shape(("side", "base"), _cone, ((0.8, 1.8),)),
    "frustum": Shape(("side", "ends"), _frustum, ((0.25, 0.4), (0.7, 1.6))),
    "torus": Shape(("surface",), _torus, ((0.15, 0.4),)),
    "capsule": Shape(("body", "ends"), _capsule, ((0.8, 1.8),)),
    "pyramid": Shape(("sides", "base"), _pyramid, ((0.7, 1.4),)),
    "bracket": Shape(("base", "upright"), _bracket, ((0.15, 0.3),)),
    "helix": Shape(("tube",), _helix, ((2, 4),)),
    "table": Shape(("top", "legs"), _table, ((0.6, 1), (0.5, 0.9))),
    "chair": Shape(("seat", "legs", "back"), _chair, ((0.4, 0.5),)),
    "mug": Shape(("wall", "bottom", "handle"), _mug, ((0.8, 1.2),)),
    "cross": Shape(("post", "arms"), _cross, ((0.15, 0.3),)),
    "stairs": Shape(("treads", "risers", "body"), _stairs, ((0, 3),)),
}
