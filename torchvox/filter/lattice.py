# SPDX-License-Identifier: Apache-2.0
"""Cells of a filter job: exact for the integer coordinates of LAS files."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch

import torchvox
from torchvox._util.errors import WrongUseError
from torchvox.ops.annotations import KeyLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from torchvox.io import PointTable

MOST_BITS = 21  # of an axis
ALIGNED = 1 << 10  # voxels; a multiple of the size of every adaptive cell
EXACT = 2**52  # integers below divide exactly in float64


class OutsideFrameError(WrongUseError):
    """Points lie outside their box, or need more cells than keys can number."""


@dataclass(frozen=True)
class Lattice:
    """Coordinates as a file holds them, and the cells over them.

    voxel_size, origin: (x, y, z) in the unit of the file.
    dtype: of the coordinates: "int32", "float32" or "float64".
    scale, offset: of int32 coordinates: a world coordinate is X * scale + offset.
    lower, bits: keys number the cells from lower to lower + 2^bits on each axis.
    layout: order of the keys, "morton" or "zyx".
    """

    voxel_size: tuple[float, ...]
    origin: tuple[float, ...]
    dtype: str
    scale: tuple[float, ...] | None
    offset: tuple[float, ...] | None
    lower: tuple[int, ...] = (0, 0, 0)
    bits: int = MOST_BITS
    layout: KeyLayout = "morton"

    @classmethod
    def of(
        cls,
        schema: PointTable,
        voxel_size: Sequence[float],
        origin: Sequence[float],
        box: np.ndarray | None,
        layout: KeyLayout = "morton",
    ) -> Lattice:
        """The lattice of a table, with the smallest frame around a box in world coordinates.

        Raises WrongUseError for sizes that make no cells, OutsideFrameError for too many cells.
        """
        size, shift = (tuple(map(float, values)) for values in (voxel_size, origin))
        if len(size) != 3 or not all(math.isfinite(v) and v > 0 for v in size):
            raise WrongUseError(f"the voxel size must be three numbers above 0, got {size}")
        if len(shift) != 3 or not all(map(math.isfinite, shift)):
            raise WrongUseError(f"the origin must be three finite numbers, got {shift}")
        lattice = cls(size, shift, *_stored_form(schema), layout=layout)
        return lattice if box is None else lattice.framed(box)

    @property
    def exact(self) -> bool:
        """Whether cells of integer coordinates are computed without rounding."""
        return self._steps() is not None

    def keys(self, xyz: np.ndarray, device: torch.device) -> Tensor:
        """The cell of each point [N, 3] as int64 [N]; -1 where it is not finite.

        Raises OutsideFrameError for points outside the frame.
        """
        points, size, origin = self._divided(xyz)
        keys, counts = torchvox.voxel_keys(
            torch.from_numpy(np.ascontiguousarray(points)).to(device),
            size,
            origin=origin,
            lower=list(self.lower),
            bits=self.bits,
            layout=self.layout,
        )
        if outside := int(counts[0, 1]):
            raise OutsideFrameError(
                f"{outside} points lie outside the box: give a box that holds all points"
            )
        return keys

    def centers(self, keys: Tensor, level: Tensor | int = 0) -> np.ndarray:
        """Centers of cells [R, 3] float64 in world coordinates.

        level: a cell of level L has 2^L voxels on each axis, and the key of its lowest one.
        """
        cells = torchvox.voxel_cells(keys, self.bits, [0, 0, 0], layout=self.layout)
        low = cells[:, [3, 2, 1]].cpu().numpy().astype(np.int64) + np.array(self.lower)
        level = np.array(level) if isinstance(level, int) else level.cpu().numpy()[:, None]
        return np.array(self.origin) + (low + 0.5 * (1 << level)) * np.array(self.voxel_size)

    def moved(self, table: PointTable, first: PointTable) -> np.ndarray:
        """The coordinates of a table on this lattice, that of `first`.

        Files of one scale whose offsets lie whole steps apart share a lattice.
        Raises WrongUseError if the table is not on it.
        """
        kind, scale, offset = _stored_form(table)
        if kind != self.dtype or scale != self.scale:
            raise WrongUseError(
                f"{_name(table)} has {kind} coordinates of scale {scale}, {_name(first)} "
                f"{self.dtype} ones of {self.scale}: torchvox convert --scale gives both one scale"
            )
        if offset == self.offset:
            return table.xyz
        steps = [
            (_exact(own) - _exact(first)) / _exact(step)
            for own, first, step in zip(offset, self.offset, scale, strict=True)  # type: ignore[arg-type]
        ]
        moved = table.xyz + np.array([int(s) for s in steps])
        whole = all(step.denominator == 1 for step in steps)
        if not whole or (np.abs(moved) >= 2**31).any():
            raise WrongUseError(
                f"{_name(table)} has the offset {offset}, {_name(first)} {self.offset}: they do "
                "not share a lattice of 32 bits, torchvox convert --scale puts them on one"
            )
        return moved.astype(np.int32)

    def _steps(self) -> tuple[list[int], list[int], list[int]] | None:
        """(mul, add, div): the cell of X is floor((mul * X + add) / div). None if inexact."""
        if self.scale is None or self.offset is None:
            return None
        axes = []
        for q, t, o, v in zip(self.scale, self.offset, self.origin, self.voxel_size, strict=True):
            if not (q and math.isfinite(q) and math.isfinite(t)):
                return None  # a file without points
            add, div = (_exact(t) - _exact(o)) / _exact(q), _exact(v) / _exact(q)
            mul = math.lcm(add.denominator, div.denominator) * (1 if q > 0 else -1)
            if (abs(mul) << 31) + abs(mul * add) >= EXACT or abs(mul * div) >= EXACT:
                return None
            axes.append((mul, int(mul * add), int(mul * div)))
        muls, adds, divs = zip(*axes, strict=True)
        return list(muls), list(adds), list(divs)

    def _divided(self, xyz: np.ndarray) -> tuple[np.ndarray, list[float], list[float]]:
        """Points, voxel size and origin for voxel_keys."""
        steps = self._steps()
        if steps:
            mul, add, div = steps
            points = xyz if mul == [1, 1, 1] else xyz * np.array(mul, np.float64)
            return points, [float(d) for d in div], [float(-a) for a in add]
        if self.scale is not None:
            xyz = xyz * np.array(self.scale) + np.array(self.offset)
        return xyz, list(self.voxel_size), list(self.origin)

    def stored(self, box: np.ndarray) -> np.ndarray:
        """The corners [2, 3] of a box in world coordinates, in the form of stored points."""
        corners = np.asarray(box, np.float64)
        if self.scale is not None:
            corners = np.rint((corners - np.array(self.offset)) / np.array(self.scale))
            corners = np.clip(corners, -(2.0**31), 2.0**31 - 1)  # a header may claim more
        return corners.astype(np.dtype(self.dtype))

    def framed(self, box: np.ndarray) -> Lattice:
        """The lattice with the smallest frame around a box in world coordinates.

        Raises OutsideFrameError for a box of too many cells.
        """
        corners = self.stored(box)
        points, size, origin = self._divided(corners)
        kind = np.float32 if points.dtype == np.float32 else np.float64
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            low, high = np.sort(
                np.floor((points.astype(kind) - np.array(origin, kind)) / np.array(size, kind)),
                axis=0,
            )
        if not np.isfinite([low, high]).all() or np.abs([low, high]).max() >= 2.0**53:
            raise OutsideFrameError(
                f"voxel size {self.voxel_size} makes more than 2^53 cells: take a larger one"
            )
        lower = [int(cell) // ALIGNED * ALIGNED for cell in low]
        needed = [(int(top) - cell).bit_length() for top, cell in zip(high, lower, strict=True)]
        axis = int(np.argmax(needed))
        if needed[axis] > MOST_BITS:
            extent = float(corners[1, axis]) - float(corners[0, axis])
            if self.scale is not None:
                extent = abs(extent * self.scale[axis])  # steps may fall
            enough = 1.01 * extent / (2**MOST_BITS - 2 * ALIGNED)  # the message rounds it
            raise OutsideFrameError(
                f"voxel size {self.voxel_size[axis]:g} over {extent:,.6g} needs {needed[axis]} "
                f"bits on {'xyz'[axis]}, a key has {MOST_BITS}: take a voxel size >= {enough:.3g}"
            )
        return replace(self, lower=tuple(lower), bits=max(needed[axis], 1))


def _exact(value: float) -> Fraction:
    """The number of the shortest decimal text of a float."""
    return Fraction(repr(float(value)))


def _stored_form(
    table: PointTable,
) -> tuple[str, tuple[float, ...] | None, tuple[float, ...] | None]:
    """Type, scale and offset of the coordinates of a table."""
    scale, offset = (None if v is None else tuple(v.tolist()) for v in (table.scale, table.offset))
    return table.xyz.dtype.newbyteorder("=").name, scale, offset


def _name(table: PointTable) -> str:
    return "the table" if table.path is None else str(table.path)
