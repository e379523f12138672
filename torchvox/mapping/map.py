# SPDX-License-Identifier: Apache-2.0
"""A map that owns its state: what rays say of the space around a sensor, growing as needed."""

import bisect
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from torchvox._bytes import number_of_bytes
from torchvox._errors import expect
from torchvox.mapping.regions import KEY, LAYERS, MapRegions, outside, read_regions
from torchvox.nn.rays import visibility_channels
from torchvox.ops import occupancy as ops
from torchvox.ops.rays import transform_points

LAYOUT = [tensor.name for tensor in ops.occupancy_layout(0)]
CLEARING = ["end_as_free", "stop_at_occupied", "exclude_free", "exclude_unobserved"]
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


class MapVoxels(NamedTuple):
    """points [n, 3] float64, centers in meters; indices [n, 4] int32 (0, z, y, x); logodds [n];
    count [1] int64, voxels found. Rows without a voxel are NaN, -1 and 0."""

    points: Tensor
    indices: Tensor
    logodds: Tensor
    count: Tensor


class OccupancyMap(nn.Module):
    """Occupancy of voxels from the rays of a sensor.

    voxel_size: meters. capacity: regions of 8 x 8 x 8 voxels to begin with, or bytes: "2GiB".
    origin: a corner of voxel (0, 0, 0), in meters.
    preset: of `torchvox.mapping.PRESETS`, or a `SensorModel`: PRESETS["ohm"]._replace(hit=0.8).
    threshold: probability from which a voxel is occupied.
    layers: "logodds", and "hit_miss" for how many rays hit and missed each voxel.
    on_overflow: "grow"; "raise"; or "ignore", which reads nothing back from the device: a call that
        does not fit changes nothing, and later ones neither until `grow` is called. The others
        read the counts of each call. max_touched: regions that a call may touch, which bounds its
        scratch memory; -1: the capacity.

    The state is six buffers; moving the map keeps their types. The map's own state_dict() holds
    them as they are, and loads into a map of any capacity; that of a model around the map does not.
    DistributedDataParallel would send them to all processes in every step: keep the map outside, or
    name its buffers in `_ddp_params_and_buffers_to_ignore`. Nothing is differentiable.
    """

    region_key: Tensor
    region_stamp: Tensor
    status: Tensor
    clock: Tensor
    _buffers: Dict[str, Tensor]

    def __init__(
        self,
        voxel_size: float = 0.1,
        capacity: Union[int, str] = 4096,
        *,
        origin: Sequence[float] = (0.0, 0.0, 0.0),
        preset: Union[str, SensorModel] = "ohm",
        threshold: float = 0.5,
        layers: Sequence[str] = ("logodds",),
        on_overflow: str = "grow",
        max_touched: int = -1,
        device: Union[str, torch.device, None] = None,
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
        self._frame: Any = self.voxel_size, self.origin
        self.grid = [self.voxel_size, *self.origin]
        self.model = preset
        self.sensor = [log_odds(share) for share in preset[:4]]
        self.threshold = log_odds(threshold)
        self.layers = tuple(layers)
        self.on_overflow = on_overflow
        self.max_touched = int(max_touched)
        if isinstance(capacity, str):
            capacity = self._regions_in(number_of_bytes(capacity, f"{me} capacity"))
        self._own(int(capacity), device)
        clock = torch.zeros(1, dtype=torch.int32, device=device)
        self.register_buffer("clock", clock, persistent=False)  # calls of integrate

    @property
    def state(self) -> List[Tensor]:
        """The tensors of `torchvox.occupancy_state`."""
        return [getattr(self, name) for name in LAYOUT]

    @property
    def capacity(self) -> int:
        return self.region_key.size(0)

    def integrate(
        self,
        points: Tensor,
        origins: Optional[Tensor] = None,
        *,
        pose: Optional[Tensor] = None,
        **options: Any,
    ) -> Tensor:
        """Rays from origins to points, as one batch; counts of `occupancy_integrate_`.

        origins: [1, 3], [N, 3], or rows that origin_index names. pose: [3, 4] or [4, 4] instead,
            for points in the frame of a sensor at its (0, 0, 0).
        options: origin_index, num_valid, ray_flags, point_cloud_range, min_range, max_range,
            long_rays, flags, missing and stamp of that op; stamp is the number of the call.
        """
        if (origins is None) == (pose is None):
            raise ValueError("OccupancyMap: integrate takes either origins or a pose")
        if pose is not None:
            pose = pose[:3].to(self.status.device, torch.float64)
            points, origins = transform_points(points, pose[None]), pose[None, :, 3]
        self.clock.add_(1)
        options = {"stamp": self.clock, **_rays(points, origins, options)}
        options.update(rule=self.model.rule, threshold=self.threshold)

        def call() -> Tensor:
            given: Any = *self._frame, self.sensor, self.max_touched
            return ops.occupancy_integrate_(self.state, points, origins, *given, **options)

        return self._fitted(call, bits=11, new=9, in_use=10)

    def clear_along(self, points: Tensor, origins: Optional[Tensor] = None, **rays: Any) -> Tensor:
        """A miss for the first occupied voxel on the way of each ray, its end included: what stood
        there has left. Arguments and counts as `integrate`."""
        return self.integrate(points, origins, flags=CLEARING, **rays)

    def query(self, points: Tensor, **options: Any) -> ops.OccupancyValues:
        """`occupancy_query` at points; options: num_valid and fill."""
        options["threshold"] = self.threshold
        return ops.occupancy_query(self.state, points, *self._frame, **options)

    def crop(
        self, cell_size: Sequence[float], point_cloud_range: Sequence[float], **options: Any
    ) -> ops.OccupancyValues:
        """`occupancy_crop`: volumes [B, nz, ny, nx]; options: poses and fill."""
        grid: Any = list(cell_size), list(point_cloud_range)
        options["threshold"] = self.threshold
        return ops.occupancy_crop(self.state, *self._frame, *grid, **options)

    def bev(
        self, channels: List[str], cell_size: Sequence[float], *grid: Any, **options: Any
    ) -> Tensor:
        """`visibility_channels` of a crop, whose arguments follow: [B, planes, ny, nx]."""
        label = self.crop(cell_size, *grid, **options).label
        return visibility_channels(label + 1, channels, float(cell_size[2]))

    def extract(self, select: str = "occupied", max_out: Optional[int] = None) -> MapVoxels:
        """Voxels that are "occupied", "free" or "observed", by region, then by place in it.

        max_out: rows of the result; None counts them first, with a host synchronization.
        """
        if max_out is None:
            max_out = int(self.extract(select, 0).count)
        logodds, indices, counts = ops.occupancy_extract(
            self.state, max_out, select=select, threshold=self.threshold
        )
        centers = (indices[:, 1:].double() + 0.5).masked_fill(indices[:, :1] < 0, math.nan)
        places = [centers[:, 2 - i] * self.voxel_size + self.origin[i] for i in range(3)]
        return MapVoxels(torch.stack(places, 1), indices, logodds, counts[0, 1:2])

    def raycast(self, points: Tensor, origins: Tensor, **options: Any) -> ops.OccupancyRays:
        """`occupancy_raycast`: status 0 where points are in sight. origins as in `integrate`;
        options: origin_index, num_valid, stop_unknown and solid_angle."""
        options = {**_rays(points, origins, options), "threshold": self.threshold}
        return ops.occupancy_raycast(self.state, points, origins, *self._frame, **options)

    def decay(
        self, time: float, half_life: float, forget: float = 0.5, mask: Optional[Tensor] = None
    ) -> Tensor:
        """Log-odds times 2^(-time / half_life); voxels with a probability within [1 - forget,
        forget] become unobserved, and regions without observed voxels leave. mask: [C] bool, the
        regions that fade. Returns counts of `occupancy_decay_`."""
        expect(0.5 <= forget < 1, "OccupancyMap: forget must be from 0.5 to 1", forget)
        factor = round(65536 * 2.0 ** (-time / half_life))
        limit = math.floor(log_odds(forget) * 1024)
        empty, counts = ops.occupancy_decay_(self.state, factor, 0, limit, mask=mask)
        ops.occupancy_remove_(self.state, empty)
        return counts

    def clear(self) -> None:
        """Forgets everything; the capacity stays."""
        for tensor in ops.occupancy_layout(self.capacity, layers=self.layers):
            self._buffers[tensor.name].fill_(tensor.fill)
        self.status[:1] = 1
        self.clock.zero_()

    def read(self, mask: Optional[Tensor] = None) -> MapRegions:
        """Copies of the regions of a mask [C] bool, or of all. As many rows as there are, with a
        host synchronization; C rows inside programs and CUDA graphs."""
        return read_regions(self.state, mask, exact=not _is_traced())

    def evict(
        self,
        *,
        box: Union[Sequence[float], Tensor, None] = None,
        older_than: Union[int, Tensor, None] = None,
        mask: Optional[Tensor] = None,
        read: bool = True,
    ) -> Optional[MapRegions]:
        """Regions leave the map; returns them, for `insert`, unless read=False.

        One of: box (x0, y0, z0, x1, y1, z1) in meters, which those keep that reach into it, so that
        a box around the sensor is a rolling window; older_than, a stamp; mask, [C] bool.
        """
        if sum(way is not None for way in (box, older_than, mask)) != 1:
            raise ValueError("OccupancyMap: evict takes one of box, older_than and mask")
        if older_than is not None:
            mask = self.region_stamp < older_than
        elif box is not None:
            mask = outside(self.region_key, self.grid, box)
        assert mask is not None
        regions = self.read(mask) if read else None
        ops.occupancy_remove_(self.state, mask)
        return regions

    def insert(self, regions: MapRegions, mode: str = "add") -> Tensor:
        """Regions enter; with those that exist, mode does what it says: "add", "replace", "keep".
        Returns counts of `occupancy_insert_`."""
        keys, *layers, count = regions
        return self._insert(keys, layers, merge=mode, num_valid=count)

    def allocate(self, keys: Tensor) -> Tensor:
        """Makes room for regions of ascending keys [K] int64, as of `ray_regions`."""
        return self._insert(keys, [], merge="keep")

    def _insert(self, keys: Tensor, layers: List[Tensor], **options: Any) -> Tensor:
        def call() -> Tensor:
            return ops.occupancy_insert_(self.state, keys, layers, sensor=self.sensor, **options)

        return self._fitted(call, bits=5, new=3, in_use=4)

    def merge(self, other: "OccupancyMap") -> Tensor:
        """Adds what another map of the same grid knows; counts of `occupancy_insert_`."""
        same = self.grid == other.grid
        expect(same, f"OccupancyMap: merge takes maps of one grid, {self.grid}", other.grid)
        regions = [tensor.to(self.status.device) for tensor in other.read()]
        if "hit_miss" not in self.layers:
            regions[3] = regions[3][:0]
        self.clock.clamp_(min=other.clock.to(self.clock.device))
        return self.insert(MapRegions(*regions))

    def equal(self, other: "OccupancyMap") -> bool:
        """Whether both know the same of the same regions, whatever slots and stamps they have."""
        pairs = zip(self.read(), other.read(), MapRegions._fields, strict=True)
        return self.grid == other.grid and all(
            torch.equal(a, b.to(a.device)) for a, b, name in pairs if name != "region_stamp"
        )

    def grow(self, capacity: int) -> None:
        """Room for so many regions at least, and calls are let in again after one that did not fit.
        The buffers are new ones: CUDA graphs and exported programs keep the old."""
        if _is_traced():
            raise RuntimeError(NO_GROWTH)
        if capacity > self.capacity:
            before = self.state
            self._own(capacity, self.status.device)
            self.status.copy_(before[3])
            for i in (KEY, *LAYERS):
                self.state[i][: len(before[i])].copy_(before[i])
            ops.occupancy_remove_(self.state, self.region_key < -1)  # none; it builds the table
        self.status[3:4] = 0

    def memory(self) -> Dict[str, int]:
        """Bytes of each tensor of the state."""
        return {name: self._buffers[name].nbytes for name in LAYOUT}

    def extra_repr(self) -> str:
        grid = f"voxel_size={self.voxel_size}, origin={self.origin}, capacity={self.capacity}"
        return f"{grid}, sensor={tuple(self.model)}, on_overflow={self.on_overflow!r}"

    def _fitted(self, call: Callable[[], Tensor], bits: int, new: int, in_use: int) -> Tensor:
        """Counts of a call that writes all or nothing, made again with more room if need be; in
        columns bits, new and in_use they say what was missing."""
        if self.on_overflow == "ignore":
            return call()
        if _is_traced():
            raise RuntimeError(NO_GROWTH)
        while True:
            counts = call()
            row = counts[0].tolist()
            if row[bits] == 0:
                return counts
            if row[bits] & 8:
                raise RuntimeError("OccupancyMap: an earlier call did not fit: call grow first")
            self.status[3:4] = 0
            need = row[in_use] + row[new]
            if self.on_overflow == "raise":
                more, taken = row[new] or "many", f"{row[in_use]} of {self.capacity} are in use"
                raise RuntimeError(f"OccupancyMap: a call needs {more} new regions, but {taken}")
            if row[bits] & 1:
                self.max_touched = max(2 * self.max_touched, row[8])
            if row[bits] & 2:
                self.grow(max(need, self.capacity * 3 // 2, 64))

    def _own(self, capacity: int, device: Any) -> None:
        state = ops.occupancy_state(capacity, layers=self.layers, device=device)
        for name, tensor in zip(LAYOUT, state, strict=True):
            self.register_buffer(name, tensor, persistent=False)

    def _regions_in(self, limit: int) -> int:
        def size(capacity: int) -> int:
            layout = ops.occupancy_layout(capacity, layers=self.layers)
            return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in layout)

        return max(bisect.bisect_right(range(2**30), limit, key=size) - 1, 0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "OccupancyMap":
        """To a device; half() and double() of a model around the map change nothing."""
        device = fn(torch.empty(0, device=self.status.device)).device
        for name, tensor in self._buffers.items():
            self._buffers[name] = tensor.to(device)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if prefix == "":
            destination.update({name: t.detach() for name, t in self._buffers.items()})
            destination["grid"] = torch.tensor(self.grid, dtype=torch.float64)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, _: Any, strict: bool, missing: Any, *rest: Any
    ) -> None:
        if prefix != "":
            return
        absent = [name for name in (*self._buffers, "grid") if name not in state_dict]
        missing.extend(absent)
        if not absent and state_dict["grid"].tolist() != self.grid:
            rest[-1].append(f"the map has another grid than {state_dict['grid'].tolist()}")
        elif not absent:
            for name, tensor in self._buffers.items():
                self._buffers[name] = state_dict[name].to(tensor, copy=True)
            if self.capacity > 0:
                self.layers = ("logodds", "hit_miss")[: 2 if len(self.state[5]) else 1]


def log_odds(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def _is_traced() -> bool:
    """Inside a compiler, or a stream that is captured, where nothing can be read back."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _rays(points: Tensor, origins: Any, options: Dict[str, Any]) -> Dict[str, Any]:
    """The options, with the index of rays each of which has an origin of its own."""
    if origins.size(0) == 1 or origins.size(0) != points.size(0):
        return options
    return {"origin_index": torch.arange(points.size(0), device=points.device), **options}
