# SPDX-License-Identifier: Apache-2.0
"""Regions of 8 x 8 x 8 voxels outside of a map, and which of a map's lie where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.ops.occupancy import occupancy_layout

NO_KEY = 2**63 - 1  # larger than every key
SAMPLE_LAYERS = ("sample_count", "sample_mean", "sample_cov", "intensity", "passes")
INDEX_LAYERS = ("sample_row", "sample_count")  # that come with sample_mean


class MapVoxels(NamedTuple):
    """points [n, 3] float64 in meters, means of samples, or centers of voxels without; indices
    [n, 4] int32 (0, z, y, x); logodds [n]; num_samples [n] int32; count [1] int64, voxels that
    there are. Rows without a voxel are NaN, -1 and 0."""

    points: Tensor
    indices: Tensor
    logodds: Tensor
    num_samples: Tensor
    count: Tensor


class MapRegions(NamedTuple):
    """Regions by ascending keys [n], one row per region in each layer up to sample_row, which names
    the row of a region in the layers of samples after it, or is -1. count: [1] int64, rows that are
    regions; the keys of the others are -1."""

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

    @property
    def layers(self) -> list[Tensor]:
        """The argument layers of `occupancy_insert_`."""
        return list(self[1:-1])

    def take(self, rows: Tensor, exact: bool = True, valid: Tensor | None = None) -> MapRegions:
        """Copies of rows, and of those samples of theirs that are not empty, in the same order: as
        many as there are, or unless exact as many as there may be. valid: rows [n] bool that have
        samples. count stays."""
        own = {
            name: tensor[rows] if len(tensor) > 0 else tensor
            for name, tensor in self._asdict().items()
            if name not in (*SAMPLE_LAYERS, "count")
        }
        if len(self.sample_count) == 0:
            return self._replace(**own)
        row = own["sample_row"]
        used = (row >= 0) & (self.sample_count > 0).any(1)[row.clamp(min=0).long()]
        used = used if valid is None else used & valid
        count = int(used.sum()) if exact else min(len(row), len(self.sample_count))
        sampled = row[used.logical_not().sort(stable=True).indices[:count]].clamp(min=0).long()
        own["sample_row"] = (used.cumsum(0) - 1).int().masked_fill(~used, -1)
        for name in SAMPLE_LAYERS:
            layer = getattr(self, name)
            own[name] = layer[sampled] if len(layer) > 0 else layer
        return self._replace(**own)

    def select(self, mask: Tensor | None, exact: bool) -> MapRegions:
        """Copies of the regions of a mask [C] bool, or of all, of the slots of a state: as many
        rows as there are, with a host synchronization, or unless exact C rows."""
        chosen = self.keys >= 0
        if mask is not None:
            rule = f"OccupancyMap: mask must be [{len(self.keys)}]"
            expect(mask.shape == self.keys.shape, rule, mask.shape)
            chosen = chosen & mask
        count = chosen.sum().view(1)
        rows = int(count) if exact else self.keys.size(0)
        keys, slots = torch.where(chosen, self.keys, NO_KEY).sort(stable=True)
        keys, slots = keys[:rows], slots[:rows]
        regions = self.take(slots, exact, keys != NO_KEY)
        return regions._replace(keys=keys.masked_fill_(keys == NO_KEY, -1), count=count)


def tensors_of(layers: Sequence[str]) -> list[str]:
    """Names of the tensors that hold layers of a map, in the order of a state."""
    names = {*layers, *(INDEX_LAYERS if "sample_mean" in layers else ())}
    return [tensor.name for tensor in occupancy_layout(0) if tensor.name in names]


def outside(keys: Tensor, grid: tuple[float, list[float]], box: Sequence[float] | Tensor) -> Tensor:
    """Which regions of a grid (voxel_size, origin) do not reach into a box (x0, y0, z0, x1, y1, z1)
    in meters: [n] bool."""
    expect(len(box) == 6, "OccupancyMap: box must be x0, y0, z0, x1, y1, z1", box)
    edge = 8 * grid[0]
    mask = torch.zeros_like(keys, dtype=torch.bool)
    for axis in range(3):
        low = ((keys >> (21 * axis) & (2**21 - 1)) - 2**20).double() * edge + grid[1][axis]
        mask |= (low >= box[axis + 3]) | (low + edge <= box[axis])
    return mask
