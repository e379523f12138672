# SPDX-License-Identifier: Apache-2.0
"""Readers over readers: several files as one, and the points of a file that a selection takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

import torchvox
from torchvox._util.errors import WrongUseError, check_box, short
from torchvox.filter.lattice import Lattice
from torchvox.io import PointReader, PointTable
from torchvox.io.table import union_box
from torchvox.io.where import as_stored, parse_where

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchvox.io.where import Condition

NEIGHBORS = 1 << 22  # that are searched and measured at once


@dataclass(frozen=True)
class Selection:
    """Which points are taken. bounds: lowest and highest x, y, z, ends included. where: conditions,
    see `parse_where`. drop_withheld: not those that LAS calls withheld. Raises WrongUseError."""

    bounds: tuple[float, ...] | None = None
    where: str | None = None
    drop_withheld: bool = False

    def __post_init__(self) -> None:
        if self.bounds is not None:
            check_box(self.bounds, "bounds")

    @cached_property
    def _conditions(self) -> tuple[Condition, ...]:
        return parse_where(self.where) if self.where is not None else ()

    def columns(self, schema: PointTable) -> tuple[str, ...]:
        """The attributes that it looks at. Raises WrongUseError if there is none of a name."""
        if self.drop_withheld and "withheld" not in schema.columns:
            raise WrongUseError(f"{schema.path} has no column withheld: remove --drop-withheld")
        names = {condition.column(schema) for condition in self._conditions} - {*"xyz"}
        return tuple(names | {"withheld"} if self.drop_withheld else names)

    def __call__(self, table: PointTable) -> tuple[np.ndarray, dict[str, int]]:
        """Which points [N] are taken, and how many are left out for each reason."""
        good, left_out = np.ones(len(table), bool), {}
        if self.bounds is not None:
            world, bounds = table.world(), np.reshape(self.bounds, (2, 3))
            if table.scale is not None and table.offset is not None:
                bounds = as_stored(bounds, table.scale, table.offset)
            good = ((world >= bounds[0]) & (world <= bounds[1])).all(axis=1)
            left_out["outside of the bounds"] = int((~good).sum())
        if self.drop_withheld:
            withheld = good & (table.attributes["withheld"] != 0)
            left_out["withheld"] = int(withheld.sum())
            good &= ~withheld
        if self._conditions:
            before = int(good.sum())
            for condition in self._conditions:
                good &= condition.holds(table)
            left_out[f"without {self.where}"] = before - int(good.sum())
        return good, left_out


class MergedReader(PointReader):
    """Several files as one, in their order, with the columns that all of them have.

    lattice: moves integer coordinates to the lattice of the first; None leaves them.
    """

    def __init__(self, readers: Sequence[PointReader], lattice: Lattice | None = None) -> None:
        first, self.readers, self._lattice = readers[0], readers, lattice
        names = [name for name in first.columns if all(name in r.columns for r in readers)]
        schema = replace(first.schema.rows(slice(0, 0), names), path=first.path)
        super().__init__(first.path, sum(reader.count for reader in readers), schema)
        self.name, self.no_data = f"{len(readers)} files", first.no_data
        self.problems = [f"{r.path.name}: {text}" for r in readers for text in r.problems]
        for other in [reader.name for reader in readers if reader.crs != first.crs][:1]:
            self.problems.append(f"{other}: its reference system is not that of {first.name}")
        boxes = [reader.header_box for reader in readers if reader.count]
        self.header_box = union_box(boxes) if all(box is not None for box in boxes) else None

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        for reader in self.readers:
            begin, first = min(first, reader.count), max(first - reader.count, 0)
            for table in reader.chunks(size, begin, names) if begin < reader.count else ():
                if self._lattice is not None:
                    xyz = self._lattice.moved(replace(table, path=reader.path), self.schema)
                    table = replace(table, xyz=xyz, offset=self.schema.offset)
                yield table


class SelectedReader(PointReader):
    """The points of a reader, `whole`, that a selection takes; `count` is that of the reader.

    outliers: [M] bool, which of these points are left out too.
    left_out: reason -> number of points, of the last pass over the chunks.
    """

    def __init__(self, reader: PointReader, selection: Selection) -> None:
        super().__init__(reader.path, reader.count, reader.schema)
        self.whole, self.selection = reader, selection
        self._looked_at = selection.columns(self.schema)
        self.name, self.problems, self.no_data = reader.name, reader.problems, reader.no_data
        self.header_box = reader.header_box
        self.outliers: np.ndarray | None = None
        self.left_out: Counter[str] = Counter()

    @cached_property
    def color_depth(self) -> int | None:
        return self.whole.color_depth  # that of the whole cloud, wherever it is cropped

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        self.left_out, at = Counter(), 0
        for table in self.whole.chunks(size, first, dict.fromkeys((*names, *self._looked_at))):
            good, left_out = self.selection(table)
            self.left_out.update(left_out)
            table = table.rows(good, names)
            if self.outliers is not None:
                far = self.outliers[at : at + len(table)]
                at += len(table)
                self.left_out["outliers"] += int(far.sum())
                table = table.rows(~far)
            yield table


def check_alike(readers: Sequence[PointReader], lattice: bool = True) -> Lattice | None:
    """The lattice that files share which become one; None without `lattice`.
    Raises WrongUseError if they have other columns or no-data values, or share no lattice."""
    first, *others = readers
    shared = Lattice.of(first.schema, (1.0,) * 3, (0.0,) * 3, None)
    for reader in others:
        paths = f"{reader.path} and {first.path}"
        if reader.columns != first.columns:
            differ = sorted(reader.columns.items() ^ first.columns.items(), key=str)
            raise WrongUseError(
                f"{paths} do not have the same columns: only one of them has "
                f"{short(', '.join(f'{n} {t}' for n, t in differ))}"
            )
        if repr(reader.no_data) != repr(first.no_data):
            raise WrongUseError(
                f"{paths} do not have the same no-data values: {short(reader.no_data)} and "
                f"{short(first.no_data)}"
            )
        if lattice:
            one, two = (replace(r.schema, path=r.path) for r in (reader, first))
            shared.moved(one, two)
    return shared if lattice else None


def outliers_of(xyz: np.ndarray, neighbors: int, deviations: float) -> np.ndarray:
    """Which points [N] bool are far from the others, or not finite (1e18 is infinite here).

    A point is far if the mean distance to its nearest neighbors exceeds the mean of these means by
    more than `deviations` of their standard deviations. xyz: [N, 3] float64.
    Raises WrongUseError for as few finite points as neighbors.
    """
    far = ~(np.abs(xyz) < 1e18).all(axis=1)  # whose squares are finite in float32
    xyz = xyz[~far]
    if len(xyz) <= neighbors:
        rule = f"outliers: K must be below the number of finite points, {len(xyz)}"
        raise WrongUseError(f"{rule}; got {neighbors}")
    # knn is fast in float32: the distances of what it finds are computed again in float64.
    # The median is among most of them, wherever a few stray ones are.
    points = torch.from_numpy((xyz - np.median(xyz, axis=0)).astype(np.float32))
    means, rows = np.empty(len(xyz)), NEIGHBORS // (neighbors + 1)
    for at in range(0, len(xyz), rows):
        query = points[None, at : at + rows]
        near = torchvox.knn(points[None], query, neighbors + 1).idx[0].numpy()
        off = xyz[near] - xyz[at : at + rows, None]
        # One of the distances is 0, that of the point itself or of one in its place.
        means[at : at + rows] = np.sqrt(np.einsum("nkd,nkd->nk", off, off)).sum(axis=1) / neighbors
    far[~far] = means > means.mean() + deviations * means.std(ddof=1)
    return far
