# SPDX-License-Identifier: Apache-2.0
"""Regions of 8 x 8 x 8 voxels outside of a map, and which of a map's lie where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchvox._errors import expect

KEY, LAYERS = 1, (2, 4, 5, 6, 7)  # of a state: region_key; what has a row for each region besides
NO_KEY = 2**63 - 1  # behind every key that there is


class MapRegions(NamedTuple):
    """Regions by ascending keys [n], a row of each layer. count: [1] int64, rows that are regions;
    the others' keys are -1."""

    keys: Tensor
    region_stamp: Tensor
    logodds: Tensor
    hit_miss: Tensor
    touch: Tensor
    traversal: Tensor
    count: Tensor


def read_regions(state: list[Tensor], mask: Tensor | None, exact: bool) -> MapRegions:
    """Copies of the regions of a mask [C] bool, or of all: as many rows as there are, with a host
    synchronization, or unless exact C rows."""
    keys = state[KEY]
    taken = keys >= 0
    if mask is not None:
        expect(mask.shape == keys.shape, f"OccupancyMap: mask must be [{len(keys)}]", mask.shape)
        taken = taken & mask
    count = taken.sum().view(1)
    rows = int(count) if exact else keys.size(0)
    keys, slots = (t[:rows] for t in torch.where(taken, keys, NO_KEY).sort(stable=True))
    layers = [state[i][slots] if len(state[i]) > 0 else state[i] for i in LAYERS]
    return MapRegions._make([keys.masked_fill_(keys == NO_KEY, -1), *layers, count])


def outside(keys: Tensor, grid: Any, box: Sequence[float] | Tensor) -> Tensor:
    """Which regions of a grid (voxel_size, origin) do not reach into a box (x0, y0, z0, x1, y1, z1)
    in meters: [n] bool."""
    expect(len(box) == 6, "OccupancyMap: box must be x0, y0, z0, x1, y1, z1", box)
    edge = 8 * grid[0]
    mask = torch.zeros_like(keys, dtype=torch.bool)
    for axis in range(3):
        low = ((keys >> (21 * axis) & (2**21 - 1)) - 2**20).double() * edge + grid[1][axis]
        mask |= (low >= box[axis + 3]) | (low + edge <= box[axis])
    return mask
