# SPDX-License-Identifier: Apache-2.0
"""The header of a LAS file, read from its bytes, since laspy refuses headers with small faults."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import CloudFileError, short
from torchvox._util.extras import require
from torchvox.io import las_records
from torchvox.io.las_records import EXTRA, LASZIP, UNDESCRIBED, VLR, LasSource, column_type
from torchvox.io.roles import distinct_names

if TYPE_CHECKING:
    from pathlib import Path

HEADER_BYTES = (227, 227, 227, 235, 375, 393)  # by minor version


def read_header(path: Path, salvage: bool) -> LasSource:
    """The header and records of a file, except its extended records.

    salvage: read the points that a truncated file still has, and list the problem.
    Raises CloudFileError or ValueError for a header with which no points can be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(393).ljust(393, b"\0")
        if head[:4] != b"LASF":
            raise CloudFileError(f"{path} is not a LAS file: it does not begin with LASF")
        length, start, number = struct.unpack_from("<HII", head, 94)
        late = struct.unpack_from("<I", head, 243)[0] if head[25] >= 4 else 0
        fits = length >= HEADER_BYTES[min(head[25], 5)] and length + VLR * number <= start <= size
        if not fits or 60 * late > size:
            rule = "its header does not fit its size"
            raise CloudFileError(f"{path} is cut short or damaged: {rule}")
        file.seek(0)
        head = file.read(start)
    kept = las_records.head_records(head)[1]
    first, packed = dict(reversed(kept)), head[104] >> 6 == 2
    source = LasSource(head, start, struct.unpack_from("<H", head, 105)[0])
    source.laszip = first.get(LASZIP, b"")[VLR:] if packed else b""
    if packed and not source.laszip:
        rule = "its point format says compressed, but there is no LASzip record"
        source.problems.append(f"{rule}: it is read as not compressed")
    if [key for key, _ in kept].count(EXTRA) > 1:
        source.problems.append("it describes its extra bytes more than once: the first is used")
    _add_columns(source, las_records.descriptors(first.get(EXTRA, b"")))
    source.count = _count(source, size, salvage)
    return source


def _add_columns(source: LasSource, raws: list[bytes]) -> None:
    """Set the point format, with the described extra bytes and those without a description."""
    laspy = require("laspy", "to read LAS files")
    format_ = source.point_format = laspy.PointFormat(source.head[104] & 63)
    if format_.size > source.width:
        raise ValueError(f"points of format {format_.id} need more than {source.width} bytes")
    taken = {*format_.dimension_names, *format_.dtype().names, *"xyz", UNDESCRIBED}
    names = distinct_names([*taken, *map(las_records.column_name, raws)])[0][len(taken) :]
    renamed = []
    if format_.id > 5:
        source.steps["scan_angle"] = las_records.ANGLE_STEPS
    for raw, name in zip(raws, names, strict=True):
        type_ = column_type(raw)
        if type_ is None or format_.size + type_.itemsize > source.width:
            source.problems.append("its extra bytes do not fit their description")
            break
        if not type_.itemsize:
            continue
        if name.encode() != (own := raw[4:36].split(b"\0")[0]):
            renamed.append(f"{own.decode('latin-1')!r} as {name}")
        source.extra[name] = raw
        format_.add_extra_dimension(laspy.ExtraBytesParams(name, type_))
        if steps := las_records.column_steps(raw):
            source.steps[name] = steps
            if not (np.isfinite(steps).all() and steps[0].all()):
                source.problems.append(f"scale and offset of its {short(name)} give no values")
    if renamed:
        source.problems.append(f"some extra columns are renamed: {short(', '.join(renamed))}")
    if rest := source.width - format_.size:
        type_ = np.dtype(("u1", (rest,)))
        format_.add_extra_dimension(laspy.ExtraBytesParams(UNDESCRIBED, type_))


def _count(source: LasSource, size: int, salvage: bool) -> int:
    """The number of points to read: a file may hold fewer or more than its header counts."""
    head, problems = source.head, source.problems
    count = legacy = struct.unpack_from("<I", head, 107)[0]
    # Offsets behind the last possible point: the end, the waveforms, the extended records.
    ends = [size, *(struct.unpack_from("<Q", head, 227) if head[25] >= 3 else ())]
    room = (size - source.start) // source.width
    if head[25] >= 4:
        late, number, count = struct.unpack_from("<QIQ", head, 235)
        ends += [late] * (number > 0)
        if legacy not in (0, count):
            counts, fitting = (count, legacy), [n for n in (count, legacy) if 0 < n <= room]
            count = count or legacy if source.laszip else (*fitting, count)[0]
            both = " and ".join(map(str, counts))
            problems.append(f"its header counts {both} points: {count} are read")
    if source.laszip:
        return count
    if count > room:
        claim = f"the {count} points that its header promises"
        problems.append(f"{size} bytes cannot hold {claim}: it is cut short or damaged")
        if not salvage:
            raise ValueError(problems[-1])
        return room
    more = (min(end for end in ends if end >= source.start) - source.start) // source.width - count
    if more > 0:
        use = "ignored" if count else "read"
        problems.append(f"its header counts {count} points, {more} more after them are {use}")
    return count or max(more, 0)
