# SPDX-License-Identifier: Apache-2.0
"""Regions of 8 x 8 x 8 voxels outside of a map, and which of a map's lie where."""

from typing import List, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor

EDGE = 8  # voxels
KEY, LAYERS = 1, (2, 4, 5)  # of a state: region_key; what has a row for each region besides
NO_KEY = 2**63 - 1  # behind every key that there is


class MapRegions(NamedTuple):
    """Regions by ascending keys [n], a row of each layer. count: [1] int64, rows that are regions;
    the others' keys are -1."""

    keys: Tensor
    region_stamp: Tensor
    logodds: Tensor
    hit_miss: Tensor
    count: Tensor


def read_regions(state: List[Tensor], mask: Optional[Tensor], exact: bool) -> MapRegions:
    """Copies of the regions of a mask [C] bool, or of all: as many rows as there are, with a host
    synchronization, or unless exact C rows."""
    taken = state[KEY] >= 0 if mask is None else (state[KEY] >= 0) & mask
    count = taken.sum().view(1)
    rows = int(count) if exact else state[KEY].size(0)
    keys, slots = torch.where(taken, state[KEY], NO_KEY).sort(stable=True)
    keys, slots = keys[:rows], slots[:rows]
    layers = [state[i].index_select(0, slots) if len(state[i]) > 0 else state[i] for i in LAYERS]
    stamp, logodds, hit_miss = layers
    return MapRegions(torch.where(keys == NO_KEY, -1, keys), stamp, logodds, hit_miss, count)


def outside(keys: Tensor, grid: Sequence[float], box: Union[Sequence[float], Tensor]) -> Tensor:
    """Which regions of a grid (voxel_size, x, y, z of its origin) do not reach into a box (x0, y0,
    z0, x1, y1, z1) in meters: [n] bool."""
    edge = EDGE * grid[0]
    mask = torch.zeros_like(keys, dtype=torch.bool)
    for axis in range(3):
        place = (keys >> (21 * axis) & (2**21 - 1)) - 2**20
        low = place.double() * edge + grid[1 + axis]
        mask |= (low >= box[axis + 3]) | (low + edge <= box[axis])
    return mask
