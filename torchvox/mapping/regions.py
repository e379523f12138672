# SPDX-License-Identifier: Apache-2.0
"""Regions of 8 x 8 x 8 voxels outside of a map, and which of a map's lie where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchvox._errors import expect
from torchvox.ops.occupancy import occupancy_layout

KEY, LAYERS = 1, (2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)  # of a state: what regions are made of
SAMPLE_ROW, SAMPLES = 5, 6  # of the layers: which row of those from SAMPLES on is a region's
NO_KEY = 2**63 - 1  # behind every key that there is


class MapRegions(NamedTuple):
    """Regions by ascending keys [n], a row of each layer up to sample_row, which names rows of the
    layers of samples behind it, or -1. count: [1] int64, rows that are regions; the others' keys
    are -1."""

    keys: Tensor
    region_stamp: Tensor
    logodds: Tensor
    hit_miss: Tensor
    touch: Tensor
    traversal: Tensor
    sample_row: Tensor
    sample_count: Tensor
    sample_mean: Tensor
    sample_cov: Tensor
    intensity: Tensor
    passes: Tensor
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
    layers = picked([state[i] for i in LAYERS], slots, exact, keys != NO_KEY)
    return MapRegions._make([keys.masked_fill_(keys == NO_KEY, -1), *layers, count])


def picked(
    layers: Sequence[Tensor], rows: Tensor, exact: bool = True, valid: Tensor | None = None
) -> list[Tensor]:
    """Rows of layers of regions, with those of the samples that they have, if they hold any, in
    the same order: as many as there are, or unless exact as many as there may be. valid: rows
    [n] bool that have samples."""
    own = [layer[rows] if len(layer) > 0 else layer for layer in layers[:SAMPLES]]
    samples, of = layers[SAMPLES:], own[SAMPLE_ROW]
    if len(samples[0]) == 0:
        return [*own, *samples]
    used = (of >= 0) & (samples[0] > 0).any(1)[of.clamp(min=0).long()]
    used = used if valid is None else used & valid
    count = int(used.sum()) if exact else min(len(of), len(samples[0]))
    taken = of[used.logical_not().sort(stable=True).indices[:count]].clamp(min=0).long()
    own[SAMPLE_ROW] = (used.cumsum(0) - 1).int().masked_fill(~used, -1)
    return [*own, *[layer[taken] if len(layer) > 0 else layer for layer in samples]]


def tensors_of(layers: Sequence[str]) -> list[str]:
    """Names of the tensors that hold layers of a map, in the order of a state."""
    whole = {"sample_row", "sample_count"} if "sample_mean" in layers else set()
    return [tensor.name for tensor in occupancy_layout(0)[4:] if tensor.name in {*layers, *whole}]


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
