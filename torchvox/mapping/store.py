# SPDX-License-Identifier: Apache-2.0
"""Maps larger than their device: all regions in host memory, the map's own tensors as a cache.

`RegionStore` keeps rows by key. The functions below it do what methods of `OccupancyMap` do, for a
map that has one: they bring in the regions that a call needs, and write back what changed before it
leaves. A region in the cache may be newer than its row in the store only if `store.changed` has its
key. Rows are copied in and out by key, so that neither changes what the map knows, whenever a call
ends early.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchvox._errors import CloudFileError, WrongUseError, expect, explained, short
from torchvox.io.maps import MapContents, read_map, write_map
from torchvox.io.writers import write_text
from torchvox.mapping.files import facts_of, regions_of
from torchvox.mapping.regions import (
    SAMPLE_ROW,
    MapRegions,
    outside,
    picked,
    read_regions,
    tensors_of,
)
from torchvox.ops import occupancy as ops
from torchvox.ops.rays import ray_regions, transform_points

if TYPE_CHECKING:
    from torchvox.mapping.map import OccupancyMap

ROWS = 4096  # of a block of host memory, and of one transfer
PART = ~sum(15 << (21 * axis) for axis in range(3))  # of a key, what regions of one file share
WALK = ("point_cloud_range", "min_range", "max_range", "long_rays")
RAYS = ("origin_index", "num_valid", "ray_flags", *WALK)  # options that say where rays go
NO_KEYS = np.zeros(0, np.int64)
NO_MASK = "OccupancyMap: masks are by slot, and a map with a store has no lasting slots: give none"
LARGER = "give a larger capacity"


class Rows:
    """Rows of tensors in host memory, in blocks that stay where they are. layout: tensors of
    `occupancy_layout` that have such rows."""

    def __init__(self, layout: Sequence[ops.StateTensor] = ()) -> None:
        self.layout = layout
        self.free = NO_KEYS  # rows
        self.blocks: list[list[np.ndarray]] = []  # ROWS rows of each tensor

    @property
    def nbytes(self) -> int:
        return self.free.nbytes + sum(held.nbytes for block in self.blocks for held in block)

    def spare(self, count: int) -> np.ndarray:
        """Rows that are free; taken once `free` is cut."""
        while len(self.free) < count:
            start = len(self.blocks) * ROWS
            shapes = [(ROWS if t.shape[0] else 0, *t.shape[1:]) for t in self.layout]
            empty = zip(shapes, self.layout, strict=True)
            self.blocks.append([torch.empty(shape, dtype=t.dtype).numpy() for shape, t in empty])
            self.free = np.concatenate([self.free, np.arange(start, start + ROWS)])
        return self.free[:count]

    def write(self, rows: np.ndarray, tensors: Sequence[np.ndarray]) -> None:
        for block, into, mine in self._blocks(rows):
            for tensor, held in zip(tensors, block, strict=True):
                if len(held) > 0:
                    held[into] = tensor[mine]

    def read(self, rows: np.ndarray, pinned: bool) -> list[Tensor]:
        shapes = [(len(rows) if t.shape[0] else 0, *t.shape[1:]) for t in self.layout]
        both = zip(shapes, self.layout, strict=True)
        tensors = [torch.empty(shape, dtype=t.dtype, pin_memory=pinned) for shape, t in both]
        for block, there, mine in self._blocks(rows):
            for tensor, held in zip(tensors, block, strict=True):
                if len(held) > 0:
                    tensor.numpy()[mine] = held[there]
        return tensors

    def _blocks(self, rows: np.ndarray) -> Iterator[tuple[list[np.ndarray], np.ndarray, Any]]:
        """The tensors of each block with some of the rows, their rows there, and which they are."""
        of = rows // ROWS
        for block in np.unique(of):
            mine = np.flatnonzero(of == block)
            yield self.blocks[block], rows[mine] % ROWS, mine


class RegionStore:
    """Host memory for the regions of one map: `OccupancyMap(..., store=RegionStore())`.

    folder: where `OccupancyMap.flush` writes them and a new map of the same arguments finds them;
        None: nowhere. It holds index.json and a map file for each cube of 16 x 16 x 16 regions,
        without stamps and the number of calls. Copies of a map (deepcopy, pickle) have no folder.

    When a map takes it, a folder of another voxel size, origin, sensor or other layers raises
    WrongUseError; files that are damaged or missing raise CloudFileError.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.facts: dict[str, Any] = {}  # of the map that has it
        self.most = 1024  # regions that the rays of a call touched
        self._reset([])

    def _reset(self, layers: list[str]) -> None:
        self.layers = layers  # tensors of a state
        self.keys = NO_KEYS  # ascending, with stamp, row and row of samples of each
        self.stamps, self.rows, self.sampled = np.zeros(0, np.int32), NO_KEYS, NO_KEYS
        of = [name for name in layers if name not in ("sample_row", "sample_count")]
        layout = ops.occupancy_layout(1, layers=of, sample_rows=1)[4:] if layers else ()
        self.regions, self.samples = Rows(layout[:4]), Rows(layout[5:])
        self.changed = NO_KEYS  # ascending
        self.stale: set[int] = set()  # parts whose files are old

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "folder": None}

    @property
    def nbytes(self) -> int:
        index = self.keys, self.stamps, self.rows, self.sampled
        return self.regions.nbytes + self.samples.nbytes + sum(int(a.nbytes) for a in index)

    def has(self, keys: np.ndarray) -> np.ndarray:
        return contains(self.keys, keys)

    def get(self, keys: np.ndarray, pinned: bool = False) -> MapRegions:
        """Copies of regions that are here, in host memory."""
        at = np.searchsorted(self.keys, keys)
        of = self.sampled[at]
        row = np.where(of >= 0, (of >= 0).cumsum() - 1, -1).astype(np.int32)
        sample_row = torch.tensor(row if "sample_row" in self.layers else row[:0])
        layers = [*self.regions.read(self.rows[at], pinned), sample_row]
        layers += self.samples.read(of[of >= 0], pinned)
        stamps, count = torch.tensor(self.stamps[at]), torch.tensor([len(keys)])
        return MapRegions._make([torch.tensor(keys), stamps, *layers, count])

    def put(self, regions: MapRegions) -> None:
        """Takes regions of host memory in place of those of the same keys."""
        keys, stamps, *layers = [tensor.numpy() for tensor in regions[:-1]]
        own, (of, *samples) = layers[: SAMPLE_ROW - 1], layers[SAMPLE_ROW - 1 :]
        at, known = np.searchsorted(self.keys, keys), self.has(keys)
        rows, sampled, new = np.empty_like(keys), np.full_like(keys, -1), at[~known]
        rows[known], sampled[known] = self.rows[at[known]], self.sampled[at[known]]
        has = of >= 0 if len(of) > 0 else np.zeros(len(keys), bool)
        gets, gives = has & (sampled < 0), sampled[~has & (sampled >= 0)]
        rows[~known], sampled[gets] = self.regions.spare(len(new)), self.samples.spare(gets.sum())
        sampled[~has] = -1
        self.regions.write(rows, own)
        self.samples.write(sampled[has], [t[of[has]] if len(t) > 0 else t for t in samples])
        self.regions.free = self.regions.free[len(new) :]
        self.samples.free = np.concatenate([self.samples.free[gets.sum() :], gives])
        self.stamps[at[known]], self.sampled[at[known]] = stamps[known], sampled[known]
        if len(new) > 0:
            self.stamps = np.insert(self.stamps, new, stamps[~known])
            self.rows = np.insert(self.rows, new, rows[~known])
            self.sampled = np.insert(self.sampled, new, sampled[~known])
            self.keys = np.insert(self.keys, new, keys[~known])
        self.stale.update((keys & PART).tolist())

    def drop(self, keys: np.ndarray) -> None:
        """Forgets the regions of keys that are here."""
        keys = keys[self.has(keys)]
        at = np.searchsorted(self.keys, keys)
        of = self.sampled[at]
        self.regions.free = np.concatenate([self.regions.free, self.rows[at]])
        self.samples.free = np.concatenate([self.samples.free, of[of >= 0]])
        self.stamps, self.rows = np.delete(self.stamps, at), np.delete(self.rows, at)
        self.keys, self.sampled = np.delete(self.keys, at), np.delete(self.sampled, at)
        self.stale.update((keys & PART).tolist())

    def open(self, made: OccupancyMap) -> None:
        """Becomes the store of a map, with what its folder holds."""
        expect(not self.facts, "OccupancyMap: a store must have no other map", self.facts)
        self._reset(tensors_of(made.layers))
        facts = facts_of(made)
        for path in self._listed({**facts, "layers": self.layers}):
            held = read_map(path)
            same = all(getattr(held, name) == fact for name, fact in facts.items())
            good = same and list(held.layers) == self.layers
            if not good or (held.keys & PART != int(path.stem)).any():
                raise CloudFileError(f"{path} is not the part of this map that its name says")
            self.put(regions_of(held, torch.device("cpu")))
        self.facts = facts
        self.stale.clear()

    def flush(self) -> None:
        """Writes parts that changed, then the index, then removes files of parts that are gone:
        wherever this stops, each file is the old or the new one."""
        if self.folder is None:
            return
        of = self.keys & PART
        parts = np.unique(of).tolist()
        for part in sorted(self.stale.intersection(parts)):
            regions = self.get(self.keys[of == part])
            layers = {name: getattr(regions, name).numpy() for name in self.layers}
            contents = MapContents(regions.keys.numpy(), layers, **self.facts)
            write_map(self.folder / f"{part}.npz", contents)
        index = {**self.facts, "layers": self.layers, "parts": parts}
        write_text(self.folder / "index.json", json.dumps(index))
        for part in self.stale.difference(parts):
            (self.folder / f"{part}.npz").unlink(missing_ok=True)
        self.stale.clear()

    def _listed(self, facts: dict[str, Any]) -> list[Path]:
        """Files of the parts that the index names."""
        if self.folder is None or not (self.folder / "index.json").exists():
            return []
        path = self.folder / "index.json"
        with explained(path, "index of a map"):
            index = json.loads(path.read_text())
            parts = index.pop("parts")
            good = index.keys() == facts.keys() and isinstance(parts, list)
            if not good or not all(type(part) is int for part in parts):
                raise ValueError(f"it must tell {', '.join(facts)}, parts")
        for name, fact in facts.items():
            if index[name] != fact:
                raise WrongUseError(
                    f"{path} is of a map with {name} {short(index[name])}, not {fact}"
                )
        return [self.folder / f"{part}.npz" for part in parts]


