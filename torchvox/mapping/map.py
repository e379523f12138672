# SPDX-License-Identifier: Apache-2.0
"""A map that owns its state: what rays say of the space around a sensor, growing as needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchvox._bytes import number_of_bytes
from torchvox._errors import expect
from torchvox.io.maps import NDT_RULE, MapContents, is_ndt
from torchvox.mapping import files
from torchvox.mapping import store as streaming
from torchvox.mapping.regions import MapRegions, outside, read_regions, tensors_of
from torchvox.mapping.store import RegionStore
from torchvox.nn.rays import visibility_channels
from torchvox.ops import occupancy as ops
from torchvox.ops.annotations import Select
from torchvox.ops.rays import transform_points

Floats = Sequence[float]
Values = ops.OccupancyValues
LAYOUT = [tensor.name for tensor in ops.occupancy_layout(0)]
CLEARING = ["end_as_free", "stop_at_occupied", "exclude_free", "exclude_unobserved"]
SAMPLES = LAYOUT.index("sample_count")
NO_GROWTH = "OccupancyMap: a map cannot grow inside a program or a CUDA graph: on_overflow='ignore'"


class SensorModel(NamedTuple):
    """Probabilities that a voxel is occupied after one hit and one miss, and the limits of what a
    map believes. rule: of `occupancy_integrate_`."""

    hit: float
    miss: float
    lowest: float
    highest: float
    rule: str = "every_ray"


PRESETS = {  # the last three are sensor values alone, without parity
    "ohm": SensorModel(0.9, 0.45, 0.1192029, 0.971),
    "octomap": SensorModel(0.7, 0.4, 0.1192029, 0.971, "scan"),
    "wavemap": SensorModel(0.7005671, 0.4013123, 0.1192029, 0.9820138, "scan"),
    "nvblox": SensorModel(0.7, 0.3, 0.01, 0.99, "scan"),
    "bonxai": SensorModel(0.7, 0.4, 0.12, 0.97, "scan"),
}


class NdtModel(NamedTuple):
    """How a map with the layer "sample_cov" takes rays. noise: standard deviation of ranges in
    meters. adaptation: from 0 to 1, how much a miss through the middle of a distribution weighs.
    samples: from how many on there is one. reset: probability below which a voxel that is hit
    forgets its samples, if it has reset_samples or more."""

    noise: float = 0.05
    adaptation: float = 0.2
    samples: float = 3
    reset: float = 0.2
    reset_samples: float = 100


class MapVoxels(NamedTuple):
    """points [n, 3] float64 in meters, means of samples, or centers of voxels without; indices
    [n, 4] int32 (0, z, y, x); logodds [n]; num_samples [n] int32; count [1] int64, voxels found.
    Rows without a voxel are NaN, -1 and 0."""

    points: Tensor
    indices: Tensor
    logodds: Tensor
    num_samples: Tensor
    count: Tensor


class OccupancyMap(nn.Module):
    """Occupancy of voxels from the rays of a sensor; options of methods are those of the ops.

    voxel_size: meters. capacity: regions of 8 x 8 x 8 voxels to begin with, or bytes: "2GiB".
    origin: a corner of voxel (0, 0, 0), in meters.
    preset: of `torchvox.mapping.PRESETS`, or a `SensorModel`: PRESETS["ohm"]._replace(hit=0.8).
    threshold: probability from which a voxel is occupied.
    layers: of `torchvox.occupancy_layout`; "logodds" alone says what is occupied.
    ndt: True, or an `NdtModel`, for the layers "sample_mean" and "sample_cov". By default its
        adaptation is that of the preset's misses.
    sample_rows: regions that may have samples, to begin with; None: a quarter of the capacity, all
        with a store.
    on_overflow: "grow"; "raise"; or "ignore", which reads nothing back from the device: a call that
        does not fit changes nothing, and later ones neither until `grow` is called. The others
        read the counts of each call. max_touched: of `occupancy_integrate_`.
    store: a `RegionStore` for a map larger than its device. The capacity is then that of a cache,
        which changes no result; on_overflow and max_touched do not apply. docs/maps.md tells more.

    The state is buffers. The map's own state_dict() holds them as they are, and loads into a
    map of any capacity; that of a model around it leaves them out. Nothing is differentiable.
    """

    region_key: Tensor
    region_stamp: Tensor
    status: Tensor
    clock: Tensor  # calls of integrate
    _buffers: dict[str, Tensor]

    @torch.inference_mode(False)
    def __init__(
        self,
        voxel_size: float = 0.1,
        capacity: int | str = 4096,
        *,
        origin: Sequence[float] = (0.0, 0.0, 0.0),
        preset: str | SensorModel = "ohm",
        threshold: float = 0.5,
        layers: Sequence[str] = ("logodds",),
        ndt: bool | NdtModel = False,
        sample_rows: int | None = None,
        on_overflow: str = "grow",
        max_touched: int = -1,
        device: str | torch.device | None = None,
        store: RegionStore | None = None,
    ) -> None:
        super().__init__()
        me, words = "OccupancyMap:", ("grow", "raise", "ignore")
        if isinstance(preset, str):
            expect(preset in PRESETS, f"{me} preset must be one of {', '.join(PRESETS)}", preset)
            preset = PRESETS[preset]
        expect(on_overflow in words, f"{me} on_overflow must be one of {words}", on_overflow)
        for share in (*preset[:4], threshold):
            expect(0 < share < 1, f"{me} probabilities must be between 0 and 1", share)
        self.voxel_size, self.origin = float(voxel_size), [float(v) for v in origin]
        self.grid: Any = self.voxel_size, self.origin
        good = self.voxel_size > 0 and len(self.origin) == 3
        expect(good, f"{me} voxel_size must be above 0, origin three numbers", self.grid)
        self.model, self.sensor = preset, [log_odds(share) for share in preset[:4]]
        self.threshold, self.layers = log_odds(threshold), tuple(layers)
        self.on_overflow, self.max_touched = on_overflow, int(max_touched)
        self.ndt = self._ndt(ndt)
        share = 1 if store is not None else 4  # of regions to those with samples
        if isinstance(capacity, str):
            most = number_of_bytes(capacity, f"{me} capacity")
            some: Any = {"layers": self.layers, "sample_rows": 1, "device": "cpu"}
            sizes = [t.nbytes for t in ops.occupancy_state(1, **some)]
            region, samples = 16 + sum(sizes[1:SAMPLES]), sum(sizes[SAMPLES:])  # 16 of the table
            capacity = max(most - (sample_rows or 0) * samples, 0) // region
            if sample_rows is None:
                capacity = most * share // (region * share + samples)
            if store is not None:
                rule = f"{me} capacity must hold a region of {region + samples} bytes"
                expect(most >= region + samples, rule, most)
        capacity = int(capacity)
        if sample_rows is None:
            sample_rows = capacity // share
        room: Any = {"layers": self.layers, "sample_rows": max(sample_rows, 1), "device": device}
        self._own(ops.occupancy_state(capacity, **room))
        self.register_buffer("clock", self.status[2:3].int(), persistent=False)
        self.store: Any = store
        if store is not None:
            free = on_overflow == "grow" and self.max_touched < 0 < self.capacity <= sample_rows
            rule = f"{me} a store takes a capacity above 0, and neither on_overflow nor max_touched"
            rule += " nor sample_rows"
            expect(free, rule, (self.capacity, on_overflow, self.max_touched, sample_rows))
            store.open(self)

    @property
    def state(self) -> list[Tensor]:
        """The tensors of `torchvox.occupancy_state`."""
        return [getattr(self, name) for name in LAYOUT]

    @property
    def capacity(self) -> int:
        return self.region_key.size(0)

    @property
    def sample_rows(self) -> int:
        return len(self._buffers["sample_count"])

    def integrate(
        self, points: Tensor, origins: Tensor | None = None, pose: Tensor | None = None, **rays: Any
    ) -> Tensor:
        """Rays from origins to points, as one batch; counts of `occupancy_integrate_`.

        origins: [1, 3], [N, 3], or rows that origin_index names. pose: [3, 4] or [4, 4] instead,
            for points in the frame of a sensor at its (0, 0, 0). stamp is the number of the call.
        rays: of the op; a map with "intensity" takes intensity= and intensity_range=.
        """
        if (origins is None) == (pose is None):
            raise ValueError("OccupancyMap: integrate takes either origins or a pose")
        if pose is not None:
            pose = pose[:3].to(self.status.device, torch.float64)
            points, origins = transform_points(points, pose[None]), pose[None, :, 3]
        model = {"stamp": self.clock + 1, "ndt": self._ndt_numbers()}
        rays = {**model, **_rays(points, origins, rays)}
        integrate: Any = ops.occupancy_integrate_

        def call(**other: Any) -> Tensor:
            given = *self.grid, self.sensor, other.pop("max_touched", self.max_touched)
            options = {"rule": self.model.rule, "threshold": self.threshold, **rays, **other}
            return integrate(self.state, points, origins, *given, **options)

        if self.store is None:
            counts = self._fitted(call, bits=11, seen=8, new=9, samples=13)
        else:
            counts = streaming.integrate(self, points, origins, rays, call)
        self.clock.add_(counts[0, 11:12] == 0)
        return counts

    def clear_along(self, points: Tensor, origins: Tensor | None = None, **rays: Any) -> Tensor:
        """A miss for the first occupied voxel on the way of each ray, its end included: what stood
        there has left. Arguments and counts as `integrate`."""
        return self.integrate(points, origins, flags=CLEARING, **rays)

    def query(self, points: Tensor, **options: Any) -> Values:
        """`occupancy_query` at points."""
        options = {"threshold": self.threshold, **options}

        def call() -> Values:
            return ops.occupancy_query(self.state, points, *self.grid, **options)

        return streaming.query(self, points, options.get("num_valid"), call)

    def crop(self, cell_size: Floats, point_cloud_range: Floats, **options: Any) -> Values:
        """`occupancy_crop`: volumes [B, nz, ny, nx], one for each of poses."""
        grid: Any = *self.grid, list(cell_size), list(point_cloud_range)
        options = {"threshold": self.threshold, **options}

        def call() -> Values:
            return ops.occupancy_crop(self.state, *grid, **options)

        return streaming.crop(self, grid[-1], options.get("poses"), call)

    def bev(
        self, channels: list[str], cell_size: Floats, point_cloud_range: Floats, **options: Any
    ) -> Tensor:
        """`visibility_channels` of a crop: [B, planes, ny, nx]."""
        grid = list(cell_size), list(point_cloud_range)
        return visibility_channels(self.crop(*grid, **options).label + 1, channels, *grid)

    def extract(self, select: Select = "occupied", max_out: int | None = None) -> MapVoxels:
        """Voxels that are "occupied", "free" or "observed", by region, then by place in it.
        max_out: rows of the result; None counts them first, with a host synchronization."""
        if self.store is None:
            if max_out is None:
                max_out = int(self.extract(select, 0).count)
            found = ops.occupancy_extract(
                self.state, max_out, select=select, threshold=self.threshold
            )
        else:
            found = streaming.extract(self, select, max_out)
        logodds, mean, indices, num_samples, counts = found
        centers = (indices[:, 1:].double() + 0.5).masked_fill(indices[:, :1] < 0, math.nan)
        voxels = centers.flip(1) + mean
        places = [voxels[:, i] * self.voxel_size + self.origin[i] for i in range(3)]
        return MapVoxels(torch.stack(places, 1), indices, logodds, num_samples, counts[0, 1:2])

    def raycast(self, points: Tensor, origins: Tensor, **options: Any) -> ops.OccupancyRays:
        """`occupancy_raycast`: status 0 where points are in sight. origins as in `integrate`."""
        options = {"threshold": self.threshold, **_rays(points, origins, options)}

        def call(points: Tensor, origins: Tensor, **options: Any) -> ops.OccupancyRays:
            return ops.occupancy_raycast(self.state, points, origins, *self.grid, **options)

        return streaming.raycast(self, points, origins, options, call)

    def decay(
        self, time: float, half_life: float, forget: float = 0.5, mask: Tensor | None = None
    ) -> Tensor:
        """Log-odds times 2^(-time / half_life); voxels with a probability within [1 - forget,
        forget] become unobserved, and regions without others leave. mask: [C] bool, regions that
        fade. Returns counts of `occupancy_decay_`."""
        good = 0 <= time < math.inf and half_life > 0
        expect(good, "OccupancyMap: decay takes time >= 0 and half_life > 0", (time, half_life))
        expect(0.5 <= forget < 1, "OccupancyMap: forget must be from 0.5 to 1", forget)
        factor = round(65536 * 2.0 ** (-time / half_life))
        limit = math.floor(log_odds(forget) * 1024)

        def call() -> Tensor:
            empty, counts = ops.occupancy_decay_(self.state, factor, 0, limit, mask=mask)
            ops.occupancy_remove_(self.state, empty)
            return counts

        return streaming.decay(self, mask, call)

    def clear(self) -> None:
        """Forgets everything; the capacity stays."""
        ops.occupancy_remove_(self.state, self.region_key >= 0)
        self.status[1:] = 0
        self.clock.zero_()
        if self.store is not None:
            self.store.drop(self.store.keys)

    def read(self, mask: Tensor | None = None) -> MapRegions:
        """Copies of the regions of a mask [C] bool, or of all. As many rows as there are, with a
        host synchronization; C rows with on_overflow="ignore", inside programs and CUDA graphs."""
        exact = self.on_overflow != "ignore" and not self._is_traced()
        if self.store is not None:
            return streaming.read(self, mask)
        return read_regions(self.state, mask, exact)

    def evict(
        self, box: Any = None, older_than: Any = None, mask: Any = None, *, read: bool = True
    ) -> MapRegions | None:
        """Regions leave the map; returns them as `read` does, for `insert`, unless read=False.
        One of: box (x0, y0, z0, x1, y1, z1) in meters, numbers or a tensor; regions that reach
        into it stay (a rolling window). older_than: a stamp. mask: [C] bool."""
        if sum(way is not None for way in (box, older_than, mask)) != 1:
            raise ValueError("OccupancyMap: evict takes one of box, older_than and mask")
        if self.store is not None:
            return streaming.evict(self, box, older_than, mask, read)
        if older_than is not None:
            mask = self.region_stamp < older_than
        elif box is not None:
            mask = outside(self.region_key, self.grid, box)
        regions = self.read(mask) if read else None
        ops.occupancy_remove_(self.state, mask)
        return regions

    def insert(self, regions: MapRegions, merge: str = "add") -> Tensor:
        """Regions enter; merge, of those that exist: "add", "replace", "keep". Returns counts of
        `occupancy_insert_`."""
        keys, *layers, count = regions
        options: Any = {"sensor": self.sensor, "merge": merge, "num_valid": count}

        def call() -> Tensor:
            return ops.occupancy_insert_(self.state, keys, layers, **options)

        if self.store is not None:
            return streaming.insert(self, keys, layers, merge, count)
        return self._fitted(call, bits=5, seen=0, new=3, samples=6)

    def allocate(self, keys: Tensor) -> Tensor:
        """Makes room for regions of ascending keys [K] int64, as of `ray_regions`."""
        regions: Any = keys, None  # no layers, all rows
        return self.insert(regions, "keep")

    def merge(self, other: OccupancyMap) -> Tensor:
        """Adds what a map of the same grid and layers knows; counts of `occupancy_insert_`."""
        rule = f"OccupancyMap: merge takes maps of one grid, {self.grid}"
        expect(self.grid == other.grid, rule, other.grid)
        home = self.status.device if self.store is None else "cpu"
        counts = self.insert(MapRegions(*[t.to(home) for t in other.read()]))
        self.clock.clamp_(min=other.clock.to(self.clock.device))
        return counts

    def equal(self, other: OccupancyMap) -> bool:
        """Whether both know the same of the same regions, whatever slots and stamps they have."""
        one, two = self.whole(), other.whole()
        pairs = zip(one[:1] + one[2:], two[:1] + two[2:], strict=True)
        return self.grid == other.grid and all(torch.equal(a, b.to(a.device)) for a, b in pairs)

    def whole(self) -> MapRegions:
        """All regions, exactly: on the device of the map, or in host memory with a store."""
        return read_regions(self.state, None, exact=True) if self.store is None else self.read()

    def flush(self) -> None:
        """Writes what the cache has to the store, and the store to its folder, if it has one."""
        expect(self.store is not None, "OccupancyMap: flush takes a map with a store", self.store)
        streaming.settle(self).flush()

    @torch.inference_mode(False)
    def grow(self, capacity: int, sample_rows: int = 0) -> None:
        """Room for so many regions, and regions with samples, at least, and calls are let in again
        after one that did not fit. The buffers are new ones: CUDA graphs and exported programs keep
        the old."""
        if self._is_traced():
            raise RuntimeError(NO_GROWTH)
        sampled = "sample_mean" in self.layers and sample_rows > self.sample_rows
        if capacity > self.capacity or sampled:
            room: Any = {"layers": self.layers, "device": self.status.device}
            room["sample_rows"] = max(self.sample_rows, sample_rows)
            state = ops.occupancy_state(max(capacity, self.capacity), **room)
            for larger, tensor in zip(state[1:], self.state[1:], strict=True):
                larger[: len(tensor)].copy_(tensor)
            ops.occupancy_remove_(state, state[1] < -1)  # none; it builds the table
            self._own(state)
        self.status[3:4] = 0

    def save(self, path: str | Path, select: Select = "occupied") -> None:
        """Writes the map as .npz, canonically: equal maps of one sensor model give the same bytes,
        whatever their slots, stamps and devices. Or as an OctoMap tree, .bt or .ot; or the voxels
        that are select ("occupied", "free", "observed") as points, .ply, .las or .laz.
        docs/occupancy.md has the formats. With a host synchronization."""
        names = [name for name, model in PRESETS.items() if model == self.model]
        files.write(self, path, names[0] if names else None, select)

    @classmethod
    def load(cls, source: str | Path | MapContents, **options: Any) -> OccupancyMap:
        """A map of a file that `save` wrote as .npz, .bt or .ot, or of contents that are read.

        options: capacity and sample_rows, by default what the file needs or more; threshold,
            on_overflow, max_touched and device. Stamps and the number of calls begin at 0.
        Raises CloudFileError for a file that is no map.
        """
        held = source if isinstance(source, MapContents) else files.read(source)
        rows, model = len(held.keys), SensorModel._make([*held.sensor, held.rule])
        layers = tuple(name for name in held.layers if name not in ("sample_row", "sample_count"))
        sampled = len(held.layers.get("sample_count", ()))
        known: Any = {"origin": held.origin, "preset": model, "layers": layers}
        known["ndt"] = NdtModel._make(held.ndt) if held.ndt else False
        room = {"capacity": max(rows, 4096), **known, **options}
        if sampled and room.get("store") is None and not isinstance(room["capacity"], str):
            room = {"sample_rows": max(sampled, int(room["capacity"]) // 4), **room}
        made = cls(held.voxel_size, **room)
        fits = made.on_overflow == "grow" or (made.capacity >= rows and made.sample_rows >= sampled)
        rule = f"OccupancyMap: capacity must be at least {rows}, sample_rows {sampled}"
        expect(fits, rule, (made.capacity, made.sample_rows))
        made.insert(files.regions_of(held, made.status.device), "replace")
        return made

    def memory(self) -> dict[str, int]:
        """Bytes of each tensor of the state, and of the store in host memory."""
        stored = {} if self.store is None else {"store": self.store.nbytes}
        return {name: self._buffers[name].nbytes for name in LAYOUT} | stored

    def _fitted(
        self, call: Callable[[], Tensor], bits: int, seen: int, new: int, samples: int
    ) -> Tensor:
        """Counts of a call that writes all or nothing, made again with more room if need be; what
        was missing is in their columns bits, seen (regions touched), new, in use behind it, and
        samples (new rows of them)."""
        if self.on_overflow == "ignore":
            return call()
        if self._is_traced():
            raise RuntimeError(NO_GROWTH)
        while True:
            counts = call()
            row = counts[0].tolist()
            if row[bits] == 0:
                return counts
            if row[bits] & 8:
                raise RuntimeError("OccupancyMap: an earlier call did not fit: call grow first")
            self.status[3:4] = 0
            need = max(row[new] + row[new + 1], row[seen])
            sampled = row[samples] + int(self.status[2])
            if self.on_overflow == "raise":
                what, room = f"{need} regions", f"capacity={self.capacity}"
                if row[bits] & 4:
                    what, room = f"{sampled} rows of samples", f"sample_rows={self.sample_rows}"
                if self.max_touched >= 0:
                    room += f" and max_touched={self.max_touched}"
                raise RuntimeError(f"OccupancyMap: a call needs at least {what}, got {room}")
            if row[bits] & 1:
                self.max_touched = max(2 * self.max_touched, row[seen])
            if row[bits] & 2:
                self.grow(max(need, self.capacity * 3 // 2, 64))
            if row[bits] & 4:
                self.grow(0, max(sampled, self.sample_rows * 3 // 2))

    def _ndt(self, given: bool | NdtModel) -> NdtModel | None:
        """The model of a map, which then has its layers."""
        if not given and "sample_cov" not in self.layers:
            return None
        more = [name for name in ("sample_mean", "sample_cov") if name not in self.layers]
        self.layers = (*self.layers, *more)
        if not isinstance(given, NdtModel):
            given = NdtModel(adaptation=min(max(2 * (1 - 2 * self.model.miss), 0.0), 1.0))
        model = NdtModel._make(float(v) for v in given)
        expect(is_ndt(model, self.model.rule), f"OccupancyMap: ndt must be {NDT_RULE}", model)
        return model

    def _ndt_numbers(self) -> list[float] | None:
        if self.ndt is None:
            return None
        return [*self.ndt._replace(reset=log_odds(self.ndt.reset))]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves between devices; a model that is cast leaves its maps as they are."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        return super()._apply(moved, recurse)

    def _own(self, state: list[Tensor]) -> None:
        for name, tensor in zip(LAYOUT, state, strict=True):
            self.register_buffer(name, tensor, persistent=False)

    def _is_traced(self) -> bool:
        """Inside a compiler, or a stream that is captured, where nothing can be read back."""
        captured = self.status.is_cuda and torch.cuda.is_current_stream_capturing()
        return torch.compiler.is_compiling() or captured

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if prefix == "":
            streaming.refuse(self)
            destination.update({name: t.detach() for name, t in self._buffers.items()})
            destination["grid"] = torch.tensor([self.grid[0], *self.grid[1]], dtype=torch.float64)
            destination["ndt"] = torch.tensor(self.ndt or [], dtype=torch.float64)

    def load_state_dict(self, state_dict: Any, *_: Any, **__: Any) -> None:
        streaming.refuse(self)
        mine, grid = [self.grid[0], *self.grid[1]], state_dict["grid"].tolist()
        expect(grid == mine, f"OccupancyMap: a state must have the grid {mine}", grid)
        found = {name: state_dict[name].to(t, copy=True) for name, t in self._buffers.items()}
        self._buffers.update(found)
        model = state_dict["ndt"].tolist()
        self.ndt = NdtModel._make(model) if model else None
        if self.capacity > 0:
            held = [name for name in LAYOUT[4:] if len(getattr(self, name))]
            self.layers = tuple(
                name for name in held if name not in tensors_of(["sample_mean"])[:2]
            )


def log_odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def _rays(points: Tensor, origins: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options, with the index of rays each of which has an origin of its own."""
    if origins.size(0) == 1 or origins.size(0) != points.size(0):
        return options
    return {"origin_index": torch.arange(points.size(0), device=points.device), **options}
