# SPDX-License-Identifier: Apache-2.0
"""Maps larger than their device: all regions in host memory, the tensors of the map as a cache.

Each method brings in the regions that it needs, writes back what changed before it leaves the
cache, and then does what a map without a store does. A region in the cache may be newer than its
row in the store only if `store.changed` has its key. Rows are copied in and out by key, so that
neither changes what the map knows, whenever a call ends early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import expect
from torchvox.mapping.counts import EDIT, INTEGRATE, EditCounts, IntegrateCounts
from torchvox.mapping.map import Box, Floats, OccupancyMap, Rays, Values
from torchvox.mapping.regions import MapRegions, outside, tensors_of
from torchvox.mapping.store import NO_KEYS, ROWS, RegionStore, contains
from torchvox.ops import occupancy as ops
from torchvox.ops.annotations import Merge, Select
from torchvox.ops.rays import ray_regions, transform_points

WALK = ("point_cloud_range", "min_range", "max_range", "long_rays")
RAYS = ("origin_index", "num_valid", "ray_flags", *WALK)  # options that say where rays go
NO_MASK = "OccupancyMap: masks are not supported with a store"
NO_STATE = "OccupancyMap: a map with a store has no state_dict: flush or save it"
NO_PROGRAM = "OccupancyMap: a map with a store cannot run in a program or a CUDA graph"
LARGER = "give a larger capacity"


class Cached(NamedTuple):
    """Keys of the regions in the cache, ascending, and their stamps."""

    keys: np.ndarray
    stamps: np.ndarray


class StreamedMap(OccupancyMap):
    """An `OccupancyMap` whose regions are in a `RegionStore`: OccupancyMap(.., store=..) makes one.
    Its capacity is that of a cache on the device, which changes no result."""

    store: RegionStore
    regions_per_sample_row = 1

    def __init__(
        self,
        voxel_size: float = 0.1,
        capacity: int | str = 4096,
        *,
        store: RegionStore,
        **options: Any,
    ) -> None:
        super().__init__(voxel_size, capacity, store=store, **options)
        if isinstance(capacity, str):
            rule = f"capacity must hold a region of {sum(self._region_bytes())} bytes"
            expect(self.capacity > 0, f"OccupancyMap: {rule}", capacity)
        rows = options.get("sample_rows", self.capacity)
        free = self.on_overflow == "grow" and self.max_touched < 0 < self.capacity
        rule = "OccupancyMap: a store takes a capacity above 0, and neither on_overflow nor "
        rule += "max_touched nor sample_rows"
        got = self.capacity, self.on_overflow, self.max_touched, rows
        expect(free and (rows is None or rows >= self.capacity), rule, got)
        self.most = 1024  # regions that the rays of a call touched
        store.open(tensors_of(self.layers), self.facts)

    # ---- rays -----------------------------------------------------------------------------------

    def _integrate(self, rays: Rays, max_touched: int | None = None) -> Tensor:
        """Counts of a call for all regions at once or, if they are more than the capacity, for each
        group of them; all or nothing."""
        cached, store = self._cached(), self.store
        keys = self._regions_of(rays)
        here = store.has(keys) | contains(cached.keys, keys)
        needed = keys[here] if rays.options.get("missing") == "skip" else keys
        size = self._number_of_regions(cached)
        if len(needed) <= self.capacity:
            self._enter(needed, cached)
            store.changed = np.union1d(store.changed, keys)
            counts = super()._integrate(rays, len(keys))
        else:
            counts = self._integrate_groups(rays, needed, len(keys))
            counts[0, INTEGRATE.regions_new] = len(needed) - int(here.sum())
            counts[0, INTEGRATE.regions_skipped] = len(keys) - len(needed)
        counts[0, INTEGRATE.regions_in_use] = size + counts[0, INTEGRATE.regions_new]
        return counts

    def _integrate_groups(self, rays: Rays, keys: np.ndarray, max_touched: int) -> Tensor:
        """Counts of calls for one group of regions after another, which enter the store when all
        are done."""
        if "stop_at_occupied" in (rays.options.get("flags") or []):
            raise RuntimeError(
                f"OccupancyMap: rays that stop at occupied voxels need all their {len(keys)} "
                f"regions in the cache of {self.capacity}: {LARGER}, or fewer rays per call"
            )
        self._settle()
        rays = rays._replace(options={**rays.options, "missing": "skip"})
        calls: list[Tensor] = []
        results: list[MapRegions] = []
        try:
            for group in groups(keys, self.capacity):
                self._enter(group, alone=True)  # nothing is written back: nothing counts as changed
                super()._insert(self._on_device(group), [], "keep", None)
                calls.append(super()._integrate(rays, max_touched))
                results.extend(self._fetch(group))
        except BaseException:
            ops.occupancy_remove_(self.state, self.region_key >= 0)  # the store is as it was
            raise
        for regions in results:
            self.store.put(regions)
        counts, every = calls[0], torch.cat(calls)
        for name in ("voxels_updated", "regions_touched", "sample_rows_new"):
            column = getattr(INTEGRATE, name)
            counts[0, column] = every[:, column].sum()
        return counts

    def _raycast(self, rays: Rays) -> ops.OccupancyRays:
        """`occupancy_raycast`, of as many rays at a time as have their regions in the cache."""
        cached, keys = self._cached(), self._regions_of(rays)
        keys = keys[self.store.has(keys) | contains(cached.keys, keys)]
        if len(keys) <= self.capacity:
            self._enter(keys, cached)
            return super()._raycast(rays)
        n, device = len(rays.points), rays.points.device
        if n == 1:
            raise RuntimeError(f"OccupancyMap: a ray passes {len(keys)} regions: {LARGER}")
        index, valid = rays.options.get("origin_index"), rays.options.get("num_valid")
        index = torch.zeros(n, dtype=torch.int64, device=device) if index is None else index
        if valid is not None:
            index = index.where(torch.arange(n, device=device) < valid, -1)
        halves = []
        for half in (slice(n // 2), slice(n // 2, n)):
            options = {**rays.options, "num_valid": None, "origin_index": index[half]}
            halves.append(self._raycast(Rays(rays.points[half], rays.origins, options)))
        return ops.OccupancyRays(*[torch.cat(pair) for pair in zip(*halves, strict=True)])

    # ---- reading --------------------------------------------------------------------------------

    def query(self, points: Tensor, **options: Any) -> Values:
        """`occupancy_query` at points, whose regions may be more than the cache holds."""
        values, ends = super().query(points, **options), torch.atleast_2d(points)[:, :3]
        each = torch.arange(len(ends), device=ends.device)
        rays = {"origin_index": each, "num_valid": options.get("num_valid")}
        for _ in self._missing(self._regions_of(Rays(ends, ends, rays))):
            values = _filled(values, super().query(points, **options))
        return values

    def crop(self, cell_size: Floats, point_cloud_range: Floats, **options: Any) -> Values:
        """`occupancy_crop`, with the regions around each box."""
        values, keys = super().crop(cell_size, point_cloud_range, **options), self.store.keys
        box = torch.tensor(list(point_cloud_range), dtype=torch.float64).view(2, 3)
        corners, margin = torch.cartesian_prod(*box.T), 8 * self.voxel_size
        away = torch.ones(len(keys), dtype=torch.bool)
        poses = options.get("poses")
        for pose in [torch.eye(4)[:3]] if poses is None else poses.cpu():
            places = transform_points(corners, pose[None].double())
            bounds = torch.cat([places.amin(0) - margin, places.amax(0) + margin])
            away &= outside(torch.tensor(keys), self.grid, bounds)
        for _ in self._missing(keys[~away.numpy()]):
            values = _filled(values, super().crop(cell_size, point_cloud_range, **options))
        return values

    def _extract(self, select: Select, max_out: int | None) -> ops.OccupancyRows:
        """`occupancy_extract` of the whole map, in host memory."""
        parts = []
        for _ in self._alone():
            parts.append(super()._extract(select, None))
        total = sum(len(part.logodds) for part in parts)
        rows = total if max_out is None else max_out
        counts = torch.zeros(1, 8, dtype=torch.int64)
        counts[0, :2] = torch.tensor([min(total, rows), total])
        columns: list[Any] = []
        for column, unused in zip(zip(*parts, strict=True), (0, 0, -1, 0), strict=False):
            pad = column[0].new_full((max(rows - total, 0), *column[0].shape[1:]), unused)
            columns.append(torch.cat([part.cpu() for part in (*column, pad)])[:rows])
        return ops.OccupancyRows._make([*columns, counts])

    def read(self, mask: Tensor | None = None) -> MapRegions:
        """All regions, in host memory."""
        expect(mask is None, NO_MASK, mask)
        store = self._settle()
        return store.get(store.keys)

    def whole(self) -> MapRegions:
        """All regions, in host memory."""
        return self.read()

    def memory(self) -> dict[str, int]:
        """Bytes of each tensor of the cache, and of the store in host memory."""
        return {**super().memory(), "store": self.store.nbytes}

    # ---- editing --------------------------------------------------------------------------------

    @property
    def home(self) -> torch.device:
        """Regions enter from the host."""
        return torch.device("cpu")

    def _decay(self, factor: int, forget: int, mask: Tensor | None) -> Tensor:
        """Counts of calls that decay each region once."""
        expect(mask is None, NO_MASK, mask)
        counts = []
        for group in self._alone():
            self.store.changed = group
            counts.append(super()._decay(factor, forget, None))
            self.store.drop(group[~contains(self._cached().keys, group)])
        return torch.stack(counts).sum(0)

    def clear(self) -> None:
        """Forgets everything; the capacity stays."""
        super().clear()
        self.store.drop(self.store.keys)

    def _evict(
        self, box: Box | None, older_than: int | Tensor | None, mask: Tensor | None, read: bool
    ) -> MapRegions | None:
        """Regions leave cache and store; returned in host memory."""
        expect(mask is None, NO_MASK, mask)
        store = self._settle()
        if box is not None:
            bounds = box.cpu() if isinstance(box, Tensor) else box
            keys = store.keys[outside(torch.tensor(store.keys), self.grid, bounds).numpy()]
        else:
            keys = store.keys[store.index.stamps < int(older_than or 0)]
        regions = store.get(keys) if read else None
        self._leave(keys)
        store.drop(keys)
        return regions

    def _insert(
        self, keys: Tensor, layers: list[Tensor], merge: Merge, count: Tensor | None
    ) -> Tensor:
        """Counts of `occupancy_insert_`, of as many regions at a time as the cache holds."""
        rows = keys.cpu().numpy()[: None if count is None else int(count)]
        before = np.maximum.accumulate(np.concatenate([[-1], rows]))[:-1]
        good, counts = np.flatnonzero(rows > before), []
        for group in groups(good, self.capacity) or [good]:
            self._enter(rows[group])
            self.store.changed = np.union1d(self.store.changed, rows[group])
            mine: list[Tensor] = []
            if layers:
                chosen = torch.tensor(group).to(keys.device)
                regions = MapRegions._make([keys, *layers, keys]).take(chosen)
                mine = [layer.to(self.status.device) for layer in regions.layers]
            counts.append(super()._insert(self._on_device(rows[group]), mine, merge, None))
        total = torch.stack(counts).sum(0)
        total[0, EDIT.regions_given] = len(rows)
        total[0, EDIT.keys_refused] = len(rows) - len(good)
        total[0, EDIT.regions_in_use] = self._number_of_regions(self._cached())
        return total

    def flush(self) -> None:
        """Writes what the cache has to the store, and the store to its folder, if it has one."""
        self._settle().flush()

    def _save_to_state_dict(
        self, destination: dict[str, Tensor], prefix: str, keep_vars: bool
    ) -> None:
        if prefix == "":
            raise RuntimeError(NO_STATE)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: object, **__: object) -> None:
        raise RuntimeError(NO_STATE)

    # ---- the cache ------------------------------------------------------------------------------

    def _fits(self, kind: type[IntegrateCounts] | type[EditCounts], result: Tensor) -> bool:
        """The cache has room for each call."""
        return True

    def _cached(self) -> Cached:
        if self._is_traced():
            raise RuntimeError(NO_PROGRAM)
        keys, stamps = self.region_key.cpu().numpy(), self.region_stamp.cpu().numpy()
        used = np.flatnonzero(keys >= 0)
        order = used[np.argsort(keys[used])]
        return Cached(keys[order], stamps[order])

    def _number_of_regions(self, cached: Cached) -> int:
        """Regions of the whole map."""
        return len(self.store.keys) + int((~self.store.has(cached.keys)).sum())

    def _on_device(self, keys: np.ndarray) -> Tensor:
        return torch.tensor(keys).to(self.region_key.device)

    def _regions_of(self, rays: Rays) -> np.ndarray:
        """Keys of regions that rays touch."""
        options = {name: rays.options[name] for name in RAYS if name in rays.options}
        while True:
            keys, counts = ray_regions(*rays[:2], *self.grid, self.most, **options)
            touched = int(counts[0, 1])
            if touched <= self.most:
                return keys[:touched].cpu().numpy()
            self.most = max(touched, 2 * self.most)

    def _enter(
        self, keys: np.ndarray, cached: Cached | None = None, *, alone: bool = False
    ) -> None:
        """Brings in what the map knows of ascending keys, no more than the capacity, and makes room
        for the others of them. The least recently stamped others leave, ties by key, or, alone,
        all."""
        now, stamps = cached or self._cached()
        leave = np.flatnonzero(~contains(keys, now))
        if not alone:
            excess = max(len(leave) + len(keys) - self.capacity, 0)
            leave = np.sort(leave[np.lexsort((now[leave], stamps[leave]))[:excess]])
        if len(leave) > 0:
            self._leave(now[leave])
        for group in groups(keys[self.store.has(keys) & ~contains(now, keys)], ROWS):
            regions = self.store.get(group, pinned=self.status.is_cuda)
            key, *layers = [t.to(self.status.device, non_blocking=True) for t in regions[:-1]]
            super()._insert(key, layers, "replace", None)

    def _alone(self) -> Iterator[np.ndarray]:
        """Keys of one cache full after another of the whole map, each alone in the cache, once at
        least."""
        keys = self._settle().keys
        for group in groups(keys, self.capacity) or [keys]:
            self._enter(group, alone=True)
            yield group

    def _missing(self, keys: np.ndarray) -> Iterator[None]:
        """Brings in one group after another of those regions that are not in the cache."""
        missing = keys[self.store.has(keys) & ~contains(self._cached().keys, keys)]
        for group in groups(missing, self.capacity):
            self._enter(group)
            yield

    def _fetch(self, keys: np.ndarray) -> Iterator[MapRegions]:
        """Regions of the cache, ascending, in host memory."""
        for group in groups(keys, ROWS):
            mask = torch.isin(self.region_key, self._on_device(group))
            yield MapRegions._make([t.cpu() for t in self.slots.select(mask, exact=True)])

    def _write_back(self, keys: np.ndarray) -> None:
        """Puts those of the keys of the cache that changed into the store."""
        store = self.store
        for regions in self._fetch(keys[contains(store.changed, keys)]):
            store.put(regions)
        store.changed = store.changed[~contains(keys, store.changed)]

    def _settle(self) -> RegionStore:
        """The store, as the whole map."""
        self._write_back(self._cached().keys)
        self.store.changed = NO_KEYS
        return self.store

    def _leave(self, keys: np.ndarray) -> None:
        self._write_back(keys)
        ops.occupancy_remove_(self.state, torch.isin(self.region_key, self._on_device(keys)))


def groups(keys: np.ndarray, size: int) -> list[np.ndarray]:
    return [keys[i : i + size] for i in range(0, len(keys), size)]


def _filled(values: Values, more: Values) -> Values:
    """Values of the cache as it is where it has them, elsewhere as it was."""
    pairs = zip(values, more, strict=True)
    return Values(*[torch.where(more.label >= 0, new, old) for old, new in pairs])


OccupancyMap.streamed = StreamedMap
