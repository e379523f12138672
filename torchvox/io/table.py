# SPDX-License-Identifier: Apache-2.0
"""PointTable: points in the types of their file; the base classes of its readers and writers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, short
from torchvox.io.cloud import make_cloud
from torchvox.io.roles import COLORS, coordinate_names, with_colors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import ArrayLike

    from torchvox.io.cloud import PointCloud

CHUNK = 2_000_000  # points
LATTICE = ("scale", "offset")  # fields that map stored coordinates to the world
Steps = tuple[np.ndarray, np.ndarray]  # scale and offset [k] of an attribute


@dataclass
class PointTable:
    """Points with attributes, in the types of their file.

    xyz: [N, 3] int32, whose world coordinates are xyz * scale + offset in float64 (LAS); or
        float32 or float64 world coordinates.
    attributes: name -> [N] or [N, k], as the file stores them: colors are not rescaled.
    scale, offset: [3] float64, of int32 coordinates; None for others.
    steps: name -> (scale, offset), [k] float64 each, of attributes that are stored in steps (LAS):
        their values are stored * scale + offset, see `values`.
    crs: text of the coordinate reference system, or None.
    unit: unit of the coordinates.
    source: the header of the file, for a writer of the same format.
    path: the file it came from.
    """

    xyz: np.ndarray
    attributes: dict[str, np.ndarray] = field(default_factory=dict)
    scale: np.ndarray | None = None
    offset: np.ndarray | None = None
    crs: str | None = None
    unit: str = "m"
    source: object = None
    path: Path | None = None
    steps: dict[str, Steps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        integer = self.scale is not None and self.offset is not None
        types = (np.int32,) if integer else (np.float32, np.float64)
        if self.xyz.shape[1:] != (3,) or self.xyz.dtype.newbyteorder("=") not in types:
            rule = "[N, 3] float32 or float64, or int32 with scale and offset"
            got = f"{list(self.xyz.shape)} {self.xyz.dtype}"
            raise ValueError(f"PointTable: xyz must be {rule}, got {got}")
        for name, values in self.attributes.items():
            if values.ndim not in (1, 2) or len(values) != len(self.xyz):
                rule = f"[{len(self.xyz)}] or [{len(self.xyz)}, k], got {list(values.shape)}"
                raise ValueError(f"PointTable: {short(name)} must be {rule}")

    def __len__(self) -> int:
        return len(self.xyz)

    @property
    def columns(self) -> dict[str, np.dtype]:
        """The types of the attributes; [N, k] ones have the shape (k,)."""
        columns = self.attributes.items()
        return {name: np.dtype((a.dtype.newbyteorder("="), a.shape[1:])) for name, a in columns}

    @property
    def schema(self) -> PointTable:
        """The table without its points."""
        return self.rows(slice(0, 0))

    @property
    def box(self) -> np.ndarray | None:
        """Lowest and highest world coordinates [2, 3] float64 of finite points, None if none."""
        xyz = self.world()
        xyz = xyz[np.isfinite(xyz).all(axis=1)]
        return np.stack([xyz.min(axis=0), xyz.max(axis=0)]) if len(xyz) else None

    def world(self) -> np.ndarray:
        """World coordinates [N, 3] float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # scales of any size, a signaling NaN
            if self.scale is None:
                return self.xyz.astype(np.float64)
            return self.xyz * self.scale + self.offset

    def values(self, name: str) -> np.ndarray:
        """The values of an attribute, in float64 if it is stored in steps."""
        stored = self.attributes[name]
        if name not in self.steps:
            return stored
        scale, offset = self.steps[name]
        with np.errstate(over="ignore", invalid="ignore"):
            wide = stored.astype(np.float64)
            return wide * scale + offset if wide.ndim > 1 else wide * scale[0] + offset[0]

    def by_value(self) -> PointTable:
        """The table with the values of all attributes, none of them stored in steps."""
        if not self.steps:
            return self
        attributes = {name: self.values(name) for name in self.attributes}
        return replace(self, attributes=attributes, steps={})

    def rows(self, index: slice | np.ndarray, columns: Iterable[str] | None = None) -> PointTable:
        """The points of an index, with some of the columns; in memory, in native byte order."""

        def take(values: np.ndarray) -> np.ndarray:
            values = values[index]
            return np.ascontiguousarray(values, values.dtype.newbyteorder("="))

        names = self.attributes if columns is None else columns
        attributes = {name: take(self.attributes[name]) for name in names}
        steps = {name: pair for name, pair in self.steps.items() if name in attributes}
        return replace(self, xyz=take(self.xyz), attributes=attributes, steps=steps)


