# SPDX-License-Identifier: Apache-2.0
"""Conditions on columns as text, such as classification=2,9 and z<120; nothing is evaluated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchvox._util.errors import WrongUseError, short
from torchvox.io.roles import column_named

if TYPE_CHECKING:
    from torchvox.io.table import PointTable

_CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(==?|!=|<=?|>=?)\s*([^<>=!]+?)\s*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_ORDERS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
FORM = "NAME=2, NAME=2,9, NAME=3..5, NAME!=7 or NAME>100, joined by 'and'"


class Condition(NamedTuple):
    """One comparison. ranges: lowest and highest values, ends included; of an order, its limit."""

    name: str
    operator: str
    ranges: tuple[tuple[float, float], ...]

    def column(self, schema: PointTable) -> str:
        """The column that is meant: x, y, z or an attribute of one value. Raises WrongUseError."""
        names = [*"xyz", *(name for name, type_ in schema.columns.items() if not type_.shape)]
        if (name := column_named(names, self.name)) is None:
            rule = f"where: {schema.path or 'the table'} has no column {short(self.name)}"
            raise WrongUseError(f"{rule}: it has {short(', '.join(names))}")
        return name

    def holds(self, table: PointTable) -> np.ndarray:
        """Which points [N] have such a value."""
        name = self.column(table)
        axis, ranges = {"x": 0, "y": 1, "z": 2}.get(name, -1), self.ranges
        values = table.values(name) if axis < 0 else table.world()[:, axis]
        steps = table.steps.get(name) if axis < 0 else (table.scale, table.offset)
        if steps is not None and steps[0] is not None and steps[1] is not None:
            ranges = as_stored(ranges, steps[0][axis], steps[1][axis]).tolist()
        if self.operator in _ORDERS:
            return np.asarray(_ORDERS[self.operator](values, ranges[0][0]))
        inside = np.zeros(len(values), bool)
        for low, high in ranges:
            inside |= values == low if low == high else (values >= low) & (values <= high)
        return ~inside if self.operator == "!=" else inside


def as_stored(limits: Any, scale: Any, offset: Any) -> np.ndarray:
    """Limits of values that are stored * scale + offset, rounded as these: 0.3 is 3 * 0.1."""
    with np.errstate(all="ignore"):  # limits may be infinite, a scale 0
        near = np.rint((np.asarray(limits, np.float64) - offset) / scale) * scale + offset
        return np.where(np.abs(near - limits) < 1e-4 * np.abs(scale), near, limits)


def parse_where(text: str, option: str = "where") -> tuple[Condition, ...]:
    """The conditions of a text, all of which must hold.

    text: comparisons (=, !=, <, <=, >, >=) of a column with a number, joined by "and". = and !=
        also take lists (2,9) and ranges (3..5, ends included). Names are compared as `column_named`
        does, values as `PointTable.values` gives them.
    option: the argument that an error names. Raises WrongUseError for anything else.
    """
    return tuple(_condition(part, option) for part in re.split(r"(?i)\s+and\s+", text))


def _condition(text: str, option: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise WrongUseError(f"{option} takes {FORM}; got {short(text)!r}")
    name, operator, listing = match.groups()
    ranges = []
    for item in listing.split(","):
        low, two, high = item.partition("..")
        ends = [end.strip() for end in ([low, high] if two else [low, low])]
        good = all(map(_NUMBER.fullmatch, ends)) and _number(ends[0]) <= _number(ends[1])
        if not good or (operator in _ORDERS and (two or "," in listing)):
            raise WrongUseError(f"{option} takes {FORM}; got {short(listing)!r} in {short(text)!r}")
        ranges.append((_number(ends[0]), _number(ends[1])))
    return Condition(name, operator.replace("==", "="), tuple(ranges))


def _number(text: str) -> float:
    """A whole number stays one: float64 does not hold all of 64 bits."""
    return int(text) if text.lstrip("+-").isdigit() else float(text)
