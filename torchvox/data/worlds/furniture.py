# SPDX-License-Identifier: Apache-2.0
"""Rooms as boxes: walls, openings and furniture with the 13 classes of S3DIS.

A room reaches from (0, 0, 0) to (width, depth, height), in meters. A furnished room is a list of
blocks; blocks that a room lacks have no size. Every number comes from the room's own draws.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from torchvox.data.counter_random import Draws
from torchvox.data.worlds.surfaces import Value

COLORS = {  # red, green, blue of each class
    "ceiling": (0.86, 0.86, 0.84),
    "floor": (0.52, 0.47, 0.41),
    "wall": (0.78, 0.76, 0.70),
    "beam": (0.72, 0.70, 0.66),
    "column": (0.70, 0.69, 0.67),
    "window": (0.62, 0.72, 0.82),
    "door": (0.55, 0.42, 0.30),
    "table": (0.58, 0.46, 0.34),
    "chair": (0.30, 0.32, 0.38),
    "sofa": (0.45, 0.30, 0.28),
    "bookcase": (0.50, 0.40, 0.30),
    "board": (0.90, 0.91, 0.92),
    "clutter": (0.50, 0.50, 0.50),
}
CLASSES = tuple(COLORS)
THICK = 0.1  # of walls, floor and ceiling, outside the room
Corner = tuple[Value, Value, Value]
Span = tuple[Value, Value]
Limits = tuple[float, float]


@dataclass(frozen=True)
class Block:
    """Box from low to high, each (x, y, z) of [R] tensors or numbers; present: [R] bool or True."""

    kind: str
    low: Corner
    high: Corner
    present: Tensor | bool = True


@dataclass(frozen=True)
class Room:
    """Dice of some rooms: every call of u() gives fresh uniform numbers [R]."""

    size: tuple[Tensor, Tensor, Tensor]
    numbers: list[Tensor]

    def u(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        return self.numbers.pop() * (high - low) + low

    def chance(self, share: float) -> Tensor:
        return self.numbers.pop() < share


def furnish(draws: Draws) -> tuple[Room, list[Block]]:
    """Rooms of the draws' samples."""
    numbers = list(draws.uniform("room", 128).unbind(1))
    dice = Room((numbers[0],) * 3, numbers)
    size = dice.u(4.0, 8.0), dice.u(3.5, 6.5), dice.u(2.5, 3.2)
    room = replace(dice, size=size)
    first = torch.floor(room.u(0, 4)).to(torch.int64)  # the walls take turns
    blocks = _shell(room) + _structure(room)
    blocks += [_flat(room, first, "door", (0.8, 1.0), (0.0, 2.05), 0.04, 1.0)]
    blocks += [_flat(room, first + 1, "board", (1.2, 2.4), (0.9, 2.0), 0.03, 0.6)]
    blocks += [_flat(room, first + 2, "window", (1.0, 1.8), (0.95, 2.1), 0.02, 0.8)]
    blocks += _sofa(room, first + 2) + _bookcase(room, first + 3) + _table_group(room)
    width, depth, _ = room.size
    for _ in range(3):  # boxes left on the floor
        x, y = room.u(0.2, 0.8) * width, room.u(0.2, 0.8) * depth
        high = (x + room.u(0.15, 0.4), y + room.u(0.15, 0.4), room.u(0.1, 0.5))
        blocks.append(Block("clutter", (x, y, 0.0), high, room.chance(0.7)))
    return room, blocks


def _shell(room: Room) -> list[Block]:
    width, depth, height = room.size
    left, right, near, far = -THICK, width + THICK, -THICK, depth + THICK
    return [
        Block("floor", (left, near, -THICK), (right, far, 0.0)),
        Block("ceiling", (left, near, height), (right, far, height + THICK)),
        Block("wall", (left, near, 0.0), (right, 0.0, height)),
        Block("wall", (left, depth, 0.0), (right, far, height)),
        Block("wall", (left, 0.0, 0.0), (0.0, depth, height)),
        Block("wall", (width, 0.0, 0.0), (right, depth, height)),
    ]


def _structure(room: Room) -> list[Block]:
    """A beam across the ceiling and a column in a corner."""
    width, depth, height = room.size
    x, thick = room.u(0.2, 0.7) * width, room.u(0.2, 0.4)
    low = x, 0.0, height - room.u(0.2, 0.4)
    beam = Block("beam", low, (x + thick, depth, height), room.chance(0.5))
    side = room.u(0.3, 0.5)
    left = torch.where(room.chance(0.5), 0.0, width - side)
    near = torch.where(room.chance(0.5), 0.0, depth - side)
    high = (left + side, near + side, height)
    return [beam, Block("column", (left, near, 0.0), high, room.chance(0.5))]


def _at_wall(room: Room, wall: Tensor, along: Span, out: Span, z: Span) -> tuple[Corner, Corner]:
    """Corners of a box from its extent along a wall, away from it, and in height."""
    width, depth, _ = room.size
    wall = wall & 3
    along_x, far = (wall & 1) == 0, wall >= 2
    other = torch.where(along_x, depth, width)
    low = torch.where(far, other - out[1], out[0])
    high = torch.where(far, other - out[0], out[1])
    x = torch.where(along_x, along[0], low), torch.where(along_x, along[1], high)
    y = torch.where(along_x, low, along[0]), torch.where(along_x, high, along[1])
    return (x[0], y[0], z[0]), (x[1], y[1], z[1])