def join(tables: Sequence[PointTable]) -> PointTable:
    """The points of tables with the same columns, one after the other.

    By value if their columns have different steps, in world coordinates if their lattices differ.
    """
    if any(other_steps(tables[0], table) for table in tables):
        tables = [table.by_value() for table in tables]
    if not all(same(getattr(tables[0], n), getattr(t, n)) for n in LATTICE for t in tables):
        tables = [replace(t, xyz=t.world(), scale=None, offset=None) for t in tables]
    first = tables[0]
    attributes = {n: np.concatenate([t.attributes[n] for t in tables]) for n in first.attributes}
    return replace(first, xyz=np.concatenate([t.xyz for t in tables]), attributes=attributes)


def same(one: ArrayLike | Steps | None, other: ArrayLike | Steps | None) -> bool:
    """Whether two lattices are the same, or both None."""
    return one is other or (
        one is not None and np.array_equal(one, other if other is not None else ())
    )


def other_steps(one: PointTable, other: PointTable) -> str | None:
    """The first attribute of `one` that `other` stores in other steps."""
    names = [n for n in one.attributes if not same(one.steps.get(n), other.steps.get(n))]
    return names[0] if names else None


def union_box(boxes: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """The box [2, 3] around boxes; None for those of no points."""
    corners = [box for box in boxes if box is not None]
    return np.stack([np.min(corners, axis=0)[0], np.max(corners, axis=0)[1]]) if corners else None


def stacked(columns: dict[str, np.ndarray]) -> np.ndarray:
    """x, y, z as [N, 3] float32 if they are of such a type, else float64."""
    axes = [columns[axis] for axis in "xyz"]
    small = all(a.dtype.kind == "f" and a.dtype.itemsize <= 4 for a in axes)
    with np.errstate(invalid="ignore"):  # a signaling NaN
        return np.stack(axes, axis=1).astype(np.float32 if small else np.float64, copy=False)


def table_of(
    columns: dict[str, np.ndarray], path: Path, source: object = None
) -> tuple[PointTable, list[str]]:
    """The table of the columns of a file, and sentences about its conversions.

    Coordinates are not copied if they lie side by side. Raises CloudFileError without x, y, z.
    """
    axes = coordinate_names(name for name, values in columns.items() if values.ndim == 1)
    if axes is None:
        names = short(", ".join(columns) or "none")
        raise CloudFileError(f"{path} has no x, y, z fields (it has {names})")
    three = [columns[axis] for axis in axes]
    first, step = three[0], three[0].dtype.itemsize
    starts = [values.__array_interface__["data"][0] for values in three]
    beside = [starts[0] + i * step for i in range(3)] == starts and first.dtype.kind == "f"
    alike = all((a.dtype, a.strides) == (first.dtype, first.strides) for a in three)
    if beside and alike and len(first):
        shape = len(first), 3
        xyz = np.lib.stride_tricks.as_strided(first, shape, (*first.strides, step), writeable=False)
    else:
        xyz = stacked(dict(zip("xyz", three, strict=True)))
    rest = {name: values for name, values in columns.items() if name not in axes}
    attributes, problems = with_colors(rest)
    return PointTable(xyz, attributes, source=source, path=path), problems


def color_depth(table: PointTable) -> int | None:
    """The bits that the colors of the table need, 8 or 16; None without integer colors."""
    colors = [table.values(name) if name in table.attributes else None for name in COLORS]
    if any(values is None or values.dtype.kind not in "iu" for values in colors):
        return None
    return 16 if any(values.max(initial=0) > 255 for values in colors) else 8  # type: ignore[union-attr]


def colors_8(table: PointTable, depth: int) -> PointTable:
    """The table with colors as uint8; depth: bits of the whole cloud's colors, 8 or 16.

    16 bits are divided by 256. Raises WrongUseError when colors do not fit the depth.
    """
    attributes = dict(table.attributes)
    for name in COLORS:
        values = attributes[name]
        if depth == 8 and values.max(initial=0) > 255:
            raise WrongUseError(f"{name} has more than 8 bits: it is {values.max()}")
        attributes[name] = (values >> (depth - 8)).astype(np.uint8)
    return replace(table, attributes=attributes)


class PointReader:
    """An open file: its columns, and its points in chunks.

    path, count: the file, and the number of its points. name: of the file, for messages.
    schema: a table without points: columns, scale, offset, crs, unit, source.
    problems: sentences about faults of the file that do not keep it from being read.
    no_data: column -> the values [k] that stand for "none".
    plain: the columns that read_cloud takes, None for all.
    header_box: the box [2, 3] in the header, None without one that can be right.
    """

    header_box: np.ndarray | None = None
    plain: tuple[str, ...] | None = None

    def __init__(self, path: Path, count: int, schema: PointTable) -> None:
        self.path, self.count, self.schema, self.name = path, count, schema, path.name
        self.problems: list[str] = []
        self.no_data: dict[str, np.ndarray] = {}

    @property
    def columns(self) -> dict[str, np.dtype]:
        """The types of the attributes."""
        return self.schema.columns

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    @property
    def scale(self) -> np.ndarray | None:
        """Step of the coordinates [3] float64, None unless they are integers."""
        return self.schema.scale

    @property
    def crs(self) -> str | None:
        """Text of the coordinate reference system, or None."""
        return self.schema.crs

    @cached_property
    def box(self) -> np.ndarray | None:
        """The box [2, 3] float64 in world coordinates, None without points; may read all points."""
        if self.header_box is not None:
            return self.header_box
        return union_box(chunk.box for chunk in self.chunks(columns=()))

    @cached_property
    def color_depth(self) -> int | None:
        """The bits of the largest color, 8 or 16; None without integer colors. Reads all points."""
        if not self.columns.keys() >= set(COLORS):
            return None
        depths = [color_depth(table) or 0 for table in (self.schema, *self.chunks(columns=COLORS))]
        return max(depths) if all(depths) else None

    def chunks(
        self, size: int = CHUNK, first: int = 0, columns: Iterable[str] | None = None
    ) -> Iterator[PointTable]:
        """Tables of `size` points each, the last one of fewer, from point `first` on.

        columns: names of the attributes to read, None for all.
        Raises WrongUseError for an unknown column, CloudFileError for a damaged file.
        """
        own = self.columns
        names = tuple(own if columns is None else columns)
        if unknown := [name for name in names if name not in own]:
            listing = short(", ".join(own) or "none")
            raise WrongUseError(f"{self.path} has no column {short(unknown[0])}: it has {listing}")
        if size < 1 or not 0 <= first <= self.count:
            most = f"size must be 1 or more and first at most {self.count}"
            raise WrongUseError(f"{self.path}: {most}, got {size} and {first}")
        return self._chunks(size, first, names)

    def coordinates(self) -> np.ndarray:
        """The coordinates [N, 3] of all points in the type of the file, float64 for integers."""
        tables = [self.schema, *self.chunks(columns=())]
        return np.concatenate([t.xyz if t.scale is None else t.world() for t in tables])

    def cloud(self, origin: np.ndarray | None = None) -> PointCloud:
        """All points as float32 around a local origin: see make_cloud."""
        table = join([self.schema.rows(slice(0, 0), self.plain), *self.chunks(columns=self.plain)])
        xyz = table.world() if table.scale is not None else table.xyz
        columns = {axis: xyz[:, i] for i, axis in enumerate("xyz")}
        columns |= flat(table.by_value().attributes)
        cloud = make_cloud(columns, self.path, self.schema.unit, self.schema.scale, origin)
        return replace(cloud, crs=self.crs)

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        raise NotImplementedError


class TableReader(PointReader):
    """A reader of a format that is read whole, or mapped into memory."""

    def __init__(self, table: PointTable, problems: Iterable[str] = ()) -> None:
        super().__init__(table.path or Path(), len(table), table.schema)
        self._table, self.problems = table, list(problems)

    def _chunks(self, size: int, first: int, names: tuple[str, ...]) -> Iterator[PointTable]:
        for at in range(first, self.count, size):
            yield self._table.rows(slice(at, at + size), names)


class PointWriter:
    """A file that is being written, with the columns of `schema`.

    problems: sentences for the readers of the file, complete once it is closed.
    """

    def __init__(self, file: BinaryIO, like: PointTable | PointReader, path: Path) -> None:
        self.file, self.schema, self.path, self.count = file, like.schema, path, 0
        self.problems: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Check the columns, and write what comes before the points."""

    def error(self, words: str) -> WrongUseError:
        """The error of what the file cannot hold."""
        return WrongUseError(f"{self.path}: {words}")

    def append(self, table: PointTable) -> None:
        """Write points. Raises WrongUseError for other columns or steps than those of the file."""
        columns = [list(t.columns.items()) for t in (self.schema, table)]
        if columns[0] != columns[1]:
            texts = [", ".join(f"{name} {type_}" for name, type_ in each) for each in columns]
            own, other = (short(text or "none") for text in texts)
            raise WrongUseError(f"{self.path} is written with the columns {own}, got {other}")
        if (name := other_steps(self.schema, table)) is not None:
            steps = [t.steps.get(name, "none") for t in (self.schema, table)]
            rule = f"{self.path} is written with the steps {short(steps[0])} of {short(name)}"
            advice = "use by_value() of both, or the steps of the file"
            raise WrongUseError(f"{rule}, got {short(steps[1])}: {advice}")
        if len(table):
            self.write_points(table)
            self.count += len(table)

    def write_points(self, table: PointTable) -> None:
        """For formats alone: writes points that `append` has checked and counts."""
        raise NotImplementedError

    def close(self) -> None:
        """Write the rest, which completes the file."""


class WholeWriter(PointWriter):
    """A writer of a format that is written at once, from memory."""

    def begin(self) -> None:
        self._tables = [self.schema]

    def write_points(self, table: PointTable) -> None:
        self._tables.append(table)

    def close(self) -> None:
        self.save(join(self._tables))

    def save(self, table: PointTable) -> None:
        raise NotImplementedError


def named(table: PointTable) -> dict[str, np.ndarray]:
    """x, y, z in world coordinates, and the values of the attributes."""
    if clash := sorted({"x", "y", "z"} & table.attributes.keys()):
        raise WrongUseError(f"an attribute must not be named {clash[0]}: that is a coordinate")
    xyz = table.xyz if table.scale is None else table.world()
    return {"x": xyz[:, 0], "y": xyz[:, 1], "z": xyz[:, 2], **table.by_value().attributes}


def flat(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns with [N, k] ones as k of one value: name__0000, name__0001, ..."""
    singles: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        parts = [f"{name}__{i:04d}" for i in range(values.shape[1])] if values.ndim > 1 else [name]
        singles |= zip(parts, values.reshape(len(values), len(parts)).T, strict=True)
    return singles
