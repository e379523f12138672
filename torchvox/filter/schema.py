# SPDX-License-Identifier: Apache-2.0
"""The columns of points and the rule of each, from which follows what a state holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from torchvox.filter.columns import Column, none_of
from torchvox.filter.policy import REAL_POINT, VALUE_RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchvox.io import PointTable


class Schema:
    """Columns of points, each with a rule.

    table: the columns as a table without points.
    columns: the coordinates, then the columns of the table, in its order.
    ints, floats: columns that are added up. counted: those whose values are counted.
    least: columns of which the lowest code is kept. votes: those of the most frequent value.
    picks: groups of columns, each group taken from one point of a voxel.
    """

    def __init__(
        self,
        table: PointTable,
        rules: Mapping[str, str],
        keep: str,
        no_data: Mapping[str, np.ndarray],
    ) -> None:
        """rules: name -> rule, of `rules_of`. keep: which point a voxel becomes. no_data: name ->
        values [k] that stand for "none"."""
        self.table = table
        rule = "representative" if keep in REAL_POINT else "mean" if keep == "centroid" else keep
        type_ = np.dtype((table.xyz.dtype.newbyteorder("="), (3,)))
        self.columns = [Column(None, type_, rule, None)]
        self._by_value: dict[str, np.ndarray | None] = {}  # none of each as it is stored
        for name, type_ in table.columns.items():
            none, steps = none_of(type_.base, no_data.get(name)), table.steps.get(name)
            if steps and rules[name] in VALUE_RULES:
                self._by_value[name] = none
                type_, none, steps = np.dtype((np.float64, type_.shape)), None, None
            self.columns.append(Column(name, type_, rules[name], none, steps))
        added = self._with("mean", "unit_mean", "sum")
        self.ints = [c for c in added if not c.floats]
        self.floats = [c for c in added if c.floats]
        may_lack = [c for c in self.ints if c.none is not None]
        self.counted = [c for c in self.columns if c.rule == "count" or c in may_lack]
        self.least = self._with("min", "max")
        self.picks = [[c] for c in self._with("first", "last")]
        if representative := self._with("representative"):
            self.picks.append(representative)
        self.votes = self._with("majority")

    def _with(self, *rules: str) -> list[Column]:
        return [c for c in self.columns if c.rule in rules]

    def by_value(self, table: PointTable) -> PointTable:
        """The table with the values of columns of rules by value, NaN for none."""
        attributes = dict(table.attributes)
        for name, none in self._by_value.items():
            values = attributes[name] = table.values(name)
            if none is not None:
                values[table.attributes[name] == none] = np.nan
        return replace(table, attributes=attributes)
