# SPDX-License-Identifier: Apache-2.0
"""PointCloud2 messages as tables, and the times of their points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchvox._util.errors import CloudFileError, WrongUseError, short
from torchvox.io.pcd import PACKED, PADDING, channels
from torchvox.io.table import PointTable, table_of

TYPES = ("", "i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")  # by the number of a field's datatype
MOST_POINTS = 1 << 31
TIME_FIELDS = (
    *("t", "time", "timestamp", "time_stamp"),
    *("offset_time", "time_offset", "point_time_offset"),
)
NEAR = 10 * 10**9  # ns: times of points are that near to the stamp of their scan
UNITS = {"s": 10**9, "ns": 1, "us": 1000}
NO_TIME = np.iinfo(np.int64).min  # of a point whose time is not finite


def table_of_message(message: Any, path: Path) -> tuple[PointTable, list[str]]:
    """The points of a message with all its fields, in native byte order, and sentences about what
    was converted. Arrays are views of the message where its byte order allows that.

    Organised clouds keep all their points, row by row. Raises ValueError or CloudFileError for a
    message that is not consistent.
    """
    width, height, step, row = message.width, message.height, message.point_step, message.row_step
    count, data = width * height, message.data
    order = ">" if message.is_bigendian else "<"
    fields: dict[str, tuple[np.dtype, int]] = {}
    for field in message.fields:
        name, number, values = field.name.strip(), field.datatype, field.count or 1
        if name in ("", PADDING) or name in fields:
            continue
        if not 0 < number < len(TYPES):
            raise ValueError(f"its field {short(name)} has the datatype {number}, not 1 to 8")
        type_ = np.dtype((order + TYPES[number], (values,) if values > 1 else ()))
        if count and field.offset + type_.itemsize > step:
            end = f"ends at byte {field.offset + type_.itemsize}"
            raise ValueError(f"its field {short(name)} {end} of points of {step} bytes")
        fields[name] = type_, field.offset
    if count and width * step > row and height > 1:
        raise ValueError(f"its rows of {row} bytes cannot hold {width} points of {step} bytes")
    row = row if height > 1 else width * step
    if count >= MOST_POINTS or (count and (height - 1) * row + width * step > len(data)):
        rule = f"{len(data)} bytes cannot hold {height} rows of {width} points of {step} bytes"
        raise ValueError(f"its {rule}, {row} bytes a row")
    if not count:
        columns = {name: np.zeros((0, *t.shape), t.base) for name, (t, _) in fields.items()}
        columns = columns if {*"xyz"} <= fields.keys() else dict.fromkeys("xyz", np.zeros(0, "f4"))
    else:
        each = zip(*fields.values(), strict=True) if fields else ((), ())
        formats, offsets = map(list, each)
        names = [f"f{i}" for i in range(len(fields))]
        type_ = np.dtype(dict(names=names, formats=formats, offsets=offsets, itemsize=step))
        points = np.ndarray((height, width), type_, data, strides=(row, step)).reshape(-1)
        columns = {name: points[own] for name, own in zip(fields, names, strict=True)}
    for name in [name for name in PACKED if name in columns]:
        packed = columns[name]
        if packed.dtype.itemsize == 4 and packed.ndim == 1 and not {*PACKED[name]} & {*columns}:
            native = packed.astype(packed.dtype.newbyteorder("="))
            columns = {n: a for n, a in columns.items() if n != name} | channels(name, native)
    table, problems = table_of(columns, path)
    own = (table.xyz, *table.attributes.values())
    is_native = all(values.dtype.isnative for values in own)
    return table if is_native else table.rows(slice(None)), problems


def point_times(
    table: PointTable, stamp: int, field: str | None = None
) -> tuple[np.ndarray | None, str]:
    """When each point was measured, [N] int64 ns since 1970, and words about how it is known.

    None for points without times, or with the same one. NO_TIME where the time is not finite.
    stamp: of the scan, in ns. field: the column, "none" for no times; by default the first of
        TIME_FIELDS. Near the stamp its values are seconds, ns or us since 1970, else ns (integers)
        or seconds (floats) after the stamp.
    Raises WrongUseError for an unknown column, CloudFileError for other values.
    """
    own = [name for name, values in table.attributes.items() if values.ndim == 1]
    name = field or next((name for name in TIME_FIELDS if name in own), "none")
    if name == "none":
        return None, "none"
    if name not in own:
        raise WrongUseError(f"there is no column {short(name)} of times: it has {', '.join(own)}")
    values = table.attributes[name]
    is_good = np.isfinite(values)
    good = values[is_good]
    if not len(good) or good.min() == good.max():
        return None, f"none: {name} is the same for all points"
    whole, median = values.dtype.kind in "iu", float(np.median(good))
    times = np.full(len(values), NO_TIME)
    for unit, scale in UNITS.items():
        if abs(median * scale - stamp) <= NEAR:
            base = good if whole else np.floor(good)
            rest = 0 if whole else np.rint((good - base).astype(np.float64) * scale)
            times[is_good] = base.astype(np.int64) * scale + np.int64(rest)
            return times, f"{name}, {unit} since 1970"
    scale = 1 if whole else 10**9
    low, high = good.min(), good.max()
    if not (float(low) * scale >= -NEAR and float(high) * scale <= NEAR):
        rule = "neither near the stamp nor within 10 s of it: give --time-field none"
        raise CloudFileError(f"{name} is {low:.10g}..{high:.10g}, {rule} (the stamp is {stamp})")
    offsets = good if whole else np.rint(good.astype(np.float64) * scale)
    times[is_good] = stamp + offsets.astype(np.int64)
    return times, f"{name}, {'ns' if whole else 's'} after the stamp"
