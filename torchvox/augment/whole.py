# SPDX-License-Identifier: Apache-2.0
"""Mirror, turn, scale and shift whole scans, points and boxes together.

points: [B, N, C] float32, x, y, z first; rows of NaN stay so. boxes: [B, G, 7] float32 (x, y, z of
the center, l, w, h, yaw) or [B, G, 9] with velocities vx, vy. Functions return new tensors;
yaws may leave [-pi, pi). CPU and CUDA give the same bits, without a host synchronization.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.data.counter_random import Draws, mix
from torchvox.data.portable_math import sin_cos

Scans = tuple[Tensor, Tensor]


def flip_y(points: Tensor, boxes: Tensor, on: Tensor) -> Scans:
    """Scans mirrored where `on` [B] bool: y, yaw and vy change sign."""
    sign = _sign(on)
    moved = _columns(boxes, {1: sign, 6: sign, 8: sign})
    return _columns(points, {1: sign}), moved


def flip_x(points: Tensor, boxes: Tensor, on: Tensor) -> Scans:
    """Scans mirrored where `on` [B] bool: x and vx change sign, yaw becomes pi - yaw."""
    sign = _sign(on)
    moved = _columns(boxes, {0: sign, 6: sign, 7: sign})
    half = torch.where(on, math.pi, 0.0).to(boxes.dtype)
    moved[..., 6] = moved[..., 6] + half[:, None]
    return _columns(points, {0: sign}), moved


def turn(points: Tensor, boxes: Tensor, angle: Tensor) -> Scans:
    """Scans turned about z by angles [B] in radians, counterclockwise from above."""
    sine, cosine = sin_cos(angle.double() * (0.5 / math.pi))
    matrix = cosine.to(points.dtype)[:, None], sine.to(points.dtype)[:, None]
    boxes = turned(turned(boxes, matrix, 0), matrix, 7)
    boxes[..., 6] = boxes[..., 6] + angle.to(boxes.dtype)[:, None]
    return turned(points, matrix, 0), boxes


def scale(points: Tensor, boxes: Tensor, factor: Tensor) -> Scans:
    """Scans scaled by factors [B]: positions, sizes and velocities."""
    by = factor.to(points.dtype)
    moved = _columns(boxes, dict.fromkeys((0, 1, 2, 3, 4, 5, 7, 8), by))
    return _columns(points, dict.fromkeys(range(3), by)), moved


def shift(points: Tensor, boxes: Tensor, offset: Tensor) -> Scans:
    """Scans shifted by offsets [B, 3] in meters."""
    by = offset.to(points.dtype)[:, None]
    points, boxes = points.clone(), boxes.clone()
    points[..., :3] = points[..., :3] + by
    boxes[..., :3] = boxes[..., :3] + by
    return points, boxes


@dataclass(frozen=True)
class WholeScan:
    """Random changes of whole scans, in the order flip_x, flip_y, turn, scale, shift.

    flip_x, flip_y: shares of the scans that are mirrored. turn: largest angle in radians, either
    way. scale: lowest and highest factor. shift: standard deviation in meters, on each axis.
    """

    flip_x: float = 0.0
    flip_y: float = 0.5
    turn: float = math.pi / 4
    scale: tuple[float, float] = (0.95, 1.05)
    shift: float = 0.0

    def __post_init__(self) -> None:
        shares = 0 <= self.flip_x <= 1 and 0 <= self.flip_y <= 1
        expect(shares, "WholeScan: flips must be from 0 to 1", (self.flip_x, self.flip_y))
        expect(0 <= self.turn <= math.pi, "WholeScan: turn must be from 0 to pi", self.turn)
        low, high = self.scale
        expect(0 < low <= high, "WholeScan: scale must be (low, high) above 0", self.scale)
        expect(0 <= self.shift < math.inf, "WholeScan: shift must be 0 or more", self.shift)

    def __call__(
        self, points: Tensor, boxes: Tensor, ids: Tensor, step: Tensor, seed: int
    ) -> Scans:
        """Changed copies, a function of (seed, step, ids) alone, whatever else is
        in the batch. ids: [B] int64, of the scans. step: [] or [1] int64, on the same device."""
        draws = Draws(seed, "augment", mix(mix(ids.long()) + step.long()))
        by_x, by_y, way, size = draws.uniforms("flip x", "flip y", "turn", "scale")
        if self.flip_x:
            points, boxes = flip_x(points, boxes, by_x < self.flip_x)
        if self.flip_y:
            points, boxes = flip_y(points, boxes, by_y < self.flip_y)
        if self.turn:
            points, boxes = turn(points, boxes, (way * 2.0 - 1.0) * self.turn)
        if self.scale != (1.0, 1.0):
            low, high = self.scale
            points, boxes = scale(points, boxes, size * (high - low) + low)
        if self.shift:
            points, boxes = shift(points, boxes, draws.normal("shift", 3) * self.shift)
        return points, boxes


def _sign(on: Tensor) -> Tensor:
    return 1.0 - 2.0 * on.float()


def _columns(rows: Tensor, factors: dict[int, Tensor]) -> Tensor:
    """Copies of rows [B, N, C] with columns, those that exist, multiplied by factors [B]."""
    rows = rows.clone()
    for column, factor in factors.items():
        if column < rows.size(-1):
            rows[..., column].mul_(factor[:, None])
    return rows


def turned(rows: Tensor, matrix: Scans, first: int) -> Tensor:
    """Copies of rows with columns `first` and `first` + 1, if they exist, turned as (x, y)."""
    rows = rows.clone()
    if first + 1 < rows.size(-1):
        (c, s), x, y = matrix, rows[..., first], rows[..., first + 1]
        both = c * x - s * y, s * x + c * y
        rows[..., first], rows[..., first + 1] = both
    return rows
