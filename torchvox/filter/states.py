# SPDX-License-Identifier: Apache-2.0
"""The voxels of some points as tables that may be merged in any order.

A state is a list of tables, each a dictionary of columns with rows that ascend by `key`:

    voxels  one row per voxel: key; sums: int64 words, the number of points first; least: codes of
            minima; for each pick its score, the index of its point, the bytes of its columns
    votes   for each column of which the most frequent value is taken, one row for each value in a
            voxel: key, code of the value, count

Every word is the result of integer additions or of a minimum. So the same points give the same bits
however they are split, merged or spread over devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox.data.counter_random import mix
from torchvox.filter.columns import NONE, Column, addends, fitting, ordered
from torchvox.filter.policy import normals

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchvox.filter.lattice import Lattice
    from torchvox.filter.schema import Schema
    from torchvox.io import PointTable

    State = list[dict[str, Tensor]]


@dataclass(frozen=True)
class Reduction:
    """How points of one schema become states, and states points again.

    keep: which point a voxel becomes. seed: of keep="random".
    """

    schema: Schema
    lattice: Lattice
    keep: str
    seed: int

    # ---- points to a state ----------------------------------------------------------------------

    def state(
        self, table: PointTable, keys: Tensor, index: Tensor, scores: np.ndarray | None = None
    ) -> State:
        """The state of points in the cells `keys` [N] with the numbers `index` [N].

        scores: [N] float64, to keep the point with the lowest one.
        Raises WrongUseError for values that cannot be added up.
        """
        table = self.schema.by_value(table)
        good = keys >= 0
        rising = bool((index[1:] > index[:-1]).all())
        if not rising or not bool(good.all()):
            (at,) = torch.where(good)
            at = at if rising else at[index[at].argsort()]
            kept = at.cpu().numpy()
            table, keys, index = table.rows(kept), keys[at], index[at]
            scores = None if scores is None else scores[kept]
        groups, schema, device = Groups(keys, 3 * self.lattice.bits), self.schema, keys.device
        sums = [groups.sizes[:, None]]
        if schema.ints or schema.counted:
            sums.append(groups.sum(_tensor(self._int_values(table), device)))
        if schema.floats:
            values = np.concatenate([addends(c, c.values(table)) for c in schema.floats], axis=1)
            sums.append(groups.sum(_tensor(values, device)))
        voxels = {"key": groups.keys, "sums": torch.cat(sums, dim=1)}
        if schema.least:
            codes = np.concatenate([c.codes(c.values(table)) for c in schema.least], axis=1)
            voxels["least"] = groups.least(_tensor(codes, device))
        for i, columns in enumerate(schema.picks):
            score, order = self._score(columns[0], table, index, keys, scores)
            at = groups.first if score is None else groups.winner(score, order)
            rows = at.cpu().numpy()
            parts = [np.ascontiguousarray(c.values(table)[rows]).view(np.uint8) for c in columns]
            voxels[f"score{i}"] = torch.zeros_like(at) if score is None else score[at]
            voxels[f"index{i}"] = order[at]
            voxels[f"bytes{i}"] = _tensor(np.concatenate(parts, axis=1), device)
        state = [voxels]
        for column in schema.votes:
            codes, row = _tensor(column.codes(column.values(table))[:, 0], device), groups.row
            if column.floats or column.none is not None:
                row, codes = row[codes != NONE], codes[codes != NONE]
            state.append(_counted(groups.keys, row, codes, torch.ones_like(codes)))
        return state

    def _int_values(self, table: PointTable) -> np.ndarray:
        columns = [addends(c, c.values(table)) for c in self.schema.ints]
        for c in self.schema.counted:
            values = c.values(table)
            missing = c.missing(values)
            columns.append(np.ones(values.shape, np.int32) if missing is None else ~missing)
        small = all(v.dtype.itemsize < 4 or v.dtype == np.int32 for v in columns)
        kind = np.int32 if small else np.int64
        return np.concatenate([v.astype(kind, copy=False) for v in columns], axis=1)

    def _score(
        self,
        column: Column,
        table: PointTable,
        index: Tensor,
        keys: Tensor,
        scores: np.ndarray | None,
    ) -> tuple[Tensor | None, Tensor]:
        """(score, order): the point with the lowest pair is taken; None: all scores are 0."""
        rule = column.rule
        if rule in ("first", "last"):
            missing = column.missing(column.values(table))
            order = index if rule == "first" else ~index
            if missing is None:
                return None if rule == "first" else torch.zeros_like(index), order
            return _tensor(np.asarray(missing.all(axis=1), np.int64), keys.device), order
        if self.keep == "random":
            return mix(mix(torch.full_like(index, self.seed)) + index), index
        if self.keep == "nearest_center":
            scores = square_distance(table.world(), self.lattice.centers(keys))
        return (None if scores is None else _tensor(ordered(scores), keys.device)), index

    @cached_property
    def empty(self) -> State:
        """The state of no points."""
        none = torch.zeros(0, dtype=torch.int64)
        return self.state(self.schema.table, none, none)

    # ---- states to one --------------------------------------------------------------------------

    def merged(self, states: Sequence[State]) -> State:
        """The state of the points of all states."""
        if len(states) == 1:
            return states[0]
        tables = [
            {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            for parts in zip(*states, strict=True)
        ]
        return self.regrouped(tables)

    def regrouped(self, tables: State) -> State:
        """The state with one row for rows of equal keys."""
        bits = 3 * self.lattice.bits
        voxels = tables[0]
        groups = Groups(voxels["key"], bits)
        merged = {"key": groups.keys, "sums": groups.sum(voxels["sums"])}
        if self.schema.least:
            merged["least"] = groups.least(voxels["least"])
        for i in range(len(self.schema.picks)):
            at = groups.winner(voxels[f"score{i}"], voxels[f"index{i}"])
            for name in (f"score{i}", f"index{i}", f"bytes{i}"):
                merged[name] = voxels[name][at]
        votes = [
            _counted(groups.keys, torch.searchsorted(groups.keys, t["key"]), t["code"], t["count"])
            for t in tables[1:]
        ]
        return [merged, *votes]

    # ---- a state to points ----------------------------------------------------------------------

    def points(self, state: State, level: Tensor | None = None) -> PointTable:
        """One point per voxel, in the order of the keys. level: [R], of adaptive cells."""
        schema, voxels = self.schema, state[0]
        keys, host = voxels["key"], {name: c.cpu().numpy() for name, c in voxels.items()}
        columns = dict(self._sums(voxels["sums"]))
        at = 0
        for c in schema.least:
            columns[c.name] = c.decoded(host["least"][:, at : at + c.width])
            at += c.width
        for i, picked in enumerate(schema.picks):
            at = 0
            for c in picked:
                own = host[f"bytes{i}"][:, at : at + c.type.itemsize]
                columns[c.name] = np.ascontiguousarray(own).view(c.type.base)
                at += c.type.itemsize
        for c, table in zip(schema.votes, state[1:], strict=True):
            columns[c.name] = self._winners(c, keys, table)
        if self.keep == "center":
            centers = self._on_lattice(self.lattice.centers(keys, 0 if level is None else level))
            columns[None] = centers.astype(schema.columns[0].type.base)
        attributes = {
            c.name: columns[c.name].reshape(len(keys), *c.type.shape)
            for c in schema.columns
            if c.name is not None and c.rule != "drop"
        }
        for three in normals(attributes):
            if all(c.rule == "unit_mean" for c in schema.columns if c.name in three):
                _normalize(attributes, three)
        if level is not None:
            attributes["level"] = level.cpu().numpy().astype(np.uint8)
        steps = {c.name: c.steps for c in schema.columns if c.steps and c.name in attributes}
        return replace(
            schema.table, xyz=columns[None], attributes=attributes, steps=steps, path=None
        )

    def _sums(self, sums: Tensor) -> Iterator[tuple[str | None, np.ndarray]]:
        """(name, values [R, k]) of the columns that are added up or counted."""
        schema = self.schema
        widths = [c.width for c in (*schema.ints, *schema.counted)]
        number, *parts = sums.split([1, *widths, *(3 * c.width for c in schema.floats)], dim=1)
        ints = len(schema.ints)
        counts = {c.name: words for c, words in zip(schema.counted, parts[ints:], strict=False)}
        for c in schema.counted:
            if c.rule == "count":
                yield c.name, fitting(c, counts[c.name].cpu().numpy())
        for c, words in zip(schema.ints, parts, strict=False):
            n = counts.get(c.name, number)
            empty = (n == 0).expand_as(words).cpu().numpy()
            if c.rule == "sum":
                values = fitting(c, words.cpu().numpy())
            else:
                means = [
                    torchvox.voxel_mean_of_sums(
                        words[:, k : k + 1].contiguous(),
                        n[:, min(k, n.shape[1] - 1)].contiguous(),
                        torch.int64,
                    )
                    for k in range(c.width)
                ]
                values = torch.cat(means, dim=1).cpu().numpy()
            yield c.name, c.fill(values, empty)
        for c, words in zip(schema.floats, parts[len(widths) :], strict=True):
            if c.rule == "sum":
                units, rest = (words[:, k::3].double() for k in range(2))
                values = fitting(c, (units + rest * 2.0**-32).cpu().numpy())
                values = np.where((words[:, 2::3] == 0).cpu().numpy(), np.nan, values)
            else:
                type_ = torch.from_numpy(np.zeros(0, c.type.base)).dtype
                means = torchvox.voxel_mean_of_sums(
                    words.contiguous(), number[:, 0].contiguous(), type_
                )
                values = means.cpu().numpy()
            yield c.name, c.fill(values, np.isnan(values))

    def _winners(self, column: Column, keys: Tensor, votes: dict[str, Tensor]) -> np.ndarray:
        """The most frequent value of each voxel [R, 1], the smallest of them on a tie."""
        codes = torch.full_like(keys, NONE)
        if len(votes["key"]):
            groups = Groups(votes["key"], 3 * self.lattice.bits)
            at = groups.winner(-votes["count"], votes["code"])
            codes[torch.searchsorted(keys, groups.keys)] = votes["code"][at]
        return column.decoded(codes.cpu().numpy()[:, None])

    def _on_lattice(self, world: np.ndarray) -> np.ndarray:
        table = self.schema.table
        if table.scale is None:
            return world
        steps = np.rint((world - table.offset) / table.scale)
        if not (np.abs(steps) < 2**31).all():
            raise WrongUseError("the center of a cell needs more than 32 bits at the file's scale")
        return steps


class Groups:
    """Rows of equal keys [N] int64 of `bits` bits, in ascending order."""

    def __init__(self, keys: Tensor, bits: int) -> None:
        group = torchvox.voxel_group(keys, key_bits=max(bits, 1), order="key")
        rows = int(group.counts[0])
        self.keys = group.row_keys[:rows].clone()
        self.row = group.point_voxel.long()
        self._offsets, self._perm = group.offsets[: rows + 1], group.perm
        self.sizes = self._offsets.diff().long()

    @property
    def first(self) -> Tensor:
        """The lowest place [R] of each row."""
        return self._perm[self._offsets[:-1].long()].long()

    def sum(self, values: Tensor) -> Tensor:
        return torchvox.voxel_sum(values, self._offsets, self._perm)

    def least(self, codes: Tensor) -> Tensor:
        """The minima [R, L] of each column of codes [N, L] int64."""
        columns = [
            torch.full_like(self.keys, NONE).scatter_reduce_(0, self.row, column, "amin")
            for column in codes.T
        ]
        return torch.stack(columns, dim=1)

    def winner(self, score: Tensor, order: Tensor) -> Tensor:
        """The place [R] of the lowest (score, order) of each row."""
        tied = score == self.least(score[:, None])[self.row, 0]
        among = torch.where(tied, order, NONE)
        (places,) = torch.where(tied & (among == self.least(among[:, None])[self.row, 0]))
        return torch.empty_like(self.keys).scatter_(0, self.row[places], places)


def square_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances [N] float64 of rows a and b [N, 3]."""
    d = a - b
    return (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]


