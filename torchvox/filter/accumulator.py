# SPDX-License-Identifier: Apache-2.0
"""The filter for points that come in parts, or do not fit the memory:

update     points of a part become a state, which is merged with others of its size
merge      adds states of another accumulator, or saved ones
spill      writes states above the memory limit to disk, as one that ascends by key
finish     merges one range of keys after the other: adaptive cells, points
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchvox._util.errors import WrongUseError, file_errors, short
from torchvox.filter.lattice import Lattice
from torchvox.filter.policy import check_steps, rules_of
from torchvox.filter.saved import map_columns, read_about, write_columns, write_state
from torchvox.filter.schema import Schema
from torchvox.filter.states import Groups, Reduction
from torchvox.io.writers import atomic_path
from torchvox.ops.annotations import KeyLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from torchvox.filter.states import State
    from torchvox.io import PointTable

WORK = 6  # bytes in use per byte of the states that are merged
FEW = 1 << 28  # bytes of states that need no merging yet
MOST_LEVELS = 10


class VoxelAccumulator:
    """One point per voxel, of points that come in parts.

    schema: a table without points: columns, types and lattice of all parts.
    voxel_size: (x, y, z), origin: (x, y, z), in the unit of the points.
    box: lowest and highest world coordinates [2, 3] that parts may have; None: that of the first
        part.
    keep: what a voxel becomes, of policy.KEEP. policy: column -> rule, where it is not the default.
        A column of floats whose name may mean classes comes from a point: only `downsample` and
        FilterJob have all its values to decide between majority and mean.
    no_data: column -> values [k] that stand for "none".
    layout: order of the voxels, "morton" or "zyx". seed: of keep="random".
    levels, max_points: adaptive cells: a cell of 2^L voxels an axis, L <= levels, stays whole while
        it holds at most max_points. min_points: voxels with fewer points are dropped.
    memory_limit: bytes; None: no limit. spill_dir: the folder for states above it.
    device: where the work is done.

    The result does not depend on how points are split into parts, as long as each has its number.
    Raises WrongUseError for sizes, rules and columns that do not fit.
    """

    def __init__(
        self,
        schema: PointTable,
        voxel_size: Sequence[float],
        *,
        origin: Sequence[float] = (0.0, 0.0, 0.0),
        box: np.ndarray | None = None,
        keep: str = "centroid",
        policy: Mapping[str, str] | None = None,
        no_data: Mapping[str, np.ndarray] | None = None,
        layout: KeyLayout = "morton",
        seed: int = 0,
        levels: int = 0,
        max_points: int = 1,
        min_points: int = 1,
        memory_limit: int | None = None,
        spill_dir: str | Path | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        if layout not in ("morton", "zyx"):
            raise WrongUseError(f"the order must be morton or zyx, got {short(layout)}")
        fit = all(1 <= points < 2**63 for points in (max_points, min_points))
        if not 0 <= levels <= MOST_LEVELS or not fit:
            raise WrongUseError(
                f"adaptive cells take 0 to {MOST_LEVELS} levels, max_points and min_points 1 to "
                f"2^63 - 1, got {levels}, {max_points} and {min_points}"
            )
        if levels and (layout != "morton" or keep.startswith("nearest")):
            raise WrongUseError("levels > 0 needs layout='morton' and a keep other than nearest_*")
        if not -(2**63) <= seed < 2**63:
            raise WrongUseError(f"the seed must fit 64 bits, got {short(seed)}")
        self.schema, self.keep, self.device = schema, keep, torch.device(device)
        self.levels, self.max_points, self.min_points = levels, max_points, min_points
        self.rules = rules_of(schema.columns, keep, policy)
        if levels and self.rules.get("level", "drop") != "drop":
            raise WrongUseError("adaptive cells add a column level, and there is one: drop it")
        none = {name: np.asarray(values) for name, values in (no_data or {}).items()}
        self._no_data = {name: none[name] for name in none if name in schema.columns}
        lattice = Lattice.of(schema, voxel_size, origin, box, layout)
        columns = Schema(schema, self.rules, keep, self._no_data)
        self._reduction = Reduction(columns, lattice, keep, seed)
        self._framed = box is not None
        self._states: list[State] = []
        self._merged_bytes = 0
        self._limit = math.inf if memory_limit is None else memory_limit / WORK
        self._spill_dir = Path(spill_dir or tempfile.gettempdir())
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[Path] = []
        self.points = self.not_finite = 0  # so far

    # ---- points in ------------------------------------------------------------------------------

    def update(
        self,
        table: PointTable,
        index: int | np.ndarray | None = None,
        scores: np.ndarray | None = None,
    ) -> None:
        """Add points.

        index: the number of the first one, or [N] of each, which decides ties and what "first" is;
            None: the number of points so far.
        scores: [N] float64, for keep="nearest_centroid" only: the point with the lowest is kept.
        Raises OutsideFrameError for points outside the box, WrongUseError for another lattice or
        other columns than the first part's, CloudFileError when a spill fails: nothing is added.
        """
        if table.columns != self.schema.columns:
            raise WrongUseError(
                f"points with the columns {short(', '.join(table.columns) or 'none')} do not join "
                f"those with {short(', '.join(self.schema.columns) or 'none')}"
            )
        check_steps(table, self.schema)
        if (scores is None) == (self.keep == "nearest_centroid"):
            raise WrongUseError(
                "keep='nearest_centroid' needs scores, other keeps take none: use "
                "torchvox.filter.downsample, which reads all points twice"
            )
        with self._unchanged_on_failure():
            if not self._framed and (box := table.box) is not None:
                framed = self._lattice.framed(box)
                self._reduction, self._framed = replace(self._reduction, lattice=framed), True
            table = self.placed(table)
            keys = self._lattice.keys(table.xyz, self.device)
            numbers = np.asarray(self.points if index is None else index, np.int64)
            if numbers.ndim == 0:
                numbers = numbers + np.arange(len(table))
            if len(numbers) != len(table):
                raise WrongUseError(f"{len(table)} points need as many numbers, got {len(numbers)}")
            at = torch.from_numpy(numbers).to(keys.device)
            state = self._reduction.state(table, keys, at, scores)
            self.points += len(table)
            self.not_finite += int((keys < 0).sum())
            self._add(state)

    def merge(self, other: VoxelAccumulator | str | Path) -> None:
        """Add the voxels of another accumulator, or of a folder that `save` wrote.

        Raises WrongUseError when they are not of the same job, CloudFileError for a damaged folder.
        """
        if isinstance(other, VoxelAccumulator):
            self._same_job(other.fingerprint(), "the other accumulator")
            parts, counts = other._parts, (other.points, other.not_finite)
        else:
            path, like = Path(other), self._reduction.empty
            about = read_about(path, like, 3 * self._lattice.bits, self._same_job)
            counts = about["points"], about["not_finite"]

            def parts() -> list[State]:
                return [map_columns(path, like)]

        with self._unchanged_on_failure():
            for span in self._spans(parts()):
                for part in parts():
                    self._add(self._on_device(_cut(part, *span)))
            self.points, self.not_finite = self.points + counts[0], self.not_finite + counts[1]

    def fingerprint(self) -> dict[str, Any]:
        """The options and columns that two accumulators must have in common to be merged."""
        columns = {name: str(type_) for name, type_ in self.schema.columns.items()}
        steps = {name: np.stack(pair).tolist() for name, pair in self.schema.steps.items()}
        none = {name: values.tolist() for name, values in self._no_data.items()}
        job = {**vars(self._lattice), "columns": columns, "steps": steps, "keep": self.keep}
        job |= {"seed": self._reduction.seed, "rules": self.rules, "no_data": none}
        return json.loads(json.dumps(job))

    # ---- states to disk -------------------------------------------------------------------------

    def spill(self) -> None:
        """Move the states in memory to disk."""
        if not self._states:
            return
        merged = self._reduction.merged(self._states)
        with self._unchanged_on_failure(), file_errors(self._spill_dir):
            if self._home is None:
                self._spill_dir.mkdir(parents=True, exist_ok=True)
                self._home = tempfile.TemporaryDirectory(prefix=".torchvox_", dir=self._spill_dir)
            self._runs.append(Path(self._home.name) / str(len(self._runs)))
            write_columns([merged], self._runs[-1])
            self._states, self._merged_bytes = [], 0

    def save(self, path: str | Path) -> None:
        """Write the state as a folder for `merge`, atomically.

        Raises WrongUseError for a path that exists, CloudFileError when writing fails.
        """
        path = Path(path)
        if path.exists():
            raise WrongUseError(f"{path} exists already")
        about = {"job": self.fingerprint(), "points": self.points, "not_finite": self.not_finite}
        with file_errors(path), atomic_path(path) as folder:
            write_state(map(self._merged, self._spans(self._parts())), folder, about)

    def close(self) -> None:
        """Remove all states, those on disk included."""
        self._states, self._runs = [], []
        self._remove_home()

    def __enter__(self) -> VoxelAccumulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- points out -----------------------------------------------------------------------------

    @property
    def result_schema(self) -> PointTable:
        """A table without points: the columns of the result."""
        level = torch.zeros(0, dtype=torch.int64) if self.levels else None
        return self._reduction.points(self._reduction.empty, level)

    def finish(self) -> Iterator[tuple[PointTable, Tensor, Tensor, Tensor | None]]:
        """(points, keys, number of points, level) of the voxels, in the order of their keys.

        They come in parts that fit the memory limit. More points may be added afterwards.
        """
        for span in self._spans(self._parts()):
            state, level = self._merged(span), None
            if self.levels:
                state, level = self._adapted(state)
            number = state[0]["sums"][:, 0]
            table = self._reduction.points(state, level)
            good = number >= self.min_points
            if not bool(good.all()):
                table = table.rows(good.cpu().numpy())
            yield table, state[0]["key"][good], number[good], None if level is None else level[good]

    def rows_of(self, table: PointTable, keys: Tensor, level: Tensor | None) -> Tensor:
        """The voxel of each point [N] int32, -1 for none. keys, level: of the result."""
        own = self._lattice.keys(self.placed(table.rows(slice(None), ())).xyz, self.device)
        row = torch.searchsorted(keys, own, right=True) - 1
        at = row.clamp(min=0)
        if len(keys) == 0:
            return torch.full_like(own, -1, dtype=torch.int32)
        shift = 0 if level is None else 3 * level[at].long()
        inside = (row >= 0) & (own >= 0) & ((own >> shift) == (keys[at] >> shift))
        return torch.where(inside, row, -1).int()

    def placed(self, table: PointTable) -> PointTable:
        """The table on the lattice of the schema, in native byte order."""
        table, schema = table.rows(slice(None)), self.schema
        xyz = self._lattice.moved(table, schema)
        return replace(table, xyz=xyz, scale=schema.scale, offset=schema.offset)

    # ---- inside ---------------------------------------------------------------------------------

    @property
    def frame(self) -> dict[str, Any]:
        """The range of cells that keys cover, for a report."""
        return {"lower": list(self._lattice.lower), "key_bits": 3 * self._lattice.bits}

    def bytes_a_voxel(self) -> int:
        """Bytes per voxel of a state in memory, without votes."""
        voxels = self._reduction.empty[0].values()
        return sum(c.element_size() * int(np.prod(c.shape[1:])) for c in voxels)

    @property
    def exact_cells(self) -> bool:
        """Whether no coordinate is rounded on the way to its cell."""
        return self._lattice.scale is None or self._lattice.exact

    @property
    def _lattice(self) -> Lattice:
        return self._reduction.lattice

    def _add(self, state: State) -> None:
        """Keep a state, and merge all when they have twice the size of the last merge."""
        self._states.append(state)
        size = sum(map(_bytes, self._states))
        if size <= min(self._limit, max(FEW, 2 * self._merged_bytes)):
            return
        self._states = [self._reduction.merged(self._states)]
        self._merged_bytes = _bytes(self._states[0])
        if self._merged_bytes > self._limit / 2:
            self.spill()

    def _remove_home(self) -> None:
        if self._home is not None:
            self._home.cleanup()
            self._home = None

    @contextlib.contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        before = {name: value for name, value in self.__dict__.items() if name != "_home"}
        before |= {"_states": [*self._states], "_runs": [*self._runs]}
        try:
            yield
        except BaseException:
            for run in self._runs[len(before["_runs"]) :]:
                shutil.rmtree(run, ignore_errors=True)
            self.__dict__.update(before)
            if not self._runs:
                self._remove_home()
            raise

    def _same_job(self, other: dict[str, Any], name: object) -> None:
        own = self.fingerprint()
        for key, value in own.items():
            if json.dumps(other.get(key)) != json.dumps(value):  # NaN equals itself there
                raise WrongUseError(
                    f"{name} has the {key} {short(other.get(key))}, this one {short(value)}: only "
                    "states of one job can be merged"
                )

    def _on_device(self, state: State) -> State:
        return [{name: c.to(self.device) for name, c in table.items()} for table in state]

    def _parts(self) -> list[State]:
        like = self._reduction.empty
        return [*self._states, *(map_columns(run, like) for run in self._runs)] or [like]

    def _spans(self, parts: list[State]) -> list[tuple[int, int]]:
        """Ranges of keys whose rows fit the limit; no adaptive cell lies in two of them."""
        end, step = 1 << 3 * self._lattice.bits, 8**self.levels
        cuts = [0]
        tables = [table for part in parts for table in part if len(table["key"])]
        if tables and not math.isinf(self._limit):
            third = max(self._limit / 3, 1)  # in the marks of a range, between them, of equal keys
            marks, weights = [], []
            for table in tables:
                row = _bytes([table]) / len(table["key"])
                every = max(int(third / len(tables) / row), 1)
                marks.append(table["key"][::every].cpu())
                weights.append(torch.full(marks[-1].shape, every * row, dtype=torch.float64))
            keys, order = torch.cat(marks).sort(stable=True)
            share = (torch.cat(weights)[order].cumsum(0) / third).long()
            cuts += (keys[1:][share.diff() > 0] // step * step).unique().tolist()
        return list(pairwise([*dict.fromkeys(cuts), end]))

    def _merged(self, span: tuple[int, int]) -> State:
        parts = self._parts()  # mapped again: pages that were read count as memory in use
        return self._reduction.merged([self._on_device(_cut(part, *span)) for part in parts])

    def _adapted(self, state: State) -> tuple[State, Tensor]:
        """The octree's state, and the level of each row: the largest that max_points allows."""
        keys = state[0]["key"]
        total = torch.nn.functional.pad(state[0]["sums"][:, 0].cumsum(0), (1, 0))
        level = torch.zeros_like(keys)
        for step in range(1, self.levels + 1):
            low = keys >> 3 * step << 3 * step
            begin = torch.searchsorted(keys, low)
            end = torch.searchsorted(keys, low + (8**step - 1), right=True)
            level[total[end] - total[begin] <= self.max_points] = step
        groups = Groups(keys >> 3 * level << 3 * level, 3 * self._lattice.bits)
        whole = torch.zeros_like(groups.keys)
        whole[groups.row] = level
        tables = []
        for table in state:
            own = level[torch.searchsorted(keys, table["key"])]
            tables.append({**table, "key": table["key"] >> 3 * own << 3 * own})
        return self._reduction.regrouped(tables), whole


def _bytes(state: State) -> int:
    return sum(c.numel() * c.element_size() for table in state for c in table.values())


def _cut(state: State, low: int, high: int) -> State:
    """The rows with low <= key < high."""
    cut = []
    for table in state:
        last = torch.tensor([low - 1, high - 1], device=table["key"].device)  # high may be 2^63
        begin, end = torch.searchsorted(table["key"], last, right=True).tolist()
        cut.append({name: column[begin:end] for name, column in table.items()})
    return cut
