# SPDX-License-Identifier: Apache-2.0
"""The filter for files: chunks are decoded ahead, reduced, and written as one file.

open       opens all inputs: columns, lattice, the box of all headers
reduce     adds chunk after chunk to a VoxelAccumulator; again with a scanned box if a header's box
           is wrong
write      writes the voxels in the order of their keys
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchvox._util.errors import WrongUseError, short
from torchvox.filter.accumulator import WORK, VoxelAccumulator
from torchvox.filter.lattice import Lattice, OutsideFrameError
from torchvox.filter.memory import ORIGINS, centroid_scores, means_only, origin_of
from torchvox.filter.policy import check_steps, rules_by_values
from torchvox.filter.selection import MergedReader, Selection, check_alike
from torchvox.io import create_points, open_points, write_npz
from torchvox.io.table import CHUNK, union_box

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from torch import Tensor

    from torchvox.io import PointTable

AHEAD = 2  # chunks
SMALL = 2.0**-20  # sums of values below, in units of 2^-32, lose digits
POINT_BYTES = 1 << 10  # of a memory limit per point of a chunk; chunks come on top of the limit


@dataclass(frozen=True)
class FilterOptions:
    """Options of a job: arguments of VoxelAccumulator and `downsample`, and

    layout_of_file: columns of files that do not name them. bounds: lowest and highest x, y, z of
    points that are read. where: conditions that they meet, see `Selection`. drop_withheld: skip
    points that LAS calls withheld. salvage: read what can be recovered from truncated LAS files.
    chunk: points that are read at once.
    """

    voxel_size: tuple[float, ...]
    origin: tuple[float, ...] | str = (0.0, 0.0, 0.0)
    keep: str = "centroid"
    policy: dict[str, str] = field(default_factory=dict)
    layout: str = "morton"
    seed: int = 0
    levels: int = 0
    max_points: int = 1
    min_points: int = 1
    layout_of_file: str | None = None
    bounds: tuple[float, ...] | None = None
    where: str | None = None
    drop_withheld: bool = False
    salvage: bool = False
    memory_limit: int | None = None
    chunk: int = CHUNK
    device: str = "cpu"

    @property
    def of_result(self) -> dict[str, Any]:
        """The options that the result depends on."""
        others = ("memory_limit", "chunk", "device")
        return {name: value for name, value in asdict(self).items() if name not in others}


class FilterJob:
    """Files that become one file. `facts`: what was done, for a report.

    sources: paths; of several files the points are numbered in the order of their sorted names.
    Raises WrongUseError for files that do not fit together, CloudFileError for damaged ones.
    """

    def __init__(self, sources: Iterable[str | Path], options: FilterOptions) -> None:
        self.options = options
        self.readers = [
            open_points(path, options.layout_of_file, salvage=options.salvage)
            for path in sorted(map(Path, sources))
        ]
        self._check()
        self._merged = MergedReader(self.readers)
        self._selection = Selection(options.bounds, options.where, options.drop_withheld)
        self._looked_at = self._selection.columns(self._merged.schema)
        first, limit = self.readers[0], options.memory_limit
        self._schema = replace(first.schema, path=first.path)
        most = options.chunk if limit is None else max(limit // POINT_BYTES, 10_000)
        self._chunk = min(options.chunk, most)
        self.rules = rules = rules_by_values(
            first.columns,
            options.keep,
            options.policy,
            lambda names: self._merged.chunks(self._chunk, columns=names),
        )
        self.columns = tuple(name for name, rule in rules.items() if rule != "drop")
        self._rules = {name: rules[name] for name in self.columns}
        columns = self._schema.rows(slice(0, 0), self.columns)
        for reader in self.readers[1:]:
            check_steps(replace(reader.schema, path=reader.path), columns)
        self.points = self._merged.count
        floats = {name for name, type_ in first.columns.items() if type_.base.kind == "f"}
        floats |= first.schema.steps.keys()
        averaged = [name for name in self.columns if name in floats and rules[name] == "mean"]
        self._largest = dict.fromkeys(averaged, 0.0)
        self._waited, self._left_out = 0.0, Counter[str]()
        self.facts: dict[str, Any] = {
            "inputs": [str(reader.path) for reader in self.readers],
            "points": self.points,
            "problems": self._merged.problems,
            "dropped_columns": [name for name in first.columns if name not in self.columns],
            "averaged_columns": averaged,
        }

    def _check(self) -> None:
        """Raises WrongUseError for options or files that do not fit together."""
        options = self.options
        if not self.readers:
            raise WrongUseError("there is no file to filter")
        check_alike(self.readers)
        several = len(self.readers) > 1
        if isinstance(options.origin, str) and (several or options.origin not in ORIGINS):
            raise WrongUseError(
                f"the origin {short(options.origin)} must be three numbers, or for one file "
                f"{', '.join(ORIGINS)}"
            )
        if options.keep == "nearest_centroid" and options.memory_limit is not None:
            raise WrongUseError(
                "keep nearest_centroid holds all means in memory: remove the memory limit"
            )

    # ---- before points are read -----------------------------------------------------------------

    def accumulator(
        self, box: np.ndarray | None = None, spill_dir: Path | None = None, means: bool = False
    ) -> VoxelAccumulator:
        """An empty accumulator for these files.

        box: of their points; None: that of their headers. means: for mean coordinates alone.
        """
        names = ("keep", "layout", "seed", "levels", "max_points", "min_points", "memory_limit")
        options = {name: getattr(self.options, name) for name in ("voxel_size", *names, "device")}
        options |= {"origin": self._origin, "policy": self._rules, "spill_dir": spill_dir}
        options |= means_only({}) if means else {"no_data": self.readers[0].no_data}
        schema = self._schema.rows(slice(0, 0), () if means else self.columns)
        if box is None:
            with contextlib.suppress(OutsideFrameError):
                return VoxelAccumulator(schema, box=self.box, **options)
            box = self._scanned_box
        return VoxelAccumulator(schema, box=box, **options)

    def plan(self) -> dict[str, Any]:
        """The size of the job, and about how many bytes its points take at most."""
        cells, options = self.accumulator(), self.options
        chunks = sum(-(-reader.count // self._chunk) for reader in self.readers)
        limit = options.memory_limit
        states = WORK * self.points * cells.bytes_a_voxel()
        columns = [np.dtype((np.float64, 3)), *self.readers[0].columns.values()]
        chunk = min(self._chunk, self.points) * (AHEAD + 2) * sum(c.itemsize for c in columns)
        peak = chunk + (states if limit is None else min(limit, states))
        return {"points": self.points, **cells.frame, "chunks": chunks, "peak_bytes": peak}

    @cached_property
    def _origin(self) -> tuple[float, ...]:
        origin = self.options.origin
        if not isinstance(origin, str):
            return origin
        low, first = np.full(3, np.inf), None
        for _, table in self._chunks(()):
            if (box := table.box) is not None:
                world = table.world() if first is None else None
                low = np.minimum(low, box[0])
                first = world[np.isfinite(world).all(axis=1)][0] if world is not None else first
        low, first = (np.zeros(3),) * 2 if first is None else (low, first)
        return origin_of(origin, self.options.voxel_size, low, first)

    @cached_property
    def box(self) -> np.ndarray | None:
        """Lowest and highest world coordinates [2, 3] of the points, from the headers."""
        box = union_box(reader.box for reader in self.readers)
        if box is not None and self.options.bounds is not None:
            bounds = np.reshape(self.options.bounds, (2, 3))
            box = np.clip(box, bounds[0], bounds[1])
        return box

    def frame_box(self) -> np.ndarray | None:
        """The box that `run` ends with: that of the headers, unless points lie outside its cells.
        Reads all points if a header has a box."""
        if all(reader.header_box is None for reader in self.readers):
            return self.box
        scanned = self._scanned_box
        with contextlib.suppress(OutsideFrameError):
            size, origin = self.options.voxel_size, self._origin
            lattice = Lattice.of(self._schema, size, origin, self.box)
            if scanned is not None:
                lattice.keys(lattice.stored(scanned), torch.device("cpu"))
            return self.box
        return scanned

    @cached_property
    def _scanned_box(self) -> np.ndarray | None:
        self.facts["problems"].append("the box of a header is not that of its points")
        return union_box(table.box for _, table in self._chunks(()))

    # ---- the work -------------------------------------------------------------------------------

    def run(
        self,
        target: str | Path,
        trace: str | Path | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> dict[str, Any]:
        """Write the result, and return `facts`.

        trace: a .npz for `point_voxel`, the row of each point [N] int32, -1 for none.
        progress: called with the number of points of each chunk.
        """
        target, options = Path(target), self.options
        for path in (target, *([] if trace is None else [Path(trace)])):
            for reader in self.readers:
                if path.exists() and path.samefile(reader.path):
                    raise WrongUseError(f"{path} would replace the file that it is made from")
        if trace is not None and options.memory_limit is not None:
            raise WrongUseError("a trace is made in memory: remove the memory limit")
        started = time.perf_counter()
        cells = None
        with contextlib.suppress(OutsideFrameError):
            cells = self._reduced(progress, None, target.parent)
        if cells is None:
            cells = self._reduced(progress, self._scanned_box, target.parent)
        with cells:
            reduced, kept = time.perf_counter(), 0
            with create_points(target, like=cells.result_schema) as writer:
                for table, keys, number, level in cells.finish():
                    writer.append(table)
                    part, kept = (keys, level), kept + int(number.sum())
            notes = writer.problems
            nones = cells.result_schema.steps.keys() & self.readers[0].no_data.keys()
            if nones and target.suffix.lower() not in (".las", ".laz"):
                names = short(", ".join(sorted(nones)))
                notes.append(f"what means no value in {names} is scaled and shifted like values")
            self.facts |= {"notes": notes} if notes else {}
            if trace is not None:  # without a memory limit: the one part of the result
                rows = [self._traced(cells, *part, table) for table in self._tables(())]
                write_npz(trace, point_voxel=np.concatenate(rows or [np.zeros(0, np.int32)]))
            few = cells.points - cells.not_finite - kept
        dropped = {**self._left_out, "not finite": cells.not_finite, "in voxels of too few": few}
        done = time.perf_counter()
        self.facts |= {
            "output": str(target),
            "voxels": writer.count,
            "voxel_size": list(options.voxel_size),
            "unit": self.readers[0].schema.unit,
            "dropped": {why: number for why, number in dropped.items() if number},
            "small_columns": [name for name, top in self._largest.items() if 0 < top < SMALL],
            "exact_cells": cells.exact_cells,
            "device": options.device,
            "read_ms": round(1e3 * self._waited, 3),
            "filter_ms": round(1e3 * (reduced - started - self._waited), 3),
            "write_ms": round(1e3 * (done - reduced), 3),
        }
        return self.facts

    def accumulate(
        self,
        cells: VoxelAccumulator,
        first_index: int = 0,
        first: int = 0,
        count: int | None = None,
        scores: Callable[[PointTable], np.ndarray] | None = None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Add a range of the points of the files to an accumulator.

        first_index: the number of the first point of the files among those of the whole job.
        scores: those of points, with keep="nearest_centroid". progress: as of `run`.
        """
        names = tuple(cells.schema.columns)
        with contextlib.closing(self._chunks(names, first, count)) as chunks:
            for index, table in chunks:
                cells.update(table, index + first_index, scores(table) if scores else None)
                for name in self._largest.keys() & table.attributes.keys():
                    values, none = table.values(name), self.readers[0].no_data.get(name, np.nan)
                    good = np.isfinite(values) & (table.attributes[name] != none)
                    self._largest[name] = np.abs(values[good]).max(initial=self._largest[name])
                progress(len(table))

    def _reduced(
        self, progress: Callable[[int], object], box: np.ndarray | None, spill_dir: Path
    ) -> VoxelAccumulator:
        with contextlib.ExitStack() as stack:
            cells = stack.enter_context(self.accumulator(box, spill_dir))
            scores = None
            if self.options.keep == "nearest_centroid":
                means = self.accumulator(box, means=True)
                self.accumulate(means)
                scores = centroid_scores(means)
            self._waited = 0.0
            self._left_out.clear()
            self.accumulate(cells, scores=scores, progress=progress)
            stack.pop_all()
        return cells

    def _traced(
        self, cells: VoxelAccumulator, keys: Tensor, level: Tensor | None, table: PointTable
    ) -> np.ndarray:
        """The row of each point [N] of a chunk, -1 for none. keys, level: of the result."""
        rows = np.full(len(table), -1, np.int32)
        good, _ = self._selection(table)
        rows[good] = cells.rows_of(table.rows(good, ()), keys, level).cpu().numpy()
        return rows

    # ---- reading --------------------------------------------------------------------------------

    def _chunks(
        self, names: Sequence[str], first: int = 0, count: int | None = None
    ) -> Generator[tuple[np.ndarray, PointTable], None, None]:
        """(numbers, points) of the chunks, without the points that the options drop."""
        at = first
        for table in self._tables(names, first, count):
            index = np.arange(at, at + len(table))
            at += len(table)
            good, left_out = self._selection(table)
            self._left_out.update(left_out)
            if sum(left_out.values()):
                index, table = index[good], table.rows(good)
            yield index, table.rows(slice(None), names)

    def _tables(
        self, names: Sequence[str], first: int = 0, count: int | None = None
    ) -> Iterator[PointTable]:
        """Chunks of all files, decoded ahead by a thread."""
        needed = dict.fromkeys((*names, *self._looked_at))
        tables = self._read(needed, first, count)
        pool = concurrent.futures.ThreadPoolExecutor(1)
        try:
            ready = deque(pool.submit(next, tables, None) for _ in range(AHEAD))
            while True:
                start = time.perf_counter()
                table = ready.popleft().result()
                self._waited += time.perf_counter() - start
                if table is None:
                    return
                ready.append(pool.submit(next, tables, None))
                yield table
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, names: Iterable[str], first: int, count: int | None) -> Iterator[PointTable]:
        left = self.points - first if count is None else count
        for table in self._merged.chunks(self._chunk, first, names) if left else ():
            table = table.rows(slice(0, left))
            left -= len(table)
            yield table
            if not left:
                break
