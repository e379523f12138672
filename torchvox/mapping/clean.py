# SPDX-License-Identifier: Apache-2.0
"""What moved between scans: how often voxels were hit and seen empty, and which points left.

A scan sees a voxel empty if its rays pass through the voxel and all 26 neighbors and end in none of
them. docs/clean.md has the rule; `torchvox.reference.clean` is the same in loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchvox._util.errors import WrongUseError
from torchvox.mapping.map import OccupancyMap
from torchvox.mapping.regions import MapRegions
from torchvox.mapping.sensor import PRESETS
from torchvox.mapping.store import RegionStore
from torchvox.ops.rays import transform_points

LAYERS = ("logodds", "hit_miss")
UNOBSERVED, REACH = -32768, 2**23  # log-odds; voxels from the origin to the end of a map
STAYS, LEFT, BESIDE, NOT_JUDGED = range(4)  # reasons
PART = 2048  # regions that are judged at once
AXES = (0, 21, 42)  # the bits of x, y and z in a key
STEPS = list(itertools.product((-1, 0, 1), repeat=3))  # to a region and those around it


class Judgement(NamedTuple):
    """Result of `Verdict.at` for N points.

    reason: uint8: 0 the point stays, 1 its voxel was left, 2 it is beside one that was left and
        was hit no more often, 3 not judged: not finite, nearer than min_range, out of reach.
    hits, empty: int32, scans that hit the voxel and scans that saw it empty; 0 unless the reason is
        1 or 2.
    """

    reason: Tensor
    hits: Tensor
    empty: Tensor


class Evidence:
    """How many scans hit each voxel, and how many saw it and its 26 neighbors empty.

    voxel_size: meters. origin: a corner of voxel (0, 0, 0), in meters.
    min_range, max_range: meters; shorter rays say nothing, longer ones are cut and hit nothing.
    capacity, store: of `OccupancyMap`, for the counts; with a store they may exceed the device.
    map: the counts, as an `OccupancyMap` whose layer "hit_miss" has them. Sums: the order of scans
        and how they are split into evidence that is merged change nothing.

    >>> evidence = torchvox.mapping.Evidence(voxel_size=0.2)
    >>> for scan in (scans := torchvox.data.generate_drive(scans=3, azimuths=90)):
    ...     counts = evidence.add(scan.points, pose=scan.pose)
    >>> moved = evidence.verdict().at(scans[0].points, pose=scans[0].pose).reason > 0
    """

    def __init__(
        self,
        voxel_size: float = 0.2,
        *,
        origin: Sequence[float] = (0.0, 0.0, 0.0),
        min_range: float = 0.0,
        max_range: float | None = None,
        capacity: int | str = 4096,
        store: RegionStore | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.min_range = min_range
        self._rays = {"min_range": min_range, "max_range": -1.0 if max_range is None else max_range}
        model = PRESETS["octomap"]  # of a scan, whose hits win
        self._scan = OccupancyMap(voxel_size, origin=origin, preset=model, device=device)
        self.map = OccupancyMap(voxel_size, capacity, origin=origin, preset=model, layers=LAYERS,
                                device=device, store=store)  # fmt: skip
        nothing = torch.zeros((0, 3), device=self.map.status.device)
        self.add(nothing, nothing.new_zeros((1, 3)))  # refuses what is wrong for every scan

    def add(
        self, points: Tensor, origins: Tensor | None = None, pose: Tensor | None = None
    ) -> Tensor:
        """Counts of `occupancy_integrate_`, of one scan. points [N, 3 or more], origins and pose
        are those of `OccupancyMap.integrate`."""
        self._scan.clear()
        counts = self._scan.integrate(points, origins, pose, **self._rays)
        regions = self._scan.read()
        is_free = (regions.logodds < 0) & (regions.logodds != UNOBSERVED)
        code = (regions.logodds >= 0).byte() | _eroded(is_free, regions.keys).byte() << 1
        rows = code.view(torch.int64).any(1).nonzero()[:, 0]
        code = code[rows]
        hit_miss = torch.stack([code & 1, code >> 1], 2).int()
        logodds = torch.where(code > 0, 0, UNOBSERVED).to(torch.int16)
        stamps = self.map.clock.to(rows.device).expand(len(rows)).int()
        self.map.clock.add_(1)
        own = regions._replace(keys=regions.keys[rows], region_stamp=stamps, logodds=logodds,
                               hit_miss=hit_miss, count=rows.new_tensor([len(rows)]))  # fmt: skip
        self.map.insert(MapRegions(*[tensor.to(self.map.home) for tensor in own]))
        return counts

    def merge(self, other: Evidence | OccupancyMap | str | Path) -> None:
        """Adds what other scans saw: evidence, its map, or the file of it. Raises WrongUseError for
        another voxel size or origin, and for maps that are not evidence."""
        name = f"{other}" if isinstance(other, str | Path) else "Evidence: other"
        if isinstance(other, str | Path):
            other = OccupancyMap.load(other, device="cpu")
        added = other.map if isinstance(other, Evidence) else other
        is_known = torch.isin(added.whole().logodds, torch.tensor([0, UNOBSERVED]).to(added.home))
        if {*added.layers} != {*LAYERS} or not is_known.all():
            raise WrongUseError(f"{name} must be evidence of torchvox clean, not a map of rays")
        if added.grid != self.map.grid:
            rule = "must have the voxel size and origin"
            raise WrongUseError(f"{name} {rule} {self.map.grid}, got {added.grid}")
        self.map.merge(added)

    def verdict(self) -> Verdict:
        """Which voxels were left, with a host synchronization."""
        return Verdict(self)


class Verdict:
    """Voxels that were left, of all evidence so far: see `Evidence.verdict`.

    voxels: how many were "hit", "never seen empty" of these, "left", and "beside" those.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.grid, self.min_range = evidence.map.grid, evidence.min_range
        device, regions = evidence.map.status.device, evidence.map.whole()
        counts = regions.hit_miss
        rows = (counts[..., 0] > 0).any(1).nonzero()[:, 0]  # others decide nothing
        keys, counts = regions.keys[rows].to(device), counts[rows]
        hits, both = counts[..., 0].contiguous().to(device), (counts > 0).all(2)
        rows = both.any(1).nonzero()[:, 0]
        empty, rows = counts[rows, :, 1].to(device), rows.to(device)
        around = _most_around(hits, keys, rows) - empty  # twice `empty` may exceed its type
        is_left = torch.zeros_like(hits, dtype=torch.bool)
        is_left[rows] = (hits[rows] > 0) & (empty > 0) & (empty >= around)
        rows = _near(keys, is_left.any(1))
        own, left = hits[rows], is_left[rows]
        beside = (own > 0) & ~left & (own <= _most_around(hits * is_left, keys, rows))
        self.voxels = {"hit": int((hits > 0).sum()), "left": int(left.sum())}
        self.voxels["beside"] = int(beside.sum())
        self.voxels["never seen empty"] = self.voxels["hit"] - int(both.sum())
        self._keys, self._reason = keys[rows], (left * LEFT + beside * BESIDE).to(torch.uint8)
        self._counts = counts[rows.to(counts.device)].to(device)

    def at(
        self, points: Tensor, origins: Tensor | None = None, pose: Tensor | None = None
    ) -> Judgement:
        """Whether points [N, 3 or more] moved. origins and pose are those of `Evidence.add`;
        without both, points are in the frame of the map and no range is too short."""
        points = points[:, :3]
        if pose is not None:
            pose = pose[None, :3].to(points.device, torch.float64)
            points, origins = transform_points(points.contiguous(), pose), pose[:, :, 3]
        places = points.to(self._keys.device, torch.float64)
        good = torch.isfinite(places).all(1)
        if origins is not None:
            x, y, z = (places - origins.to(places)).T
            good &= ~(x * x + y * y + z * z < _square(self.min_range))
        # By a tensor: a GPU multiplies by the inverse of a number, which rounds in another way.
        size, corner = places.new_tensor(self.grid[:1]), places.new_tensor(self.grid[1])
        voxel = ((places - corner) / size).floor()
        good &= (voxel >= -REACH).all(1) & (voxel < REACH).all(1)
        voxel = torch.where(good[:, None], voxel, 0.0).long() + REACH
        key = sum((voxel[:, i] >> 3) << AXES[i] for i in range(3))
        cell = sum((voxel[:, i] & 7) << 3 * i for i in range(3))
        reason = torch.zeros_like(good, dtype=torch.uint8)
        counts = torch.zeros((len(good), 2), dtype=torch.int32, device=good.device)
        row = _rows_of(self._keys, key)
        moved = (good & (row < len(self._keys))).nonzero()[:, 0]
        reason[moved] = self._reason[row[moved], cell[moved]]
        moved = moved[reason[moved] > 0]
        counts[moved] = self._counts[row[moved], cell[moved]]
        return Judgement(reason.masked_fill_(~good, NOT_JUDGED), *counts.unbind(1))


