# SPDX-License-Identifier: Apache-2.0
"""The tensors of a map as buffers of a module, with more room when calls need it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from torchvox._util.byte_sizes import number_of_bytes
from torchvox._util.errors import expect
from torchvox.mapping import counts
from torchvox.mapping.counts import STATUS, EditCounts, IntegrateCounts
from torchvox.mapping.regions import INDEX_LAYERS, SAMPLE_LAYERS, MapRegions
from torchvox.mapping.sensor import NdtModel
from torchvox.ops import occupancy as ops

Device: TypeAlias = str | torch.device | None
LAYOUT = [tensor.name for tensor in ops.occupancy_layout(0)]
NO_GROWTH = "OccupancyMap: a map cannot grow inside a program or a CUDA graph: on_overflow='ignore'"


class MapState(nn.Module):
    """The tensors of `occupancy_state`, and clock, the number of calls of integrate.

    A model around a map neither casts nor saves it; state_dict() of the map itself does.
    """

    region_key: Tensor
    region_stamp: Tensor
    status: Tensor
    clock: Tensor
    grid: tuple[float, list[float]]  # voxel size and origin
    layers: tuple[str, ...]
    ndt: NdtModel | None
    on_overflow: str
    max_touched: int
    regions_per_sample_row = 4  # by default
    _buffers: dict[str, Tensor]

    @torch.inference_mode(False)
    def _start(self, capacity: int | str, sample_rows: int | None, device: Device) -> None:
        """Becomes an empty map. capacity: regions, or bytes of regions and samples together."""
        share = self.regions_per_sample_row
        if isinstance(capacity, str):
            most = number_of_bytes(capacity, "OccupancyMap: capacity")
            region, samples = self._region_bytes()
            if sample_rows is None:
                capacity = most * share // (region * share + samples)
            else:
                capacity = max(most - sample_rows * samples, 0) // region
        rows = int(capacity) // share if sample_rows is None else sample_rows
        self._own(self._empty(int(capacity), max(rows, 1), device))
        clock = torch.zeros(1, dtype=torch.int32, device=self.status.device)
        self.register_buffer("clock", clock, persistent=False)

    @property
    def state(self) -> list[Tensor]:
        """The tensors of `torchvox.occupancy_state`."""
        return [getattr(self, name) for name in LAYOUT]

    @property
    def slots(self) -> MapRegions:
        """The regions of the state, by slot; keys of slots that are not in use are -1."""
        layers = [getattr(self, name) for name in MapRegions._fields[1:-1]]
        return MapRegions._make([self.region_key, *layers, self.status[1:2]])

    @property
    def capacity(self) -> int:
        return self.region_key.size(0)

    @property
    def sample_rows(self) -> int:
        return len(self._buffers["sample_count"])

    def extra_repr(self) -> str:
        voxel_size, device = self.grid[0], self.status.device
        return f"voxel_size={voxel_size}, capacity={self.capacity} regions, device={device}"

    def memory(self) -> dict[str, int]:
        """Bytes of each tensor of the state, and of the store in host memory."""
        return {name: self._buffers[name].nbytes for name in LAYOUT}

    @torch.inference_mode(False)
    def grow(self, capacity: int, sample_rows: int = 0) -> None:
        """Room for that many regions and rows of samples at least; calls work again after one
        that did not fit. The buffers are new ones: CUDA graphs and exported programs keep the
        old."""
        if self._is_traced():
            raise RuntimeError(NO_GROWTH)
        sampled = "sample_mean" in self.layers and sample_rows > self.sample_rows
        if capacity > self.capacity or sampled:
            rows = max(capacity, self.capacity), max(self.sample_rows, sample_rows)
            state = self._empty(*rows, self.status.device)
            for larger, tensor in zip(state[1:], self.state[1:], strict=True):
                larger[: len(tensor)].copy_(tensor)
            ops.occupancy_remove_(state, state[1] < -1)  # none; it builds the table
            self._own(state)
        self.status[STATUS.refused] = 0

    def _fits(self, kind: type[IntegrateCounts] | type[EditCounts], result: Tensor) -> bool:
        """Whether a call that writes all or nothing has done its work. If it has not, there is now
        more room for the next one, or an error says how much it needs."""
        if self.on_overflow == "ignore":
            return True
        if self._is_traced():
            raise RuntimeError(NO_GROWTH)
        row = kind._make(result[0, : len(kind._fields)].tolist())
        if row.overflow == 0:
            return True
        if row.overflow & counts.REFUSED_BEFORE:
            raise RuntimeError("OccupancyMap: an earlier call did not fit: call grow first")
        self.status[STATUS.refused] = 0
        touched = row.regions_touched if isinstance(row, IntegrateCounts) else 0
        regions = max(row.regions_in_use + row.regions_new, touched)
        samples = row.sample_rows_new + int(self.status[STATUS.sample_rows_in_use])
        if self.on_overflow == "raise":
            what, room = f"{regions} regions", f"capacity={self.capacity}"
            if row.overflow & counts.TOO_MANY_SAMPLE_ROWS:
                what, room = f"{samples} rows of samples", f"sample_rows={self.sample_rows}"
            if self.max_touched >= 0:
                room += f" and max_touched={self.max_touched}"
            raise RuntimeError(f"OccupancyMap: a call needs at least {what}, got {room}")
        if row.overflow & counts.TOO_MANY_TOUCHED:
            self.max_touched = max(2 * self.max_touched, touched)
        if row.overflow & counts.TOO_MANY_REGIONS:
            self.grow(max(regions, self.capacity * 3 // 2, 64))
        if row.overflow & counts.TOO_MANY_SAMPLE_ROWS:
            self.grow(0, max(samples, self.sample_rows * 3 // 2))
        return False

    def _region_bytes(self) -> tuple[int, int]:
        """Bytes of a region, with at most 16 of the table, and of a row of samples."""
        layout = ops.occupancy_layout(1, layers=self.layers, sample_rows=1)
        sizes = {t.name: math.prod(t.shape) * t.dtype.itemsize for t in layout if t.name != "table"}
        samples = sum(sizes[name] for name in SAMPLE_LAYERS)
        return 16 + sum(sizes.values()) - samples, samples

    def _empty(self, capacity: int, rows: int, device: Device) -> list[Tensor]:
        device = None if device is None else torch.device(device)
        return ops.occupancy_state(capacity, layers=self.layers, sample_rows=rows, device=device)

    def _own(self, state: list[Tensor]) -> None:
        for name, tensor in zip(LAYOUT, state, strict=True):
            self.register_buffer(name, tensor, persistent=False)

    def _is_traced(self) -> bool:
        """Inside a compiler, or a stream that is captured, where nothing can be read back."""
        captured = self.status.is_cuda and torch.cuda.is_current_stream_capturing()
        return torch.compiler.is_compiling() or captured

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves between devices; a model that is cast leaves its maps as they are."""

        def moved(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.dtype == tensor.dtype else tensor.to(result.device)

        return super()._apply(moved, recurse)

    def _save_to_state_dict(
        self, destination: dict[str, Tensor], prefix: str, keep_vars: bool
    ) -> None:
        if prefix == "":
            destination.update({name: t.detach() for name, t in self._buffers.items()})
            destination["grid"] = torch.tensor([self.grid[0], *self.grid[1]], dtype=torch.float64)
            destination["ndt"] = torch.tensor(self.ndt or [], dtype=torch.float64)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *_: object, **__: object) -> None:
        mine, grid = [self.grid[0], *self.grid[1]], state_dict["grid"].tolist()
        expect(grid == mine, f"OccupancyMap: a state must have the grid {mine}", grid)
        own = {name: state_dict[name].to(t, copy=True) for name, t in self._buffers.items()}
        self._buffers.update(own)
        model = state_dict["ndt"].tolist()
        self.ndt = NdtModel._make(model) if model else None
        if self.capacity > 0:
            kept = [name for name in LAYOUT[4:] if len(getattr(self, name))]
            self.layers = tuple(name for name in kept if name not in INDEX_LAYERS)
