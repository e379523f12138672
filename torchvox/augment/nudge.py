# SPDX-License-Identifier: Apache-2.0
"""Single objects that are shifted and turned a little where they stand (Lang et al., PointPillars,
CVPR 2019; ObjectNoise of mmdetection3d)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchvox._errors import expect
from torchvox.augment.whole import Scans, turned
from torchvox.data.counter_random import Draws, mix
from torchvox.data.portable_math import sin_cos
from torchvox.ops.boxes import place_boxes, points_in_boxes


@dataclass(frozen=True)
class Nudge:
    """Moves every box, the first to the last, by the first of so many tries that overlaps no other
    box as they stand by then; without one it stays.

    shift: standard deviation in meters, on each axis. turn: largest angle in radians, either way.
    """

    shift: float = 0.25
    turn: float = math.pi / 20
    tries: int = 100

    def __post_init__(self) -> None:
        expect(0 <= self.shift < math.inf, "Nudge: shift must be 0 or more", self.shift)
        expect(0 <= self.turn <= math.pi, "Nudge: turn must be from 0 to pi", self.turn)
        expect(self.tries > 0, "Nudge: tries must be above 0", self.tries)

    def __call__(
        self,
        points: Tensor,
        boxes: Tensor,
        num_boxes: Tensor,
        ids: Tensor,
        step: Tensor,
        seed: int,
    ) -> Scans:
        """Changed copies of points [B, N, C] and boxes [B, G, 7 or 9], both float32.

        The points in a box move with it, those in two with the first, and its velocity turns along.
        num_boxes: [B] int32. What is drawn is a function of (seed, step, ids) alone. ids: [B]
        int64, of the scans. step: [] or [1] int64. CPU and CUDA give the same bits, and nothing
        waits for the device.
        """
        tries, angles = self._tries(boxes, Draws(seed, "nudge", mix(mix(ids.long()) + step.long())))
        number = torch.arange(boxes.size(1), device=boxes.device)
        own = torch.where(number < num_boxes[:, None], number, -1)
        choice = place_boxes(boxes, tries, own, num_boxes, replaces=own).long()[..., None]
        moves, at = choice >= 0, choice.clamp(min=0)
        chosen = tries.gather(2, at[..., None].expand(-1, -1, -1, boxes.size(2))).squeeze(2)
        sine, cosine = sin_cos(angles.gather(2, at).squeeze(2) * (0.5 / math.pi))
        matrix = cosine.to(boxes.dtype), sine.to(boxes.dtype)
        moved = torch.where(moves, turned(chosen, matrix, 7), boxes)
        table = torch.cat([boxes[..., :3], moved[..., :3], torch.stack(matrix, -1), moves], -1)
        owner = points_in_boxes(points, boxes, box_lengths=num_boxes).long()
        return _carried(points, owner, table), moved

    def _tries(self, boxes: Tensor, draws: Draws) -> Scans:
        """[B, G, T, 7 or 9] places of boxes, and [B, G, T] float64 how far they are turned."""
        shape = (*boxes.shape[:2], self.tries)
        count = boxes.size(1) * self.tries
        shift = draws.normal("shift", 3 * count).view(*shape, 3) * self.shift
        angles = (draws.uniform("turn", count).view(shape) * 2.0 - 1.0) * self.turn
        tries = boxes[:, :, None].repeat(1, 1, self.tries, 1)
        tries[..., :3] += shift.to(boxes.dtype)
        tries[..., 6] += angles.to(boxes.dtype)
        return tries, angles


def _carried(points: Tensor, owner: Tensor, table: Tensor) -> Tensor:
    """Copies of points with those of boxes moved. owner: [B, N] their boxes, -1 for none. table:
    [B, G, 9] old center, new center, cosine and sine, whether it moves."""
    table = torch.nn.functional.pad(table, (0, 0, 0, 1))  # a last row for points in no box
    rows = (owner % table.size(1))[..., None].expand(-1, -1, table.size(2))
    old, new, matrix, moves = table.gather(1, rows).split([3, 3, 2, 1], -1)
    around = points.clone()
    around[..., :3] -= old
    around = turned(around, matrix.unbind(-1), 0)
    around[..., :3] += new
    return torch.where(moves > 0, around, points)
