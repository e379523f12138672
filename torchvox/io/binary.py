# SPDX-License-Identifier: Apache-2.0
"""Arrays as files: .bin of float32 rows, .npy, and .npz with one array per column."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, explained, short
from torchvox.io.cloud import FLOAT32_REACH, PointCloud, make_cloud
from torchvox.io.layouts import SKIP, layout_choices
from torchvox.io.roles import column_named, with_colors
from torchvox.io.table import (
    PointTable,
    PointWriter,
    TableReader,
    WholeWriter,
    flat,
    named,
    stacked,
)

SMALL = ("columns", "origin", "unit", "scale", "offset", "crs")  # arrays beside the columns
NOT_COLUMNS = ("x", "y", "z", "xyz", "points")
NORMALS = ("normals", "normal")  # [N, 3]
SMALL_MEMBER = 1 << 24  # bytes of each of them at most
DEFLATE_EXPANSION = 1032  # two bits stand for 258 bytes at most
MOST_COLUMNS = 1 << 16
ITEM_BYTES = 4  # every column of a .bin file is a little-endian float32

Columns = tuple[str, ...]


def open_bin(path: Path, columns: Columns | None) -> TableReader:
    """A reader of rows of float32; a .label file (SemanticKITTI) adds label and instance."""
    if columns is None:
        rule = f"a .bin file does not list its columns: add --layout, {layout_choices()}"
        raise WrongUseError(f"{path}: {rule}")
    size, row = path.stat().st_size, ITEM_BYTES * len(columns)
    if size % row:
        points = f"points of {row} bytes ({','.join(columns)} as float32)"
        reason = "so the file is cut short or has other columns: check --layout"
        raise CloudFileError(f"{path}: {size} bytes are not a whole number of {points}, {reason}")
    array = np.fromfile(path, "<f4").reshape(-1, len(columns))
    beside = path.with_suffix(".label"), path.parent.parent / "labels" / f"{path.stem}.label"
    file = next((file for file in beside if file.is_file()), None)
    fits = file is not None and file.stat().st_size == ITEM_BYTES * len(array)
    labels = np.fromfile(file, "<u4") if file and fits else None  # instance << 16 | label
    reader = ArrayReader(array, columns, path, labels)
    if file and not fits:
        reader.problems.append(f"{file} is ignored: it is not one label for each point")
    return reader


def map_words(path: Path) -> str:
    """What to say of a map in the place of a cloud."""
    return f"{path} is an occupancy map: torchvox map {path} -o {path.stem}.html"


def load_npy(path: Path) -> np.ndarray:
    """The array of a .npy file. Raises CloudFileError if it is not one."""
    with explained(path, ".npy file"), path.open("rb") as file:
        begins = file.read(6)
        if begins != b"\x93NUMPY" and begins[:2] != b"PK":  # NumPy takes it for a pickle then
            raise CloudFileError(f"{path} is not a .npy file (bad magic)")
        file.seek(0)
        array = np.load(file, allow_pickle=False)  # a damaged header is parsed as Python
    if isinstance(array, np.lib.npyio.NpzFile):
        raise CloudFileError(f"{path} is a .npz archive under the name .npy: rename it")
    return array


def open_npy(path: Path, columns: Columns | None) -> TableReader:
    """A reader of one array [N, C]."""
    return _from_array(load_npy(path), columns, path)


def open_npz(path: Path, columns: Columns | None) -> TableReader:
    """A reader of one array per column beside xyz, or of the form of write_cloud, whose `points`
    hold most columns.

    Arrays that are not columns of the points are ignored, and listed in `problems`.
    """
    with explained(path, ".npz file"), np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        native = "xyz" in names and "points" not in names
        main = "xyz" if native else "points"
        arrays = {name: _member(archive, name) for name in (main, *SMALL) if name in names}
        count = len(arrays[main]) if main in arrays and arrays[main].ndim == 2 else -1
        others = [name for name in names if name not in (*SMALL, *NOT_COLUMNS)]
        beside = {n: _member(archive, n) for n in others if _is_column(archive, n, count)}
    used = {main, "unit", *beside, *(SMALL[3:] if native else ("columns", "origin"))}
    unused = [name for name in names if name not in used]
    beside, problems = with_colors(beside)
    name = column_named(beside, *NORMALS)
    if name and beside[name].shape[1:] == (3,) and not {"nx", "ny", "nz"} & beside.keys():
        beside |= dict(zip(("nx", "ny", "nz"), beside.pop(name).T, strict=True))
    if unused:
        problems.append(f"its arrays {short(', '.join(unused))} are not columns and are ignored")
    if native and columns is not None:
        raise WrongUseError(f"{path}: this file already names its columns; remove --layout")
    if native:
        return _from_columns(arrays, beside, path, problems)
    if "points" not in arrays and {"about", "keys"} <= set(names):
        raise CloudFileError(map_words(path))
    if "points" not in arrays:
        listing = short(", ".join(names) or "nothing")
        raise CloudFileError(f"{path} has no array named 'points' (it holds {listing})")
    if columns is None and "columns" in arrays:
        # An array of empty strings may have any length.
        columns = tuple(str(name) for name in arrays["columns"].ravel()[: MOST_COLUMNS + 1])
    reader = _from_array(arrays["points"], columns, path, beside)
    reader.problems += problems
    origin = arrays.get("origin", np.zeros(3))
    if not _is_vector(origin):
        raise CloudFileError(f"{path}: origin must be 3 numbers, got shape {list(origin.shape)}")
    reader.move(origin.astype(np.float64), short(arrays.get("unit", "m")))
    return reader


def _from_columns(
    arrays: dict[str, np.ndarray], beside: dict[str, np.ndarray], path: Path, problems: list[str]
) -> TableReader:
    lattice = {n: arrays[n] for n in ("scale", "offset") if n in arrays}
    if not all(map(_is_vector, lattice.values())):
        raise CloudFileError(f"{path}: scale and offset must be 3 numbers each")
    lattice = {name: a.astype(np.float64) for name, a in lattice.items()}
    texts = {name: str(arrays[name]) for name in ("crs", "unit") if name in arrays}
    xyz = np.asarray(arrays["xyz"], order="C")
    with explained(path, ".npz file"):
        table = PointTable(xyz, beside, **lattice, **texts, path=path)  # type: ignore[arg-type]
    return TableReader(table, problems)


def _is_vector(array: np.ndarray) -> bool:
    """Whether an array is three finite numbers."""
    return array.shape == (3,) and array.dtype.kind in "fiu" and bool(np.isfinite(array).all())


def _is_column(archive: np.lib.npyio.NpzFile, name: str, count: int) -> bool:
    """Whether an array is numbers, [count] or [count, k], by its header alone."""
    try:
        with archive.zip.open(f"{name}.npy") as file:  # type: ignore[union-attr]
            version, form = np.lib.format.read_magic(file), np.lib.format
            read = form.read_array_header_1_0 if version < (2, 0) else form.read_array_header_2_0
            shape, _, type_ = read(file)
    except Exception:  # no array, or a damaged one
        return False
    narrow = len(shape) < 2 or (len(shape) == 2 and 0 < shape[1] <= MOST_COLUMNS)
    return narrow and shape[:1] == (count,) and type_.kind in "fiub"


def _member(archive: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """One array. Raises ValueError if it claims more than its bytes hold, or SMALL_MEMBER."""
    assert archive.zip is not None
    info = archive.zip.getinfo(name if name in archive.zip.namelist() else f"{name}.npy")
    check_claim(info, name, small=name in SMALL)
    return archive[name]


def check_claim(info: zipfile.ZipInfo, name: str, small: bool = False) -> None:
    """Raises ValueError if a member of an archive claims more than its bytes can hold."""
    most = info.compress_size
    if info.compress_type == zipfile.ZIP_DEFLATED:
        most *= DEFLATE_EXPANSION
    elif info.compress_type != zipfile.ZIP_STORED:  # others have no bound, and NumPy writes none
        raise ValueError(f"{name} has a compression that NumPy does not write")
    if info.file_size > (min(most, SMALL_MEMBER) if small else most):
        raise ValueError(f"{name} claims {info.file_size} bytes, more than it can hold")


class ArrayReader(TableReader):
    """A reader of a file whose points are one array [N, C]; `labels` [N] are two more columns,
    `beside` are others, except those that have the name of a column of the array.

    origin: [3] float64, which the file adds to its coordinates.
    """

    def __init__(
        self,
        array: np.ndarray,
        columns: Columns,
        path: Path,
        labels: np.ndarray | None = None,
        beside: dict[str, np.ndarray] | None = None,
    ) -> None:
        twice = [name for name in beside or {} if name in columns]
        beside = {name: a for name, a in (beside or {}).items() if name not in twice}
        self.origin, self._array, self._names = np.zeros(3), array, columns
        self._columns = {name: array[:, i] for i, name in enumerate(columns) if name != SKIP}
        if not {"x", "y", "z"} <= self._columns.keys():
            names = short(",".join(columns))
            raise CloudFileError(f"{path}: the columns {names} do not name x, y and z")
        in_order = columns[:3] == ("x", "y", "z") and array.dtype == np.float32
        xyz = array[:, :3] if in_order else stacked(self._columns)
        self._as_read = in_order and not beside
        attributes = {name: a for name, a in self._columns.items() if name not in ("x", "y", "z")}
        attributes |= beside
        self._columns |= flat(beside)
        if labels is not None:
            for name, values in (("label", labels & 65535), ("instance", labels >> 16)):
                attributes.setdefault(name, values.astype(np.uint16))
        super().__init__(PointTable(xyz, attributes, source=columns, path=path))
        if names := short(", ".join(twice)):
            self.problems = [f"its arrays {names} are ignored: points has columns of that name"]

    def move(self, origin: np.ndarray, unit: str) -> None:
        """Add an origin to the coordinates, which become float64 unless it is zero."""
        self.origin, self._table.unit = origin, unit
        if origin.any():
            self._table.xyz = self._table.world() + origin
        self.schema = self._table.schema

    def cloud(self, origin: np.ndarray | None = None) -> PointCloud:
        beyond = None if origin is None else origin - self.origin
        if self._as_read and SKIP not in self._names and (beyond is None or not beyond.any()):
            array = np.ascontiguousarray(self._array, np.float32)
            cloud = PointCloud(array, self._names, path=self.path)
        else:
            cloud = make_cloud(self._columns, self.path, origin=beyond)
        cloud.origin, cloud.unit = cloud.origin + self.origin, self._table.unit
        return cloud


def _from_array(
    array: np.ndarray,
    columns: Columns | None,
    path: Path,
    beside: dict[str, np.ndarray] | None = None,
) -> ArrayReader:
    shape, kind = list(array.shape), array.dtype.kind
    if len(shape) != 2 or not 3 <= shape[1] <= MOST_COLUMNS or kind not in "fiu":
        rule = f"a numeric array [N, C] with C from 3 to {MOST_COLUMNS}"
        raise CloudFileError(f"{path}: points must be {rule}, got {short(array.dtype)} {shape}")
    if columns is None:
        columns = ("x", "y", "z", *(f"column{i}" for i in range(3, shape[1])))
    if len(columns) != shape[1]:
        names = f"{len(columns)} ({short(','.join(columns))})"
        raise CloudFileError(f"{path} has {shape[1]} columns, but the layout names {names}")
    return ArrayReader(array, columns, path, beside=beside)


class BinWriter(PointWriter):
    """A writer of rows of float32: x, y, z and the attributes, in the order of a .bin source."""

    def write_points(self, table: PointTable) -> None:
        columns = flat(named(table))
        layout = self.schema.source if isinstance(self.schema.source, tuple) else ()
        if set(layout) == columns.keys() and SKIP not in layout:
            columns = {name: columns[name] for name in layout}
        if table.xyz.dtype != np.float32 and (np.abs(table.world()) > FLOAT32_REACH).any():
            rule = f"float32 does not resolve coordinates beyond {FLOAT32_REACH:g}"
            raise self.error(f"{rule}: write .npz, .las or .ply")
        self.file.write(_array(columns, self.path, np.dtype("<f4")).tobytes())


class NpyWriter(WholeWriter):
    """A writer of one array [N, C]: float32 if it holds every column, else float64."""

    def save(self, table: PointTable) -> None:
        columns = flat(named(table))
        small = all(np.can_cast(values.dtype, np.float32) for values in columns.values())
        np.save(self.file, _array(columns, self.path, np.dtype("f4" if small else "f8")))


def _array(columns: dict[str, np.ndarray], path: Path, type_: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        array = np.stack([values.astype(type_) for values in columns.values()], axis=1)
        for i, (name, values) in enumerate(columns.items()):
            if values.dtype.kind in "iu" and (array[:, i].astype(values.dtype) != values).any():
                raise WrongUseError(f"{path}: {type_} does not hold the integers of {short(name)}")
    return array


class NpzWriter(WholeWriter):
    """A writer of one array per column, with scale, offset, unit and crs: every type survives."""

    def save(self, table: PointTable) -> None:
        if taken := sorted({"xyz", "points", *SMALL} & table.attributes.keys()):
            raise self.error(f"an attribute must not be named {taken[0]} here")
        small = {"scale": table.scale, "offset": table.offset, "crs": table.crs}
        arrays = {"xyz": table.xyz, **table.by_value().attributes}
        arrays |= {name: np.asarray(value) for name, value in small.items() if value is not None}
        arrays["unit"] = np.asarray(table.unit)
        np.savez_compressed(self.file, **arrays)  # type: ignore[arg-type]
