# SPDX-License-Identifier: Apache-2.0
"""A column of points: its values, which of them are missing, codes in their order, addends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import WrongUseError

if TYPE_CHECKING:
    from torchvox.io import PointTable

NONE = np.iinfo(np.int64).max  # the code of no value
LARGE_INT, LARGE_FLOAT = 2**32, 2.0**31  # sums of values from here on may leave 64 bits


@dataclass(frozen=True)
class Column:
    """A column of the points, flat: [N, k]. The coordinates have the name None.

    type: of the result.
    none: [k] values of the type that stand for "none".
    steps: (scale, offset) of what is stored in steps, with another rule.
    """

    name: str | None
    type: np.dtype
    rule: str
    none: np.ndarray | None
    steps: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def width(self) -> int:
        return int(np.prod(self.type.shape))

    @property
    def floats(self) -> bool:
        return self.type.base.kind == "f"

    def values(self, table: PointTable) -> np.ndarray:
        values = table.xyz if self.name is None else table.attributes[self.name]
        return values.reshape(len(table), self.width)

    @property
    def _falling(self) -> bool:
        """Whether codes are in the opposite order of what is stored: that of the values."""
        return self.rule == "max" or (self.steps is not None and bool(self.steps[0][0] < 0))

    def missing(self, values: np.ndarray) -> np.ndarray | None:
        """Where there is no value, [N, k] bool; None: nowhere."""
        if not self.floats:
            return None if self.none is None else values == self.none
        nan = np.isnan(values)
        return nan if self.none is None else nan | (values == self.none)

    def fill(self, values: np.ndarray, where: np.ndarray) -> np.ndarray:
        """The values in their type, with what stands for "none" at the places of `where`."""
        values = values.astype(self.type.base, copy=False)
        none = self.none if self.none is not None else np.nan if self.floats else None
        return values if none is None or not where.any() else np.where(where, none, values)

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Codes int64 that ascend with the values, for "max" descend; NONE for no value."""
        missing = self.missing(values)
        codes = self._ordered(values)
        if missing is None:
            return codes
        # NONE may be the code of a value, while that of `none` is free.
        if self.none is not None and not self.floats:
            codes = codes - (codes > self._ordered(self.none))
        return np.where(missing, NONE, codes)

    def decoded(self, codes: np.ndarray) -> np.ndarray:
        """The values of codes."""
        missing = codes == NONE
        if self.none is not None and not self.floats:
            codes = codes + (~missing & (codes >= self._ordered(self.none)))
        return self.fill(_values(~codes if self._falling else codes, self.type.base), missing)

    def _ordered(self, values: np.ndarray) -> np.ndarray:
        return ~ordered(values) if self._falling else ordered(values)


def addends(column: Column, values: np.ndarray) -> np.ndarray:
    """The values to add up, where there is none NaN or 0. Raises WrongUseError for large ones."""
    missing = column.missing(values)
    if column.floats:
        values = values.astype(np.float64)
        if missing is not None:
            values[missing] = np.nan
        with np.errstate(invalid="ignore"):
            large = (np.abs(values) >= LARGE_FLOAT) & (np.abs(values) < np.inf)
    else:
        values = values if missing is None else np.where(missing, values.dtype.type(0), values)
        if values.dtype.itemsize < 8:
            return values
        large = (values >= LARGE_INT) | (values <= -LARGE_INT)
    if large.any():
        most = "2^31" if column.floats else "2^32"
        name, remedy = column.name, f"choose another rule, such as --policy {column.name}=min"
        if name is None:
            name, remedy = "a coordinate", "keep the center or a point of each voxel"
        raise WrongUseError(
            f"{name} is {values[large][0]}, and values of {most} or more cannot be added up: "
            f"{remedy}"
        )
    return values


def none_of(kind: np.dtype, values: np.ndarray | None) -> np.ndarray | None:
    """The values in the type of their column; None if an integer type does not hold them."""
    if values is None:
        return None
    with np.errstate(all="ignore"):
        cast = values.astype(kind)
    return cast if kind.kind == "f" or np.array_equal(cast, values) else None


def ordered(values: np.ndarray) -> np.ndarray:
    """Codes int64 that ascend with the values."""
    if values.dtype.kind == "f":
        bits = (values.astype(np.float64) + 0.0).view(np.int64)
        return bits ^ ((bits >> 63) & NONE)
    if values.dtype == np.uint64:
        return values.view(np.int64) ^ np.iinfo(np.int64).min
    return values.astype(np.int64)


def _values(codes: np.ndarray, kind: np.dtype) -> np.ndarray:
    """The inverse of `ordered`."""
    if kind.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return (codes ^ ((codes >> 63) & NONE)).view(np.float64).astype(kind)
    if kind == np.uint64:
        return (codes ^ np.iinfo(np.int64).min).view(np.uint64)
    return codes.astype(kind)


def fitting(column: Column, values: np.ndarray) -> np.ndarray:
    """Counts or sums in the type of the column. Raises WrongUseError if it does not hold them."""
    kind = column.type.base
    with np.errstate(over="ignore"):
        cast = values.astype(kind)
    lost = np.isinf(cast) if kind.kind == "f" else cast.astype(values.dtype) != values
    if lost.any():
        raise WrongUseError(
            f"{column.rule} of {column.name} reaches {values[lost][0]}, which {kind} does not "
            "hold: choose another rule"
        )
    return cast
