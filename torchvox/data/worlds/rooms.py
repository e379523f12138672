# SPDX-License-Identifier: Apache-2.0
"""Blocks of generated rooms for semantic segmentation, in the form and with the classes of S3DIS.

Eight samples share a room. Sample i of a split is a column of `block` x `block` meters of room i
div 8; every number of it is a function of (seed, split, i), on any device and in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.data.counter_random import Draws
from torchvox.data.generated import Device, Split
from torchvox.data.worlds.furniture import CLASSES, COLORS, Block, Room, furnish
from torchvox.data.worlds.surfaces import SPARE, columns, pick_by_weight, take
from torchvox.ops.mistakes import naming_mistakes

FEATURES = ("x", "y", "z", "red", "green", "blue", "x in room", "y in room", "z in room")
SAMPLES_PER_ROOM = 8
SIZES = {"train": 1024, "val": 256}
NOISE = 0.006  # standard deviation in meters
AT_FURNITURE = 0.6  # share of blocks around a piece of furniture instead of anywhere
GLASS = 0.4  # share of points that a window returns
VARIATION, GRAIN = 0.10, 0.03  # standard deviations of color, per block and per point


@naming_mistakes
def generate_rooms(
    samples: Sequence[int] | Tensor,
    *,
    points: int = 4096,
    block: float = 1.0,
    seed: int = 0,
    split: str = "train",
    device: Device = "cpu",
) -> dict[str, Tensor]:
    """Blocks of the given samples, in one batch.

    samples: B numbers >= 0, such as range(60). points: N >= 1 per block. block: its side in meters.
    Returns points [B, N, 9] float32, see FEATURES: meters from the block's middle and from the
    floor, colors 0..1, place in the room 0..1; labels [B, N] int64, numbers of CLASSES; id [B].
    """
    numbers = [int(i) for i in samples]
    least = min(numbers, default=0)
    rule = "generate_rooms: points must be >= 1, block in (0, 3] and samples >= 0"
    expect(points > 0 and 0 < block <= 3 and least >= 0, rule, (points, block, least))
    ids = torch.tensor(numbers, dtype=torch.int64, device=device)
    here = Draws(seed, split, ids)
    of_room = Draws(seed, split, torch.div(ids, SAMPLES_PER_ROOM, rounding_mode="floor"))
    room, blocks = furnish(of_room)
    kinds = torch.tensor([CLASSES.index(b.kind) for b in blocks], device=device)
    low, high = _corners(blocks, here)
    middle = _middle(here, room, low, high, block)
    xyz, owner = _surface(here, low, high, middle, block, kinds, points)
    xyz = xyz + here.normal("noise", points * 3).view(-1, points, 3) * NOISE
    color = _colors(of_room, kinds)
    color = color.gather(1, owner[..., None].expand(-1, -1, 3))
    color = color + here.normal("grain", points * 3).view(-1, points, 3) * GRAIN
    size = torch.stack(room.size, 1)[:, None]
    offset = torch.cat([middle, torch.zeros_like(middle[:, :1])], 1)[:, None]
    features = torch.cat([xyz - offset, color.clamp(0.0, 1.0), xyz / size], -1)
    return {"points": features.to(torch.float32), "labels": kinds[owner], "id": ids}


class Rooms(Split):
    """Blocks of generated rooms as a torch data set of samples {points, labels, id}. options:
    points, block and seed, see generate_rooms."""

    make, sizes = staticmethod(generate_rooms), SIZES


def _corners(blocks: list[Block], draws: Draws) -> tuple[Tensor, Tensor]:
    """[B, K, 3] low and high corners; a block that the room lacks shrinks to its low corner."""
    low, high = (
        torch.stack([columns(corner, draws) for corner in corners], 1)
        for corners in zip(*((block.low, block.high) for block in blocks), strict=True)
    )
    present = torch.stack([columns([block.present], draws) for block in blocks], 1)
    return low, torch.where(present > 0, high, low)


def _middle(here: Draws, room: Room, low: Tensor, high: Tensor, block: float) -> Tensor:
    """[B, 2] middle of the block in x and y, the whole block inside the room."""
    u = here.uniform("block", 6)
    size = torch.stack(room.size[:2], 1)
    anywhere = u[:, 0:2] * size
    index = torch.floor(u[:, 2:3] * float(low.shape[1])).to(torch.int64)
    index = index[..., None].expand(-1, -1, 2)
    about = (low[..., :2].gather(1, index) + high[..., :2].gather(1, index))[:, 0] * 0.5
    about = about + (u[:, 3:5] - 0.5) * block
    middle = torch.where(u[:, 5:6] < AT_FURNITURE, about, anywhere)
    edge = torch.full_like(size, block * 0.5)
    return torch.minimum(torch.maximum(middle, edge), size - edge)


def _surface(
    here: Draws, low: Tensor, high: Tensor, middle: Tensor, block: float, kinds: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Points [B, count, 3] on the visible faces of boxes inside the block, and the points' boxes
    [B, count]. Faces are cut to the block first, so that no point is drawn outside of it."""
    batch, drawn = len(low), math.ceil(count * SPARE)
    near, far = low.clone(), high.clone()
    near[..., :2] = torch.maximum(low[..., :2], (middle - block * 0.5)[:, None])
    far[..., :2] = torch.minimum(high[..., :2], (middle + block * 0.5)[:, None])
    inside = (far >= near).all(-1)
    size = (far - near).clamp(min=0.0)
    x, y, z = size.unbind(-1)
    area = torch.stack([y * z, y * z, x * z, x * z, x * y, x * y], -1)  # [B, K, 6]
    whole = torch.stack([low, high], -1).flatten(2)  # x low, x high, y low, .. of the faces' planes
    cut = torch.stack([near, far], -1).flatten(2)
    visible = (whole == cut) & inside[..., None]
    # Points per area differ, since real scans never cover surfaces evenly.
    density = here.uniform("density", len(kinds)) * 0.8 + 0.6
    density = torch.where(kinds == CLASSES.index("window"), density * GLASS, density)
    area = torch.where(visible, area, 0.0) * density[..., None]
    area[:, 0, :5] = 0.0  # of the floor only the top, of the ceiling only the bottom
    area[:, 1, [0, 1, 2, 3, 5]] = 0.0
    u = here.uniform("surface", drawn * 4).view(batch, drawn, 4)
    face = pick_by_weight(area.flatten(1), u[..., 0].contiguous())
    owner, side = torch.div(face, 6, rounding_mode="floor"), face % 6
    index = owner[..., None].expand(-1, -1, 3)
    xyz = near.gather(1, index) + size.gather(1, index) * u[..., 1:]
    plane = whole.flatten(1).gather(1, face)
    axes = torch.arange(3, device=side.device)
    axis = torch.div(side, 2, rounding_mode="floor")[..., None] == axes
    xyz = torch.where(axis, plane[..., None], xyz)
    outward = (side % 2 * 2 - 1).to(xyz.dtype)[..., None] * axis
    hidden = _hidden(xyz + outward * 1e-6, low, high)
    return take(xyz, hidden, count), take(owner, hidden, count)


def _hidden(probe: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """[B, N]: inside a box. One box at a time keeps the memory at that of the points."""
    hidden = torch.zeros(probe.shape[:2], dtype=torch.bool, device=probe.device)
    for k in range(low.shape[1]):
        inside = (probe > low[:, k : k + 1]) & (probe < high[:, k : k + 1])
        hidden |= inside[..., 0] & inside[..., 1] & inside[..., 2]
    return hidden


def _colors(room: Draws, kinds: Tensor) -> Tensor:
    """[B, K, 3] color of each block of the room."""
    base = torch.tensor([COLORS[name] for name in CLASSES], dtype=torch.float64)
    shade = room.normal("colour", len(kinds) * 3).view(-1, len(kinds), 3) * VARIATION
    return base.to(room.device)[kinds] + shade