def contains(ascending: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which keys are among ascending ones: bool."""
    if len(ascending) == 0:
        return np.zeros(len(keys), bool)
    return ascending[np.searchsorted(ascending, keys).clip(max=len(ascending) - 1)] == keys


def groups(keys: np.ndarray, size: int) -> list[np.ndarray]:
    return [keys[i : i + size] for i in range(0, len(keys), size)]


def cached(made: OccupancyMap) -> tuple[np.ndarray, np.ndarray]:
    """Keys in the cache, ascending, and their stamps."""
    if made._is_traced():
        raise RuntimeError("OccupancyMap: a store takes no part in a program or a CUDA graph")
    keys, stamps = made.region_key.cpu().numpy(), made.region_stamp.cpu().numpy()
    used = np.flatnonzero(keys >= 0)
    order = used[np.argsort(keys[used])]
    return keys[order], stamps[order]


def on_device(made: OccupancyMap, keys: np.ndarray) -> Tensor:
    return torch.tensor(keys).to(made.region_key.device)


def fetched(made: OccupancyMap, keys: np.ndarray) -> Iterator[MapRegions]:
    """Regions of the cache, ascending, in host memory."""
    for group in groups(keys, ROWS):
        mask = torch.isin(made.region_key, on_device(made, group))
        yield MapRegions._make([t.cpu() for t in read_regions(made.state, mask, exact=True)])


def write_back(made: OccupancyMap, keys: np.ndarray) -> None:
    """Puts those of the keys of the cache that changed into the store."""
    store = made.store
    for regions in fetched(made, keys[contains(store.changed, keys)]):
        store.put(regions)
    store.changed = store.changed[~contains(keys, store.changed)]


def settle(made: OccupancyMap) -> RegionStore:
    """The store, as the whole map."""
    write_back(made, cached(made)[0])
    made.store.changed = NO_KEYS
    return made.store


def leave(made: OccupancyMap, keys: np.ndarray) -> None:
    write_back(made, keys)
    ops.occupancy_remove_(made.state, torch.isin(made.region_key, on_device(made, keys)))


def enter(
    made: OccupancyMap,
    keys: np.ndarray,
    *,
    alone: bool = False,
    now: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Brings in what the map knows of ascending keys, no more than the capacity, and makes room for
    the others of them. The least recently stamped others leave, ties by key, or, alone, all."""
    store, (held, stamps) = made.store, now or cached(made)
    here = contains(held, keys)
    others = np.flatnonzero(~contains(keys, held))
    if not alone:
        excess = max(len(others) + len(keys) - made.capacity, 0)
        others = np.sort(others[np.lexsort((held[others], stamps[others]))[:excess]])
    if len(others) > 0:
        leave(made, held[others])
    for group in groups(keys[store.has(keys) & ~here], ROWS):
        regions = store.get(group, pinned=made.status.is_cuda)
        there, *layers = [t.to(made.status.device, non_blocking=True) for t in regions[:-1]]
        options: Any = {"sensor": made.sensor, "merge": "replace"}
        ops.occupancy_insert_(made.state, there, layers, **options)


def regions_of_rays(
    made: OccupancyMap, points: Tensor, origins: Tensor, options: dict[str, Any]
) -> np.ndarray:
    """Keys of regions that rays touch."""
    store: RegionStore = made.store
    given: Any = {name: options[name] for name in RAYS if name in options}
    while True:
        keys, counts = ray_regions(
            points, origins, made.voxel_size, made.origin, store.most, **given
        )
        found = int(counts[0, 1])
        if found <= store.most:
            return keys[:found].cpu().numpy()
        store.most = max(found, 2 * store.most)


def integrate(
    made: OccupancyMap,
    points: Tensor,
    origins: Tensor,
    rays: dict[str, Any],
    call: Callable[..., Tensor],
) -> Tensor:
    """Counts of a call of `occupancy_integrate_`, made for all regions at once or, if they are more
    than the capacity, for each group of them; all or nothing."""
    now, store = cached(made), made.store
    keys = regions_of_rays(made, points, origins, rays)
    known = store.has(keys) | contains(now[0], keys)
    needed = keys[known] if rays.get("missing") == "skip" else keys
    size, room = number_of_regions(made, now[0]), made.capacity
    if len(needed) <= room:
        enter(made, needed, now=now)
        store.changed = np.union1d(store.changed, keys)
        counts = call(max_touched=len(keys))
        counts[0, 10] = size + counts[0, 9]
        return counts
    if "stop_at_occupied" in (rays.get("flags") or []):
        raise RuntimeError(
            f"OccupancyMap: rays that stop at occupied voxels need all their {len(needed)} regions "
            f"in the cache of {room}: {LARGER}, or fewer rays a call"
        )
    settle(made)
    found: list[Tensor] = []
    done: list[MapRegions] = []
    try:
        for group in groups(needed, room):
            enter(made, group, alone=True)  # nothing is written back: nothing counts as changed
            options: Any = {"sensor": made.sensor, "merge": "keep"}
            ops.occupancy_insert_(made.state, on_device(made, group), [], **options)
            found.append(call(missing="skip", max_touched=len(keys)))
            done.extend(fetched(made, group))
    except BaseException:
        ops.occupancy_remove_(made.state, made.region_key >= 0)  # the store is as before the call
        raise
    for regions in done:
        store.put(regions)
    counts, new = found[0], len(needed) - int(known.sum())
    counts[0, 7:9] = torch.cat(found)[:, 7:9].sum(0)
    counts[0, 13] = torch.cat(found)[:, 13].sum()
    counts[0, 9], counts[0, 10], counts[0, 12] = new, size + new, len(keys) - len(needed)
    return counts


def number_of_regions(made: OccupancyMap, held: np.ndarray) -> int:
    """Of the whole map. held: keys of the cache."""
    return len(made.store.keys) + int((~made.store.has(held)).sum())


def query(
    made: OccupancyMap, points: Tensor, num_valid: Tensor | None, call: Callable[[], Any]
) -> Any:
    """Values of `occupancy_query`; call reads the cache, which is the map without a store."""
    found, ends = call(), points[:, :3]
    if made.store is None:
        return found
    each = torch.arange(len(ends), device=ends.device)
    rays = {"origin_index": each, "num_valid": num_valid}
    return _values(made, found, regions_of_rays(made, ends, ends, rays), call)


def crop(made: OccupancyMap, box: Any, poses: Tensor | None, call: Callable[[], Any]) -> Any:
    """Values of `occupancy_crop`, with the regions around each box."""
    found, store = call(), made.store
    if store is None:
        return found
    corners = torch.cartesian_prod(*torch.tensor(box, dtype=torch.float64).view(2, 3).T)
    away, margin = torch.ones(len(store.keys), dtype=torch.bool), 8 * made.voxel_size
    for pose in [torch.eye(4)[:3]] if poses is None else poses.cpu():
        places = transform_points(corners, pose[None].double())
        bounds = torch.cat([places.amin(0) - margin, places.amax(0) + margin])
        away &= outside(torch.tensor(store.keys), made.grid, bounds)
    return _values(made, found, store.keys[~away.numpy()], call)


def _values(made: OccupancyMap, found: Any, keys: np.ndarray, call: Callable[[], Any]) -> Any:
    """Values found in the cache as it was, and in regions of keys that were not there."""
    held, _ = cached(made)
    for group in groups(keys[made.store.has(keys) & ~contains(held, keys)], made.capacity):
        enter(made, group)
        more = call()
        pairs = zip(found, more, strict=True)
        found = type(found)(*[torch.where(more.label >= 0, new, old) for old, new in pairs])
    return found


def raycast(
    made: OccupancyMap,
    points: Tensor,
    origins: Tensor,
    options: dict[str, Any],
    call: Callable[..., ops.OccupancyRays],
) -> ops.OccupancyRays:
    """`occupancy_raycast`, of so many rays at a time as find their regions in the cache."""
    if made.store is None:
        return call(points, origins, **options)
    now, keys = cached(made), regions_of_rays(made, points, origins, options)
    keys = keys[made.store.has(keys) | contains(now[0], keys)]
    if len(keys) <= made.capacity:
        enter(made, keys, now=now)
        return call(points, origins, **options)
    n = len(points)
    if n == 1:
        raise RuntimeError(f"OccupancyMap: a ray passes {len(keys)} regions: {LARGER}")
    index, valid = options.get("origin_index"), options.get("num_valid")
    index = torch.zeros(n, dtype=torch.int64, device=points.device) if index is None else index
    if valid is not None:
        index = index.where(torch.arange(n, device=index.device) < valid, -1)
    halves = []
    for half in (slice(n // 2), slice(n // 2, n)):
        mine = {**options, "num_valid": None, "origin_index": index[half]}
        halves.append(raycast(made, points[half], origins, mine, call))
    return ops.OccupancyRays(*[torch.cat(pair) for pair in zip(*halves, strict=True)])


def extract(made: OccupancyMap, select: str, max_out: int | None) -> ops.OccupancyRows:
    """`occupancy_extract` of the whole map, in host memory."""
    options: Any = {"select": select, "threshold": made.threshold}
    keys, found = settle(made).keys, []
    for group in groups(keys, made.capacity) or [keys]:
        enter(made, group, alone=True)
        rows = int(ops.occupancy_extract(made.state, 0, **options).counts[0, 1])
        found.append(ops.occupancy_extract(made.state, rows, **options))
    n = sum(len(rows.logodds) for rows in found)
    counts = torch.zeros(1, 8, dtype=torch.int64)
    counts[0, 1] = n
    counts[0, 0] = n = n if max_out is None else min(n, max_out)
    room = n if max_out is None else max_out
    columns: list[Any] = []
    for parts, unused in zip(zip(*found, strict=True), (0, 0, -1, 0), strict=False):
        whole = parts[0].new_full((room, *parts[0].shape[1:]), unused, device="cpu")
        whole[:n] = torch.cat([part.cpu() for part in parts])[:n]
        columns.append(whole)
    return ops.OccupancyRows._make([*columns, counts])


def decay(made: OccupancyMap, mask: Tensor | None, call: Callable[[], Tensor]) -> Tensor:
    """Counts of calls that decay each region once. call: decays those of the cache."""
    if made.store is None:
        return call()
    expect(mask is None, NO_MASK, mask)
    store, counts = settle(made), []
    for group in groups(store.keys, made.capacity) or [store.keys]:
        enter(made, group, alone=True)
        store.changed = group
        counts.append(call())
        store.drop(group[~contains(cached(made)[0], group)])
    return torch.stack(counts).sum(0)


def read(made: OccupancyMap, mask: Tensor | None) -> MapRegions:
    """All regions, in host memory."""
    expect(mask is None, NO_MASK, mask)
    store = settle(made)
    return store.get(store.keys)


def refuse(made: OccupancyMap) -> None:
    if made.store is not None:
        raise RuntimeError("OccupancyMap: a map with a store has no state_dict: flush or save it")


def evict(
    made: OccupancyMap, box: Any, older_than: Any, mask: Any, read: bool
) -> MapRegions | None:
    """Regions leave cache and store; returned in host memory."""
    expect(mask is None, NO_MASK, mask)
    store = settle(made)
    if box is not None:
        bounds = box.cpu() if isinstance(box, Tensor) else box
        gone = store.keys[outside(torch.tensor(store.keys), made.grid, bounds).numpy()]
    else:
        gone = store.keys[store.stamps < int(older_than)]
    regions = store.get(gone) if read else None
    leave(made, gone)
    store.drop(gone)
    return regions


def insert(
    made: OccupancyMap, keys: Tensor, layers: list[Tensor], merge: str, count: Tensor | None
) -> Tensor:
    """Counts of `occupancy_insert_`, of so many regions at a time as the cache holds."""
    store, given = made.store, keys.cpu().numpy()[: None if count is None else int(count)]
    before = np.maximum.accumulate(np.concatenate([[-1], given]))[:-1]
    good, counts = np.flatnonzero(given > before), []
    for rows in groups(good, made.capacity) or [good]:
        enter(made, given[rows])
        store.changed = np.union1d(store.changed, given[rows])
        options: Any = {"sensor": made.sensor, "merge": merge}
        mine = picked(layers, torch.tensor(rows).to(keys.device)) if layers else []
        mine = [t.to(made.status.device) for t in mine]
        counts.append(
            ops.occupancy_insert_(made.state, on_device(made, given[rows]), mine, **options)
        )
    total = torch.stack(counts).sum(0)
    total[0, 1], total[0, 2] = len(given), len(given) - len(good)
    total[0, 4] = number_of_regions(made, cached(made)[0])
    return total