def _square(value: float) -> float:
    """The least number whose root is not below a value; roots of tensors are not rounded alike."""
    square = value * value
    while square > 0 and math.sqrt(square) >= value:
        square = math.nextafter(square, 0.0)
    while math.sqrt(square) < value:
        square = math.nextafter(square, math.inf)
    return square


def _rows_of(ascending: Tensor, keys: Tensor) -> Tensor:
    """The row of each of the keys [n] among ascending ones; their number where it is not there."""
    if len(ascending) == 0:
        return torch.zeros_like(keys)
    at = torch.searchsorted(ascending, keys).clamp_(max=len(ascending) - 1)
    return torch.where(ascending[at] == keys, at, len(ascending))


def _beside(ascending: Tensor, keys: Tensor, steps: Sequence[Sequence[int]]) -> Tensor:
    """[S, n]: `_rows_of` the regions that are steps [S] (x, y, z) of -1, 0 or 1 away from those of
    keys [n]."""
    offsets = [sum(step << shift for step, shift in zip(each, AXES, strict=True)) for each in steps]
    moved = keys.new_tensor(offsets)[:, None] + keys
    inside = torch.ones_like(moved, dtype=torch.bool)
    for shift, step in zip(AXES, keys.new_tensor(steps).T[..., None], strict=True):
        place = (keys >> shift & 2**21 - 1) + step
        inside &= (place >= 0) & (place < 2**21)
    return _rows_of(ascending, torch.where(inside, moved, -1))


