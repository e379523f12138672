# SPDX-License-Identifier: Apache-2.0
"""Regions of a map in host memory, and in a folder: what a `StreamedMap` keeps beside its cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchvox._util.errors import CloudFileError, WrongUseError, expect, explained, short
from torchvox.io.writers import write_text
from torchvox.mapping.contents import MapContents, read_map, write_map
from torchvox.mapping.regions import INDEX_LAYERS, SAMPLE_LAYERS, MapRegions
from torchvox.ops.occupancy import StateTensor, occupancy_layout

ROWS = 4096  # by which host memory grows, and of one transfer
PART = ~sum(15 << (21 * axis) for axis in range(3))  # the bits of a key that a file's regions share
NO_KEYS = np.zeros(0, np.int64)
OWN_LAYERS = ("logodds", "hit_miss", "touch", "traversal")  # with a row for each region


class Rows:
    """Rows of tensors in host memory. layout: tensors of `occupancy_layout` that have such rows."""

    def __init__(self, layout: Sequence[StateTensor] = ()) -> None:
        self.layout = layout
        self.free, self.count = NO_KEYS, 0
        self.layers = [tensor.numpy().copy() for tensor in self._empty(0)]

    @property
    def nbytes(self) -> int:
        return self.free.nbytes + sum(layer.nbytes for layer in self.layers)

    def take(self, count: int) -> np.ndarray:
        """Rows that were free until now."""
        if (missing := count - len(self.free)) > 0:
            start, self.count = self.count, self.count + -(-missing // ROWS) * ROWS
            self.free = np.concatenate([self.free, np.arange(start, self.count)])
            for i, t in enumerate(self.layout):
                if self.layers[i].base is not None:  # in a copy by pickle
                    self.layers[i] = self.layers[i].copy()
                if t.shape[0]:  # large arrays stay where they are: realloc moves pages, not bytes
                    self.layers[i].resize((self.count, *t.shape[1:]), refcheck=False)
        rows, self.free = self.free[:count], self.free[count:]
        return rows

    def give_back(self, rows: np.ndarray) -> None:
        self.free = np.concatenate([self.free, rows])

    def write(self, rows: np.ndarray, tensors: Sequence[np.ndarray]) -> None:
        for layer, tensor in zip(self.layers, tensors, strict=True):
            if len(layer) > 0:
                layer[rows] = tensor

    def read(self, rows: np.ndarray, pinned: bool) -> list[Tensor]:
        tensors = self._empty(len(rows), pinned)
        for layer, tensor in zip(self.layers, tensors, strict=True):
            if len(layer) > 0:
                np.take(layer, rows, axis=0, out=tensor.numpy())
        return tensors

    def _empty(self, rows: int, pinned: bool = False) -> list[Tensor]:
        """Tensors with a number of rows, 0 for layers that are off."""
        shapes = [(rows if t.shape[0] else 0, *t.shape[1:]) for t in self.layout]
        pairs = zip(shapes, self.layout, strict=True)
        return [torch.empty(shape, dtype=t.dtype, pin_memory=pinned) for shape, t in pairs]


class Index(NamedTuple):
    """Keys of regions, ascending, with their stamps, rows, and rows of samples, -1 without."""

    keys: np.ndarray = NO_KEYS
    stamps: np.ndarray = np.zeros(0, np.int32)
    rows: np.ndarray = NO_KEYS
    samples: np.ndarray = NO_KEYS


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
        self._reset([])

    def _reset(self, layers: list[str]) -> None:
        self.layers, self.index = layers, Index()  # tensors of a state
        layout: dict[str, StateTensor] = {}
        if layers:
            names = [name for name in layers if name not in INDEX_LAYERS]
            layout = {t.name: t for t in occupancy_layout(1, layers=names, sample_rows=1)}
        self.regions = Rows([layout[name] for name in OWN_LAYERS if layout])
        self.samples = Rows([layout[name] for name in SAMPLE_LAYERS if layout])
        self.changed = NO_KEYS  # of regions whose rows are older than the cache, ascending
        self.stale: set[int] = set()  # parts whose files are old

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "folder": None}

    @property
    def keys(self) -> np.ndarray:
        return self.index.keys

    @property
    def nbytes(self) -> int:
        return self.regions.nbytes + self.samples.nbytes + sum(a.nbytes for a in self.index)

    def has(self, keys: np.ndarray) -> np.ndarray:
        return contains(self.keys, keys)

    def get(self, keys: np.ndarray, pinned: bool = False) -> MapRegions:
        """Copies of regions that are here, in host memory."""
        own = self._rows_of(keys)
        has = own.samples >= 0
        row = np.where(has, has.cumsum() - 1, -1).astype(np.int32)
        sample_row = torch.tensor(row if "sample_row" in self.layers else row[:0])
        layers = [*self.regions.read(own.rows, pinned), sample_row]
        layers += self.samples.read(own.samples[has], pinned)
        key, stamp, count = map(torch.tensor, (keys, own.stamps, [len(keys)]))
        return MapRegions._make([key, stamp, *layers, count])

    def put(self, regions: MapRegions) -> None:
        """Takes regions of host memory in place of those of the same keys."""
        layers = {name: tensor.numpy() for name, tensor in regions._asdict().items()}
        keys, row = layers["keys"], layers["sample_row"]
        at, here = np.searchsorted(self.keys, keys), self.has(keys)
        rows, samples = np.empty_like(keys), np.full_like(keys, -1)
        rows[here], samples[here] = self.index.rows[at[here]], self.index.samples[at[here]]
        rows[~here] = self.regions.take(int((~here).sum()))
        has = row >= 0 if len(row) > 0 else np.zeros(len(keys), bool)
        gets, unused = has & (samples < 0), samples[~has & (samples >= 0)]
        samples[gets], samples[~has] = self.samples.take(int(gets.sum())), -1
        self.samples.give_back(unused)
        self.regions.write(rows, [layers[name] for name in OWN_LAYERS])
        sampled = (layers[name] for name in SAMPLE_LAYERS)
        self.samples.write(samples[has], [t[row[has]] if len(t) > 0 else t for t in sampled])
        entries = Index(keys, layers["region_stamp"], rows, samples)
        for column, values in zip(self.index, entries, strict=True):
            column[at[here]] = values[here]
        if not here.all():
            pairs = zip(self.index, entries, strict=True)
            self.index = Index._make(np.insert(a, at[~here], b[~here]) for a, b in pairs)
        self.stale.update((keys & PART).tolist())

    def drop(self, keys: np.ndarray) -> None:
        """Forgets the regions of keys that are here."""
        keys = keys[self.has(keys)]
        own, at = self._rows_of(keys), np.searchsorted(self.keys, keys)
        self.regions.give_back(own.rows)
        self.samples.give_back(own.samples[own.samples >= 0])
        self.index = Index._make(np.delete(column, at) for column in self.index)
        self.stale.update((keys & PART).tolist())

    def _rows_of(self, keys: np.ndarray) -> Index:
        """The entries of keys that are here."""
        at = np.searchsorted(self.keys, keys)
        return Index._make(column[at] for column in self.index)

    # ---- the folder -----------------------------------------------------------------------------

    def open(self, layers: list[str], facts: dict[str, Any]) -> None:
        """Becomes the store of a map, with what its folder holds. layers: tensors of its state.
        facts: arguments of `MapContents`."""
        expect(not self.facts, "OccupancyMap: a store must have no other map", self.facts)
        self._reset(layers)
        for path in self._files({**facts, "layers": layers}):
            part = read_map(path)
            same = all(getattr(part, name) == fact for name, fact in facts.items())
            good = same and list(part.layers) == layers
            if not good or (part.keys & PART != int(path.stem)).any():
                raise CloudFileError(f"{path} is not the part of this map that its name says")
            self.put(part.regions(torch.device("cpu")))
        self.facts = facts
        self.stale.clear()

    def flush(self) -> None:
        """Writes parts that changed, then the index, then removes files of parts that are gone:
        wherever this stops, each file is the old or the new one."""
        if self.folder is None:
            return
        part_of = self.keys & PART
        parts = np.unique(part_of).tolist()
        for part in sorted(self.stale.intersection(parts)):
            regions = self.get(self.keys[part_of == part])
            layers = {name: getattr(regions, name).numpy() for name in self.layers}
            contents = MapContents(regions.keys.numpy(), layers, **self.facts)
            write_map(self.folder / f"{part}.npz", contents)
        index = {**self.facts, "layers": self.layers, "parts": parts}
        write_text(self.folder / "index.json", json.dumps(index))
        for part in self.stale.difference(parts):
            (self.folder / f"{part}.npz").unlink(missing_ok=True)
        self.stale.clear()

    def _files(self, facts: dict[str, Any]) -> list[Path]:
        """Files of the parts that the index lists."""
        if self.folder is None or not (self.folder / "index.json").exists():
            return []
        path = self.folder / "index.json"
        with explained(path, "index of a map"):
            index = json.loads(path.read_text())
            parts = index.pop("parts")
            good = index.keys() == facts.keys() and isinstance(parts, list)
            if not good or not all(type(part) is int for part in parts):
                raise ValueError(f"it must have {', '.join(facts)}, parts")
        for name, fact in facts.items():
            if index[name] != fact:
                got = short(index[name])
                raise WrongUseError(f"{path} is of a map with {name} {got}, not {fact}")
        return [self.folder / f"{part}.npz" for part in parts]


def contains(ascending: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which keys are among ascending ones: bool."""
    if len(ascending) == 0:
        return np.zeros(len(keys), bool)
    return ascending[np.searchsorted(ascending, keys).clip(max=len(ascending) - 1)] == keys