def _place(room: Room, wall: Tensor, length: Tensor) -> Tensor:
    """Where along the wall something of this length begins, clear of the corners."""
    width, depth, _ = room.size
    whole = torch.where((wall & 1) == 0, width, depth)
    return room.u(0.15, 0.85) * (whole - length)


def _flat(
    room: Room, wall: Tensor, kind: str, lengths: Limits, z: Limits, out: float, chance: float
) -> Block:
    """Something flat on a wall."""
    length = room.u(*lengths)
    start = _place(room, wall, length)
    shift = room.u(-0.1, 0.1) if z[0] > 0 else 0.0
    extent = (start, start + length), (0.0, out), (z[0] + shift, z[1] + shift)
    return Block(kind, *_at_wall(room, wall, *extent), room.chance(chance))


def _sofa(room: Room, wall: Tensor) -> list[Block]:
    length, seat = room.u(1.4, 2.0), room.u(0.38, 0.45)
    start, deep, arm = _place(room, wall, length), room.u(0.75, 0.95), 0.18
    here, end = room.chance(0.6), start + length
    extents = [
        ((start + arm, end - arm), (0.22, deep), (0.0, seat)),
        ((start + arm, end - arm), (0.0, 0.22), (0.0, seat + 0.4)),
        ((start, start + arm), (0.0, deep), (0.0, seat + 0.2)),
        ((end - arm, end), (0.0, deep), (0.0, seat + 0.2)),
    ]
    return [Block("sofa", *_at_wall(room, wall, *extent), here) for extent in extents]


def _bookcase(room: Room, wall: Tensor) -> list[Block]:
    length, tall, deep = room.u(0.8, 1.6), room.u(1.2, 2.1), room.u(0.28, 0.4)
    start, board = _place(room, wall, length), 0.03
    here, end = room.chance(0.7), start + length
    extents = [
        ((start, end), (0.0, board), (0.0, tall)),
        ((start, start + board), (board, deep), (0.0, tall)),
        ((end - board, end), (board, deep), (0.0, tall)),
    ]
    for z in ((tall - board) * (i / 3) for i in range(4)):
        extents.append(((start + board, end - board), (board, deep), (z, z + board)))
    return [Block("bookcase", *_at_wall(room, wall, *extent), here) for extent in extents]


def _table_group(room: Room) -> list[Block]:
    """A table with a chair on either long side and things on it, turned by 0 or 90 degrees."""
    width, depth, _ = room.size
    x = room.u(0.3, 0.7) * width
    y = room.u(0.35, 0.65) * depth
    turned = room.chance(0.5)
    long, deep, top = room.u(1.1, 1.8), room.u(0.6, 0.9), room.u(0.68, 0.78)
    here, leg = room.chance(0.8), 0.06
    half_long, half_deep = long * 0.5, deep * 0.5
    board = (-half_long, -half_deep, top - 0.04), (half_long, half_deep, top)
    local = [Block("table", *board, here)]
    for i, j in product((-half_long, half_long - leg), (-half_deep, half_deep - leg)):
        local.append(Block("table", (i, j, 0.0), (i + leg, j + leg, top - 0.04), here))
    for side in (-1.0, 1.0):
        local += _chair(room, half_long, half_deep, side)
    for _ in range(3):
        i, j = room.u(-0.8, 0.5) * half_long, room.u(-0.8, 0.5) * half_deep
        high = (i + room.u(0.08, 0.3), j + room.u(0.08, 0.25), top + room.u(0.05, 0.35))
        local.append(Block("clutter", (i, j, top), high, here & room.chance(0.7)))
    ends = [[_moved(corner, x, y, turned) for corner in (b.low, b.high)] for b in local]
    return [replace(b, low=low, high=high) for b, (low, high) in zip(local, ends, strict=True)]


def _chair(room: Room, half_long: Tensor, half_deep: Tensor, side: float) -> list[Block]:
    """A chair that faces the table, in the table's frame."""
    wide, seat, gap = 0.45, room.u(0.42, 0.48), room.u(-0.15, 0.3)
    i = room.u(-0.9, 0.9) * (half_long - wide * 0.5) - wide * 0.5
    near, here, leg = half_deep + gap, room.chance(0.8), 0.04
    spans = [((0.0, wide), (0.0, wide), (seat - 0.05, seat))]
    spans.append(((0.0, wide), (wide - 0.05, wide), (seat, seat + room.u(0.35, 0.5))))
    for a, b in product((0.0, wide - leg), repeat=2):
        spans.append(((a, a + leg), (b, b + leg), (0.0, seat - 0.05)))
    blocks = []
    for along, away, z in spans:
        ends = near + away[0], near + away[1]
        low_j, high_j = ends if side > 0 else (-ends[1], -ends[0])
        low, high = (i + along[0], low_j, z[0]), (i + along[1], high_j, z[1])
        blocks.append(Block("chair", low, high, here))
    return blocks


def _moved(corner: Corner, x: Tensor, y: Tensor, turned: Tensor) -> Corner:
    """From the table's frame to the room's; turning swaps the axes, which keeps boxes boxes."""
    i, j = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in corner[:2])
    return x + torch.where(turned, j, i), y + torch.where(turned, i, j), corner[2]
