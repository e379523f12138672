# SPDX-License-Identifier: Apache-2.0
"""The records of a LAS file as bytes, before and after the points; descriptions of extra bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torchvox.io.words import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import laspy

    from torchvox.io.table import Steps

Key = tuple[bytes, int]  # user and number of a record
Bytes = TypeVar("Bytes", bytes, np.ndarray)

VLR, EVLR = 54, 60  # bytes before the data of a record
WKT, CITATION = (b"LASF_Projection", 2112), (b"LASF_Projection", 34737)
GEO_KEYS = (b"LASF_Projection", 34735)
LASZIP, EXTRA = (b"laszip encoded", 22204), (b"LASF_Spec", 4)
UNDESCRIBED = "ExtraBytes"  # column of the bytes of a point without a description
STRUCT = 192  # bytes of the description of one column of extra bytes
HAS_NONE, HAS_LOW, HAS_HIGH, HAS_SCALE, HAS_OFFSET = 1, 2, 4, 8, 16
NONE_AT, LOW_AT, HIGH_AT, SCALE_AT, OFFSET_AT = 40, 64, 88, 112, 136
ANGLE_STEPS = np.array([0.006]), np.zeros(1)  # of scan_angle, in degrees
# Types by their numbers 1 to 10; 11 to 20 are pairs of them, 21 to 30 triples.
TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


@dataclass
class LasSource:
    """The header of a file, and its records.

    head: the bytes before the points, which begin at `start`; `count` points of `width` bytes.
    laszip: data of the LASzip record, b"" if the points are not compressed.
    point_format: laspy's, with the extra bytes.
    extra, steps: name -> description of an extra column, steps of any column.
    problems: faults that do not keep the points from being read.
    late: the extended records, one after the other, mapped from the file.
    late_number: the number of extended records.
    """

    head: bytes
    start: int
    width: int
    count: int = 0
    laszip: bytes = b""
    point_format: laspy.PointFormat = None
    extra: dict[str, bytes] = field(default_factory=dict)
    steps: dict[str, Steps] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    late: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    late_number: int = 0


def records(data: Bytes, number: int, head: int) -> Iterator[tuple[Key, Bytes]]:
    """(key, whole bytes) of `number` records, each with `head` (VLR or EVLR) bytes before its data.

    Raises ValueError if they do not fit.
    """
    at = 0
    for _ in range(number):
        length = int.from_bytes(bytes(data[at + 20 : at + head - 32]), "little")
        if at + head + length > len(data):
            raise ValueError("its records do not fit its size")
        whole = data[at : at + head + length]
        yield record_key(whole), whole
        at += head + length


def record_key(whole: bytes | np.ndarray) -> Key:
    """User and number of a record."""
    return bytes(whole[2:18]).split(b"\0")[0], int.from_bytes(bytes(whole[18:20]), "little")


def head_records(head: bytes) -> tuple[int, list[tuple[Key, bytes]]]:
    """The offset of the records in a header, and the records."""
    start, _, number = struct.unpack_from("<HII", head, 94)
    return start, list(records(head[start:], number, VLR))


def record(key: Key, data: bytes, about: bytes = b"") -> bytes:
    """A record of variable length."""
    return struct.pack("<2x16sHH32s", *key, len(data), about) + data


def descriptors(whole: bytes) -> list[bytes]:
    """The descriptions of an extra-bytes record."""
    return [whole[at : at + STRUCT] for at in range(VLR, len(whole) - STRUCT + 1, STRUCT)]


def column_name(raw: bytes) -> str:
    """The name of a described column."""
    return decoded(raw[4:36].split(b"\0")[0] or b"extra")


def column_type(raw: bytes) -> np.dtype | None:
    """The type of a described column, bytes if it has none; None for an unknown number."""
    if raw[2] > 3 * len(TYPES):
        return None
    base, count = ("u1", raw[3]) if not raw[2] else (TYPES[(raw[2] - 1) % 10], _width(raw))
    return np.dtype((base, (count,) if count != 1 else ()))


def column_steps(raw: bytes) -> Steps | None:
    """Scale and offset [k] of a described column; None without any, or if they are 1 and 0."""
    if not raw[2] or not raw[3] & (HAS_SCALE | HAS_OFFSET):
        return None
    scale, offset = (
        np.frombuffer(raw, "<f8", _width(raw), at).astype(np.float64)
        if raw[3] & flag
        else np.full(_width(raw), usual)
        for flag, at, usual in ((HAS_SCALE, SCALE_AT, 1.0), (HAS_OFFSET, OFFSET_AT, 0.0))
    )
    return None if (scale == 1).all() and not offset.any() else (scale, offset)


def descriptor(name: str, type_: np.dtype, steps: Steps | None) -> bytes:
    """A new description, with room for minimum and maximum."""
    width = int(np.prod(type_.shape))
    number = TYPES.index(type_.base.str[1:]) + 1 + 10 * (width - 1)
    raw = bytearray(struct.pack("<2xBB32s156x", number, HAS_LOW | HAS_HIGH, name.encode()))
    if steps is not None:
        raw[3] |= HAS_SCALE | HAS_OFFSET
        for at, values in zip((SCALE_AT, OFFSET_AT), steps, strict=True):
            struct.pack_into(f"<{width}d", raw, at, *values)
    return bytes(raw)


def no_data(raw: bytes) -> np.ndarray | None:
    """The values [k] that stand for "none" by a description, in the type of the column."""
    if not raw[2] or not raw[3] & HAS_NONE:
        return None
    values = np.frombuffer(raw, _wide(raw), _width(raw), NONE_AT)
    with np.errstate(all="ignore"):
        return values.astype(TYPES[(raw[2] - 1) % 10])


def with_range(raw: bytes, ranges: dict[int, tuple[Any, Any]]) -> bytes:
    """A description with minimum and maximum of its values, if its flags say that it has them."""
    new = bytearray(raw)
    if raw[2]:  # 0 is bytes without a type
        for end, (flag, at) in enumerate(((HAS_LOW, LOW_AT), (HAS_HIGH, HIGH_AT))):
            if raw[3] & flag:
                values = [ranges[i][end] if i in ranges else 0 for i in range(3)]
                new[at : at + 24] = np.array(values, _wide(raw)).tobytes()
    return bytes(new)


def _width(raw: bytes) -> int:
    return (raw[2] - 1) // 10 + 1


def _wide(raw: bytes) -> str:
    return f"<{TYPES[(raw[2] - 1) % 10][0]}8"
