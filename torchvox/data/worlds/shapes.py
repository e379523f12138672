# SPDX-License-Identifier: Apache-2.0
"""Sixteen parametric shapes with part labels: a data set for classification and part segmentation
that anyone can generate.

Sample i of a split is a cloud of class i mod 16. Every number of it is a function of (seed, split,
i), so it comes out the same alone or in a batch, in any worker, on the CPU and on the GPU, bit for
bit. recipes.py holds the shapes, surfaces.py draws the points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device, Split
from torchvox.data.portable_math import mean, sin_cos, sqrt
from torchvox.data.worlds.recipes import PARAMETERS, SHAPES
from torchvox.data.worlds.surfaces import sample, take
from torchvox.ops.mistakes import naming_mistakes

CLASSES: tuple[str, ...] = tuple(SHAPES)
# Parts are counted through: class c has those from PART_OFFSETS[c] to before PART_OFFSETS[c + 1].
PART_OFFSETS = (0, *accumulate(len(shape.parts) for shape in SHAPES.values()))
PARTS = tuple(f"{name} {part}" for name, shape in SHAPES.items() for part in shape.parts)
SIZES = {"train": 200 * len(CLASSES), "val": 40 * len(CLASSES)}

SURPLUS = 1.6  # surface points per point of the cloud, before some are cut off
SCALE = (0.75, 1.33)  # of each axis
TILT_TURNS = 0.12 / (2 * math.pi)  # standard deviation of the tilt about each axis
SHOWN = (0.7, 1.0)  # share of the points left by the cut along a random direction
NOISE = 0.01  # standard deviation, before scaling to the unit sphere


@naming_mistakes
def generate_shapes(
    samples: Sequence[int] | Tensor,
    *,
    points: int = 1024,
    seed: int = 0,
    split: str = "train",
    device: Device = "cpu",
) -> dict[str, Tensor]:
    """Clouds of the given samples, in one batch.

    samples: B numbers >= 0, such as range(60). points: N >= 1 per cloud.
    Returns points [B, N, 3] float32, z up, centered and inside the unit sphere; label [B] int64, a
    number of CLASSES; parts [B, N] int64, numbers of PARTS; id [B] int64, the samples.
    """
    numbers = [int(i) for i in samples]
    least = min(numbers, default=0)
    rule = "generate_shapes: points must be >= 1 and samples >= 0"
    expect(points > 0 and least >= 0, rule, (points, least))
    ids = torch.tensor(numbers, dtype=torch.int64, device=device)
    clouds = torch.empty(len(numbers), points, 3, dtype=torch.float32, device=device)
    parts = torch.empty(len(numbers), points, dtype=torch.int64, device=device)
    for label, name in enumerate(CLASSES):
        rows = [row for row, number in enumerate(numbers) if number % len(CLASSES) == label]
        if rows:
            at = torch.tensor(rows, device=device)
            xyz, part = _clouds(name, Draws(seed, split, ids[at]), points)
            clouds[at] = xyz.to(torch.float32)
            parts[at] = part + PART_OFFSETS[label]
    return {"points": clouds, "label": ids % len(CLASSES), "parts": parts, "id": ids}


class Shapes(Split):
    """The shapes as a torch data set of samples {points, label, parts, id}. options: points and
    seed, see generate_shapes."""

    make, sizes = staticmethod(generate_shapes), SIZES


def _clouds(name: str, draws: Draws, count: int) -> tuple[Tensor, Tensor]:
    """Clouds of one class: xyz [B, count, 3] float64 and part [B, count]."""
    pieces = SHAPES[name].pieces(draws.uniform("shape", PARAMETERS).unbind(1))
    xyz, part = sample(pieces, draws, math.ceil(count * SURPLUS))
    xyz, part = _cut(_pose(xyz, draws), part, draws, count)
    xyz = xyz + draws.normal("noise", count * 3).view(-1, count, 3) * NOISE
    xyz = xyz - mean(xyz)
    x, y, z = xyz.unbind(-1)
    radius = sqrt(x * x + y * y + z * z).amax(1)
    return xyz / radius.clamp(min=1e-12)[:, None, None], part


def _pose(xyz: Tensor, draws: Draws) -> Tensor:
    """Stretch along each axis, turn about z freely, tilt a little about x, y and z."""
    u = draws.uniform("pose", 4)
    xyz = xyz * (u[:, None, :3] * (SCALE[1] - SCALE[0]) + SCALE[0])
    tilt = draws.normal("tilt", 3) * TILT_TURNS
    columns = list(xyz.unbind(-1))
    for axis, turns in ((2, u[:, 3]), (0, tilt[:, 0]), (1, tilt[:, 1]), (2, tilt[:, 2])):
        sine, cosine = (value[:, None] for value in sin_cos(turns))
        i, j = (axis + 1) % 3, (axis + 2) % 3
        a, b = columns[i], columns[j]
        columns[i], columns[j] = cosine * a - sine * b, sine * a + cosine * b
    return torch.stack(columns, -1)


def _cut(xyz: Tensor, part: Tensor, draws: Draws, count: int) -> tuple[Tensor, Tensor]:
    """Hide the far end along a random direction, then keep `count` of the points left.

    The points come in random order, so the first ones are a random choice.
    """
    x, y, z = (xyz * draws.normal("cut direction", 3)[:, None]).unbind(-1)
    share = draws.uniform("cut", 1) * (SHOWN[1] - SHOWN[0]) + SHOWN[0]
    kept = torch.floor(share * xyz.shape[1]).to(torch.int64)
    rank = (x + y + z).argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    hidden = rank >= kept.clamp(min=count)
    return take(xyz, hidden, count), take(part, hidden, count)
