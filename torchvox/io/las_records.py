# SPDX-License-Identifier: Apache-2.0
"""The records of a LAS file as bytes: those before the points, those after, and extra bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import laspy

Key = tuple[bytes, int]  # user and number of a record

VLR, EVLR = 54, 60  # bytes before the data of a record
WKT, CITATION = (b"LASF_Projection", 2112), (b"LASF_Projection", 34737)
LASZIP, EXTRA = (b"laszip encoded", 22204), (b"LASF_Spec", 4)
STRUCT = 192  # bytes that describe one of the extra bytes' columns
HAS_NONE, HAS_LOW, HAS_HIGH = 1, 2, 4
NONE_AT, LOW_AT, HIGH_AT = 40, 64, 88
# Numbers 1 to 10; 11 to 30 are two and three of them.
TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


@dataclass
class LasSource:
    """What a file holds beside its points.

    head: the bytes before the points.
    late: the extended records, one after the other, mapped from the file.
    late_number: how many they are.
    point_format: laspy's, with the extra bytes.
    """

    head: bytes
    late: np.ndarray
    late_number: int
    point_format: laspy.PointFormat


def records(data: Any, number: int, head: int) -> Iterator[tuple[Key, Any]]:
    """(key, whole bytes) of `number` records with VLR or EVLR bytes before the data of each.

    Raises ValueError when they do not fit.
    """
    at = 0
    for _ in range(number):
        length = int.from_bytes(bytes(data[at + 20 : at + head - 32]), "little")
        if at + head + length > len(data):
            raise ValueError("its records do not fit its size")
        whole = data[at : at + head + length]
        yield record_key(whole), whole
        at += head + length


def record_key(whole: Any) -> Key:
    """User and number of a record."""
    return bytes(whole[2:18]).split(b"\0")[0], int.from_bytes(bytes(whole[18:20]), "little")


def head_records(head: bytes) -> tuple[int, list[tuple[Key, bytes]]]:
    """Where the records of a header begin, and the records."""
    start, _, number = struct.unpack_from("<HII", head, 94)
    return start, list(records(head[start:], number, VLR))


def record(key: Key, data: bytes, about: bytes = b"") -> bytes:
    """A record of variable length."""
    return struct.pack("<2x16sHH32s", *key, len(data), about) + data


def descriptors(whole: bytes) -> dict[str, bytes]:
    """Name -> description of the columns of an extra-bytes record."""
    starts = range(VLR, len(whole) - STRUCT + 1, STRUCT)
    found = (whole[at : at + STRUCT] for at in starts)
    return {raw[4:36].split(b"\0")[0].decode("utf-8", "replace"): raw for raw in found}


def descriptor(name: str, type_: np.dtype) -> bytes:
    """A new description, with room for minimum and maximum."""
    number = TYPES.index(type_.base.str[1:]) + 1 + 10 * (int(np.prod(type_.shape)) - 1)
    return struct.pack("<2xBB32s156x", number, HAS_LOW | HAS_HIGH, name.encode())


def no_data(raw: bytes) -> np.ndarray | None:
    """The values [k] that a description gives for "none", in the type of the column."""
    if not raw[2] or not raw[3] & HAS_NONE:
        return None
    values = np.frombuffer(raw, _wide(raw), 3, NONE_AT)[: (raw[2] - 1) // 10 + 1]
    with np.errstate(all="ignore"):
        return values.astype(TYPES[(raw[2] - 1) % 10])


def with_range(raw: bytes, ranges: dict[int, tuple[Any, Any]]) -> bytes:
    """A description with minimum and maximum of its values, where it has room for such."""
    new = bytearray(raw)
    if raw[2]:  # 0 is bytes without a type
        for end, (flag, at) in enumerate(((HAS_LOW, LOW_AT), (HAS_HIGH, HIGH_AT))):
            if raw[3] & flag:
                values = [ranges[i][end] if i in ranges else 0 for i in range(3)]
                new[at : at + 24] = np.array(values, _wide(raw)).tobytes()
    return bytes(new)


def _wide(raw: bytes) -> str:
    return f"<{TYPES[(raw[2] - 1) % 10][0]}8"