def _tensor(values: np.ndarray, device: torch.device) -> Tensor:
    values = np.require(values, requirements=["C", "W"])
    return torch.from_numpy(values).to(device)


def _counted(keys: Tensor, row: Tensor, codes: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """The counts of equal (key, code), ascending. row: the place of each code's key in `keys`."""
    if not len(row):
        return {"key": keys[:0], "code": codes, "count": counts}
    low = int(codes.min())
    span, values = int(codes.max()) - low + 1, None
    if span >= 1 << 31:
        values, codes = torch.unique(codes, return_inverse=True)
        low, span = 0, len(values)
    pair, pairs = row * span + (codes - low), len(keys) * span
    if pairs <= 4 * len(row):
        total = counts.new_zeros(pairs).index_add_(0, pair, counts)
        (pair,) = torch.where(total)
        counts = total[pair]
    else:
        groups = Groups(pair, pairs.bit_length())
        pair, counts = groups.keys, groups.sum(counts[:, None])[:, 0]
    code = pair % span + low
    return {
        "key": keys[pair // span],
        "code": code if values is None else values[code],
        "count": counts,
    }


def _normalize(attributes: dict[str, np.ndarray], names: Sequence[str]) -> None:
    """Divide three columns by their length, in float64, where that is not 0."""
    x, y, z = (attributes[name].astype(np.float64) for name in names)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt((x * x + y * y) + z * z)
        length = np.where(length == 0, 1, length)
    for name, values in zip(names, (x, y, z), strict=True):
        attributes[name] = (values / length).astype(attributes[name].dtype)
