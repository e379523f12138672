# SPDX-License-Identifier: Apache-2.0
"""A map that owns its state: what rays say of the space around a sensor, growing as needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from torchvox._util.errors import WrongUseError, expect
from torchvox.mapping.contents import MapContents, write_map, write_voxels
from torchvox.mapping.counts import INTEGRATE, EditCounts, IntegrateCounts
from torchvox.mapping.files import MAP_SUFFIXES, VOXEL_SUFFIXES, read
from torchvox.mapping.octomap import write_octomap
from torchvox.mapping.regions import INDEX_LAYERS, MapRegions, MapVoxels, outside, tensors_of
from torchvox.mapping.sensor import NDT_RULE, PRESETS, NdtModel, SensorModel, log_odds
from torchvox.mapping.state import MapState
from torchvox.mapping.store import RegionStore
from torchvox.nn.rays import visibility_channels
from torchvox.ops import occupancy as ops
from torchvox.ops.annotations import Merge, Select
from torchvox.ops.mistakes import naming_mistakes
from torchvox.ops.rays import transform_points

Floats = Sequence[float]
Box: TypeAlias = Sequence[float] | Tensor
Values = ops.OccupancyValues
CLEARING = ["end_as_free", "stop_at_occupied", "exclude_free", "exclude_unobserved"]


class Rays(NamedTuple):
    """Rays of one call: ends, origins, and options of the op, such as the origin of each ray."""

    points: Tensor
    origins: Tensor
    options: dict[str, Any]


class OccupancyMap(MapState):
    """Occupancy of voxels from the rays of a sensor; options of methods are those of the ops.

    voxel_size: meters. capacity: regions of 8 x 8 x 8 voxels at first, or bytes: "2GiB".
    origin: a corner of voxel (0, 0, 0), in meters.
    preset: of `torchvox.mapping.PRESETS`, or a `SensorModel`: PRESETS["ohm"]._replace(hit=0.8).
    threshold: probability from which a voxel is occupied.
    layers: of `torchvox.occupancy_layout`; "logodds" alone says what is occupied.
    ndt: True, or an `NdtModel`, for the layers "sample_mean" and "sample_cov". By default its
        adaptation is that of the preset's misses.
    sample_rows: regions that may have samples, at first; None: a quarter of the capacity, all with
        a store.
    on_overflow: "grow"; "raise"; or "ignore", which reads nothing back from the device: a call that
        does not fit changes nothing, and later ones neither until `grow` is called. The others
        read the counts of each call. max_touched: of `occupancy_integrate_`.
    store: a `RegionStore` for a map larger than its device, a `StreamedMap`. The capacity is then
        that of a cache, which changes no result; on_overflow and max_touched do not apply.
        docs/maps.md describes it.

    The state is buffers. The map's own state_dict() holds them as they are, and loads into a
    map of any capacity; the state_dict() of a model around it omits them. Nothing is
    differentiable.

    >>> m = torchvox.OccupancyMap(voxel_size=0.5)
    >>> counts = m.integrate(torch.tensor([[4.0, 0, 0]]), origins=torch.zeros(1, 3))
    >>> m.query(torch.tensor([[4.0, 0, 0], [2, 0, 0], [9, 0, 0]])).label  # hit, free, unknown
    tensor([ 1,  0, -1], dtype=torch.int8)
    """

    streamed: ClassVar[type[OccupancyMap]]  # the class of maps with a store
    store: RegionStore | None

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
        self.grid = self.voxel_size, self.origin
        good = self.voxel_size > 0 and len(self.origin) == 3
        expect(good, f"{me} voxel_size must be above 0, origin three numbers", self.grid)
        self.model, self.sensor = preset, preset.log_odds
        self.threshold, self.layers = log_odds(threshold), tuple(layers)
        self.on_overflow, self.max_touched = on_overflow, int(max_touched)
        self.ndt = self._ndt_model(ndt)
        subclass = "a subclass with a store must be one of StreamedMap"
        expect(store is None or isinstance(self, self.streamed), f"{me} {subclass}", type(self))
        self.store = store
        self._start(capacity, sample_rows, device)

    def __new__(cls, *_: object, store: RegionStore | None = None, **__: object) -> OccupancyMap:
        """With a store, OccupancyMap(..) makes a `StreamedMap`."""
        return super().__new__(cls.streamed if cls is OccupancyMap and store is not None else cls)

    __new__.__wrapped__ = __init__  # type: ignore[attr-defined]  # for inspect.signature

    # ---- rays -----------------------------------------------------------------------------------

    @naming_mistakes
    def integrate(
        self, points: Tensor, origins: Tensor | None = None, pose: Tensor | None = None, **rays: Any
    ) -> Tensor:
        """Rays from origins to points, as one batch; counts of `occupancy_integrate_`.

        origins: [1, 3], [N, 3], or rows that origin_index names. pose: [3, 4] or [4, 4] instead,
            for points in the frame of a sensor at its (0, 0, 0). stamp is the number of the call.
        rays: of the op; a map with "intensity" takes intensity= and intensity_range=.
        """
        if pose is not None and origins is None:
            rule = "OccupancyMap: pose must be [3, 4] or [4, 4]"
            expect(pose.shape in ((3, 4), (4, 4)), rule, list(pose.shape))
            pose = pose[:3].to(self.status.device, torch.float64)
            points, origins = transform_points(points, pose[None]), pose[None, :, 3]
        elif origins is None or pose is not None:
            raise ValueError("OccupancyMap: integrate takes either origins or a pose")
        options = {
            "rule": self.model.rule,
            "threshold": self.threshold,
            "stamp": self.clock + 1,
            "ndt": None if self.ndt is None else self.ndt.numbers,
        }
        counts = self._integrate(_rays(points, origins, {**options, **rays}))
        overflow = INTEGRATE.overflow
        self.clock.add_(counts[0, overflow : overflow + 1] == 0)
        return counts

    def clear_along(self, points: Tensor, origins: Tensor | None = None, **rays: Any) -> Tensor:
        """A miss for the first occupied voxel on the way of each ray, its end included: what stood
        there has left. Arguments and counts as `integrate`."""
        return self.integrate(points, origins, flags=CLEARING, **rays)

    @naming_mistakes
    def raycast(self, points: Tensor, origins: Tensor, **options: Any) -> ops.OccupancyRays:
        """`occupancy_raycast`: status 0 where points are in sight. origins as in `integrate`."""
        return self._raycast(_rays(points, origins, {"threshold": self.threshold, **options}))

    def _integrate(self, rays: Rays, max_touched: int | None = None) -> Tensor:
        """Counts of the op, called again with more room until its regions fit."""
        while True:
            most = self.max_touched if max_touched is None else max_touched
            counts = ops.occupancy_integrate_(
                self.state, *rays[:2], *self.grid, self.sensor, most, **rays.options
            )
            if self._fits(IntegrateCounts, counts):
                return counts

    def _raycast(self, rays: Rays) -> ops.OccupancyRays:
        return ops.occupancy_raycast(self.state, *rays[:2], *self.grid, **rays.options)

    # ---- reading --------------------------------------------------------------------------------

    @naming_mistakes
    def query(self, points: Tensor, **options: Any) -> Values:
        """`occupancy_query` at points [N, 3 or more], or at one point [3], with one row."""
        options = {"threshold": self.threshold, **options}
        return ops.occupancy_query(self.state, torch.atleast_2d(points), *self.grid, **options)

    def crop(self, cell_size: Floats, point_cloud_range: Floats, **options: Any) -> Values:
        """`occupancy_crop`: volumes [B, nz, ny, nx], one for each of poses."""
        options = {"threshold": self.threshold, **options}
        cells = list(cell_size), list(point_cloud_range)
        return ops.occupancy_crop(self.state, *self.grid, *cells, **options)

    def bev(
        self, channels: list[str], cell_size: Floats, point_cloud_range: Floats, **options: Any
    ) -> Tensor:
        """`visibility_channels` of a crop: [B, planes, ny, nx]."""
        cells = list(cell_size), list(point_cloud_range)
        return visibility_channels(self.crop(*cells, **options).label + 1, channels, *cells)

    def extract(self, select: Select = "occupied", max_out: int | None = None) -> MapVoxels:
        """Voxels that are "occupied", "free" or "observed", by region, then by place in it.
        max_out: rows of the result; None counts them first, with a host synchronization."""
        logodds, mean, indices, num_samples, counts = self._extract(select, max_out)
        centers = (indices[:, 1:].double() + 0.5).masked_fill(indices[:, :1] < 0, math.nan)
        voxels = centers.flip(1) + mean
        places = [voxels[:, i] * self.voxel_size + self.origin[i] for i in range(3)]
        return MapVoxels(torch.stack(places, 1), indices, logodds, num_samples, counts[0, 1:2])

    def _extract(self, select: Select, max_out: int | None) -> ops.OccupancyRows:
        rows = partial(ops.occupancy_extract, self.state, select=select, threshold=self.threshold)
        return rows(int(rows(0).counts[0, 1]) if max_out is None else max_out)

    def read(self, mask: Tensor | None = None) -> MapRegions:
        """Copies of the regions of a mask [C] bool, or of all. As many rows as there are, with a
        host synchronization; C rows with on_overflow="ignore", inside programs and CUDA graphs."""
        return self.slots.select(mask, self.on_overflow != "ignore" and not self._is_traced())

    def whole(self) -> MapRegions:
        """All regions, exactly: on the device of the map, or in host memory with a store."""
        return self.slots.select(None, exact=True)

    def equal(self, other: OccupancyMap) -> bool:
        """Whether both know the same of the same regions, whatever slots and stamps they have."""
        one, two = self.whole()._asdict(), other.whole()._asdict()
        names = [name for name in one if name != "region_stamp"]
        same = (torch.equal(one[name], two[name].to(one[name].device)) for name in names)
        return self.grid == other.grid and all(same)

    # ---- editing --------------------------------------------------------------------------------

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
        return self._decay(factor, math.floor(log_odds(forget) * 1024), mask)

    def _decay(self, factor: int, forget: int, mask: Tensor | None) -> Tensor:
        empty, counts = ops.occupancy_decay_(self.state, factor, 0, forget, mask=mask)
        ops.occupancy_remove_(self.state, empty)
        return counts

    def clear(self) -> None:
        """Forgets everything; the capacity stays."""
        ops.occupancy_remove_(self.state, self.region_key >= 0)
        self.status[1:] = 0
        self.clock.zero_()

    def evict(
        self,
        box: Box | None = None,
        older_than: int | Tensor | None = None,
        mask: Tensor | None = None,
        *,
        read: bool = True,
    ) -> MapRegions | None:
        """Regions leave the map; returns them as `read` does, for `insert`, unless read=False.
        One of: box (x0, y0, z0, x1, y1, z1) in meters, numbers or a tensor; regions that reach
        into it stay (a rolling window). older_than: a stamp. mask: [C] bool."""
        if sum(way is not None for way in (box, older_than, mask)) != 1:
            raise ValueError("OccupancyMap: evict takes one of box, older_than and mask")
        return self._evict(box, older_than, mask, read)

    def _evict(
        self, box: Box | None, older_than: int | Tensor | None, mask: Tensor | None, read: bool
    ) -> MapRegions | None:
        if older_than is not None:
            mask = self.region_stamp < older_than
        elif box is not None:
            mask = outside(self.region_key, self.grid, box)
        assert mask is not None
        regions = self.read(mask) if read else None
        ops.occupancy_remove_(self.state, mask)
        return regions

    def insert(self, regions: MapRegions, merge: Merge = "add") -> Tensor:
        """Regions enter; merge, of those that exist: "add", "replace", "keep". Returns counts of
        `occupancy_insert_`."""
        return self._insert(regions.keys, regions.layers, merge, regions.count)

    def allocate(self, keys: Tensor) -> Tensor:
        """Makes room for regions of ascending keys [K] int64, as of `ray_regions`."""
        return self._insert(keys, [], "keep", None)

    def _insert(
        self, keys: Tensor, layers: list[Tensor], merge: Merge, count: Tensor | None
    ) -> Tensor:
        """Counts of the op, called again with more room until the regions fit."""
        while True:
            counts = ops.occupancy_insert_(
                self.state, keys, layers, sensor=self.sensor, merge=merge, num_valid=count
            )
            if self._fits(EditCounts, counts):
                return counts

    def merge(self, other: OccupancyMap) -> Tensor:
        """Adds what a map of the same grid and layers knows; counts of `occupancy_insert_`."""
        rule = "OccupancyMap: merge takes maps of one grid and the same layers"
        expect(self.grid == other.grid, f"{rule}, {self.grid}", other.grid)
        same = set(self.layers) == set(other.layers)
        expect(same, f"{rule}, {self.layers}", other.layers)
        counts = self.insert(MapRegions(*[t.to(self.home) for t in other.read()]))
        self.clock.clamp_(min=other.clock.to(self.clock.device))
        return counts

    @property
    def home(self) -> torch.device:
        """Where regions that enter should be: the device, or the host with a store."""
        return self.status.device

    # ---- files ----------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Any]:
        """What files of the map say of it besides its regions."""
        facts: dict[str, Any] = {"voxel_size": self.voxel_size, "origin": list(self.origin)}
        facts["sensor"] = [float(share) for share in self.model[:4]]
        return {**facts, "rule": self.model.rule, "ndt": None if self.ndt is None else [*self.ndt]}

    def contents(self) -> MapContents:
        """What the map knows, on the CPU, whatever its slots, capacity and history."""
        regions = self.whole()
        layers = {name: getattr(regions, name).cpu().numpy() for name in tensors_of(self.layers)}
        preset = next((name for name, model in PRESETS.items() if model == self.model), None)
        return MapContents(regions.keys.cpu().numpy(), layers, **self.facts, preset=preset)

    def save(self, path: str | Path, select: Select = "occupied") -> None:
        """Writes the map as .npz, canonically: equal maps of one sensor model give the same bytes,
        whatever their slots, stamps and devices. Or as an OctoMap tree, .bt or .ot; or the voxels
        that are select ("occupied", "free", "observed") as points, .ply, .las or .laz.
        docs/maps.md has the formats. With a host synchronization."""
        suffix = Path(path).suffix.lower()
        if suffix == ".npz":
            write_map(path, self.contents())
        elif suffix in MAP_SUFFIXES:
            write_octomap(path, self.contents(), self.threshold)
        elif suffix in VOXEL_SUFFIXES:
            self.save_voxels(path, self.extract(select))
        else:
            suffixes = ", ".join((*MAP_SUFFIXES, *VOXEL_SUFFIXES))
            raise WrongUseError(f"{path}: maps are written as {suffixes}")

    def save_voxels(self, path: str | Path, voxels: MapVoxels) -> None:
        """Writes voxels of the map as points: means of samples to 1/1024 voxel, or centers."""
        columns, steps = {"logodds": voxels.logodds.cpu().numpy()}, 1
        if "sample_mean" in self.layers:
            columns, steps = {**columns, "num_samples": voxels.num_samples.cpu().numpy()}, 1024
        write_voxels(path, voxels.points.cpu().numpy(), columns, *self.grid, steps)

    @classmethod
    def load(cls, source: str | Path | MapContents, **options: Any) -> OccupancyMap:
        """The map of a file that `save` wrote as .npz, .bt or .ot, or of contents.

        options: capacity and sample_rows, by default what the file needs or more; threshold,
            on_overflow, max_touched and device. Stamps and the number of calls begin at 0.
        Raises CloudFileError for a file that is not a map.
        """
        contents = source if isinstance(source, MapContents) else read(source)
        rows, samples = len(contents.keys), len(contents.layers.get("sample_count", ()))
        arguments: dict[str, Any] = {
            "capacity": max(rows, 4096),
            "origin": contents.origin,
            "preset": SensorModel._make([*contents.sensor, contents.rule]),
            "layers": tuple(name for name in contents.layers if name not in INDEX_LAYERS),
            "ndt": NdtModel._make(contents.ndt) if contents.ndt else False,
            **options,
        }
        capacity = arguments["capacity"]
        if samples and arguments.get("store") is None and not isinstance(capacity, str):
            arguments.setdefault("sample_rows", max(samples, int(capacity) // 4))
        result = cls(contents.voxel_size, **arguments)
        fits = result.on_overflow == "grow" or (
            result.capacity >= rows and result.sample_rows >= samples
        )
        rule = f"OccupancyMap: capacity must be at least {rows}, sample_rows {samples}"
        expect(fits, rule, (result.capacity, result.sample_rows))
        result.insert(contents.regions(result.status.device), "replace")
        return result

    def flush(self) -> None:
        """Writes what the cache has to the store, and the store to its folder, if it has one."""
        raise ValueError("OccupancyMap: flush takes a map with a store")

    def _ndt_model(self, ndt: bool | NdtModel) -> NdtModel | None:
        """The model of a map, which then has its layers."""
        if not ndt and "sample_cov" not in self.layers:
            return None
        more = [name for name in ("sample_mean", "sample_cov") if name not in self.layers]
        self.layers = (*self.layers, *more)
        if not isinstance(ndt, NdtModel):
            ndt = NdtModel(adaptation=min(max(2 * (1 - 2 * self.model.miss), 0.0), 1.0))
        model = NdtModel._make(float(v) for v in ndt)
        expect(model.is_valid(self.model.rule), f"OccupancyMap: ndt must be {NDT_RULE}", model)
        return model


def _rays(points: Tensor, origins: Tensor, options: dict[str, Any]) -> Rays:
    """Rays with an index, if each of them has its own origin."""
    if origins.size(0) != 1 and origins.size(0) == points.size(0):
        index = torch.arange(points.size(0), device=points.device)
        options = {"origin_index": index, **options}
    return Rays(points, origins, options)