def _eroded(mask: Tensor, keys: Tensor) -> Tensor:
    """The voxels of a mask [R, 512] bool whose 26 neighbors are all in it. Regions that are not
    among the keys hold none of it, so one axis after another gives the same as all at once."""
    weights = torch.tensor([1 << z for z in range(8)], dtype=torch.uint8, device=mask.device)
    planes = mask.view(-1, 8, 64).byte() * weights[:, None]  # bit z of [R, y, x]
    bits = reduce(torch.bitwise_or, planes.unbind(1)).view(-1, 8, 8)
    steps = [[step * (axis == i) for i in range(3)] for axis in range(3) for step in (-1, 1)]
    for axis, rows in enumerate(_beside(keys, keys, steps).view(3, 2, -1)):
        padded = torch.cat([bits, bits.new_zeros(1, 8, 8)])
        below, above = padded[rows]
        if axis == 2:
            bits = bits & (bits << 1 | below >> 7) & (bits >> 1 | above << 7)
        else:
            dim = 2 - axis
            whole = torch.cat([below.narrow(dim, 7, 1), bits, above.narrow(dim, 0, 1)], dim)
            bits = bits & whole.narrow(dim, 0, 8) & whole.narrow(dim, 2, 8)
    return (bits.view(-1, 1, 64) & weights[:, None]).bool().view(-1, 512)


def _near(keys: Tensor, mask: Tensor) -> Tensor:
    """Rows of the regions [R] of a mask and of the 26 around each."""
    padded = torch.cat([mask, mask.new_zeros(1)])
    around = [padded[_beside(keys, keys, [steps])[0]] for steps in STEPS]
    return torch.stack(around).any(0).nonzero()[:, 0]


def _most_around(values: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
    """[n, 512]: the largest of the values [R, 512] of each voxel of rows [n] and its 26 neighbors;
    values are 0 in regions that are not among the keys [R]."""
    padded = torch.cat([values, values.new_zeros(1, 512)]).view(-1, 8, 8, 8)
    most = [values[:0]]
    span = {-1: (slice(7, 8), slice(0, 1)), 0: (slice(8), slice(1, 9)), 1: (slice(1), slice(9, 10))}
    for part in rows.split(PART):
        halo = values.new_zeros(len(part), 10, 10, 10)
        for (x, y, z), beside in zip(STEPS, _beside(keys, keys[part], STEPS), strict=True):
            source, target = zip(span[z], span[y], span[x], strict=True)
            halo[(slice(None), *target)] = padded[beside][(slice(None), *source)]
        for dim in (1, 2, 3):
            halo = reduce(torch.maximum, [halo.narrow(dim, step, 8) for step in range(3)])
        most.append(halo.reshape(-1, 512))
    return torch.cat(most)
