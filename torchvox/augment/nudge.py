# SPDX-License-Identifier: Apache-2.0
"""Single objects that are shifted and turned a little where they stand (Lang et al., PointPillars,
CVPR 2019; ObjectNoise of mmdetection3d)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.augment.objects import rows_of
from torchvox.augment.whole import Scans, turned
from torchvox.data.counter_random import Draws, mix
from torchvox.data.portable_math import sin_cos
from torchvox.ops.boxes import place_boxes, points_in_boxes


@dataclass(frozen=True)
class Nudge:
    """Moves every box, from first to last, by the first of `tries` random moves with which it
    overlaps no other box at its current place; if all overlap, it stays.

    shift: standard deviation in meters, on each axis. turn: largest angle in radians, either way.
    """

    shift: float = 0.25
    turn: float = math.pi / 20
    tries: int = 100

    def __post_init__(self) -> None:
        good = 0 <= self.shift < math.inf and 0 <= self.turn <= math.pi and self.tries > 0
        rule = "Nudge: shift must be 0 or more, turn from 0 to pi, tries above 0"
        expect(good, rule, (self.shift, self.turn, self.tries))

    def __call__(
        self, points: Tensor, boxes: Tensor, num_boxes: Tensor, ids: Tensor, step: Tensor, seed: int
    ) -> Scans:
        """Changed copies of points [B, N, C] and boxes [B, G, 7 or 9], both float32.

        Points in a box move with it, points in two boxes with the first; velocities turn too.
        num_boxes: [B] int32. ids: [B] int64, of the scans; step: [] or [1] int64: draws depend on
        these and the seed alone. CPU and CUDA give the same bits, without a host synchronization.
        """
        shape, count = (*boxes.shape[:2], self.tries), boxes.size(1) * self.tries
        draws = Draws(seed, "nudge", mix(mix(ids.long()) + step.long()))
        angles = (draws.uniform("turn", count).view(shape) * 2.0 - 1.0) * self.turn
        shifts = draws.normal("shift", 3 * count).view(*shape, 3) * self.shift
        tries = boxes[:, :, None].repeat(1, 1, self.tries, 1)
        tries[..., :3] += shifts.to(boxes.dtype)
        tries[..., 6] += angles.to(boxes.dtype)
        number = torch.arange(boxes.size(1), device=boxes.device)
        own = torch.where(number < num_boxes[:, None], number, -1)
        choice = place_boxes(boxes, tries, own, num_boxes, replaces=own).long()[..., None]

        moves, at = choice >= 0, choice.clamp(min=0)
        chosen = tries.gather(2, at[..., None].expand(-1, -1, -1, boxes.size(2))).squeeze(2)
        turns = sin_cos(angles.gather(2, at).squeeze(2) * (0.5 / math.pi))
        sine, cosine = (value.to(boxes.dtype) for value in turns)
        moved = torch.where(moves, turned(chosen, (cosine, sine), 7), boxes)
        table = [boxes[..., :3], moved[..., :3], cosine[..., None], sine[..., None], moves]
        owner = points_in_boxes(points, boxes, box_lengths=num_boxes).long()
        rows = rows_of(torch.cat(table, -1), owner).split([3, 3, 1, 1, 1], -1)
        around = points.clone()
        around[..., :3] -= rows[0]
        around = turned(around, (rows[2][..., 0], rows[3][..., 0]), 0)
        around[..., :3] += rows[1]
        return torch.where(rows[4] > 0, around, points), moved
