# SPDX-License-Identifier: Apache-2.0
"""The bytes of a LAS file before its points: those of the source, except what follows from the
points."""

from __future__ import annotations

import datetime
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvox._util.errors import WrongUseError
from torchvox.io import las_records
from torchvox.io.las_records import EXTRA, LASZIP, STRUCT, VLR, WKT, LasSource, head_records, record
from torchvox.io.table import same

if TYPE_CHECKING:
    import laspy

    from torchvox.io.las_records import Key
    from torchvox.io.table import PointTable

LEGACY = 2**32 - 1  # points that versions before 1.4 can count
WAVE_DATA = (b"LASF_Spec", 65535)
MOST = 65535  # bytes of a record


@dataclass
class Seen:
    """Statistics of the written points, for the header.

    steps: lowest and highest coordinates [2, 3] int64, in steps of the lattice.
    returns: number of points by return number [16]; number 0 is not written.
    times: latest and earliest GPS time.
    ranges: of an extra column's values, by their place: lowest and highest.
    """

    count: int = 0
    steps: np.ndarray = field(default_factory=lambda: np.zeros((2, 3), np.int64))
    returns: np.ndarray = field(default_factory=lambda: np.zeros(16, np.int64))
    times: tuple[float, float] | None = None
    ranges: dict[str, dict[int, tuple[Any, Any]]] = field(default_factory=dict)


class HeaderBytes:
    """Header, records and the user's bytes of a file to write; their size does not depend on the
    points.

    described: name -> description of each extra column, for the record of extra bytes.
    laszip: data of the record of a compressed file, else b"".
    no_waves: the point format does not have the waveforms of the source.
    """

    def __init__(
        self, schema: PointTable, format_: laspy.PointFormat, no_waves: bool, laszip: bytes
    ) -> None:
        from torchvox import __version__

        source = schema.source if isinstance(schema.source, LasSource) else None
        self._format, self._no_waves, self._compressed = format_, no_waves, bool(laszip)
        self._user = b""
        own: list[tuple[Key, bytes]] = []
        head = bytearray(375)
        struct.pack_into("<4s20xBB", head, 0, b"LASF", 1, 4)
        if source:
            start, own = head_records(source.head)
            head = bytearray(source.head[:start])
            self._user = source.head[start + sum(len(whole) for _, whole in own) :]
        elif schema.crs and "[" in schema.crs and len(schema.crs.encode()) < MOST:
            head[6] |= 16  # the text is WKT
            own = [(WKT, record(WKT, schema.crs.encode() + b"\0"))]
        if no_waves:
            head[6] &= ~6
        software = f"torchvox {__version__}".encode()
        struct.pack_into("<32s32s", head, 26, b"MODIFICATION" if source else b"OTHER", software)
        today = _today()
        struct.pack_into("<HH", head, 90, today.timetuple().tm_yday, today.year)
        self._head = head

        old = next((whole for key, whole in own if key == EXTRA), b"")
        extra = source.extra if source else {}
        names = [name for name in format_.extra_dimension_names if name != las_records.UNDESCRIBED]
        self.described = {name: _description(name, schema, extra.get(name)) for name in names}
        if STRUCT * len(names) > MOST:
            raise WrongUseError(f"LAS describes up to {MOST // STRUCT} columns of its own")
        if names and not old:
            own = [*own, (EXTRA, old)]
        # A record that no column of the points follows stays as it is.
        self._rewritten = bool(names or extra)
        self._old = old or record(EXTRA, b"")
        self._own = [whole or self._old for key, whole in own if not self.dropped(key)]
        if laszip:
            self._own.append(record(LASZIP, laszip, b"http://laszip.org"))

    def dropped(self, key: Key) -> bool:
        """Whether a record no longer applies."""
        waves = key == WAVE_DATA or (key[0] == b"LASF_Spec" and 99 < key[1] < 355)
        return key[0] in (b"copc", LASZIP[0]) or (waves and self._no_waves)

    @property
    def most(self) -> int:
        """The number of points that the version can count."""
        return LEGACY if self._head[25] < 4 else 2**63 - 1

    def written(
        self, seen: Seen, scale: np.ndarray, offset: np.ndarray, late: tuple[int, int, int]
    ) -> bytes:
        """The bytes. late: where the extended records begin, how many, where the waveforms are."""
        head, minor = bytearray(self._head), self._head[25]
        kept = [whole for whole in self._records(seen) if whole]
        rest = b"".join((*kept, self._user))
        struct.pack_into("<HII", head, 94, len(head), len(head) + len(rest), len(kept))
        id_ = self._format.id
        struct.pack_into("<BH", head, 104, id_ | self._compressed << 7, self._format.size)
        legacy = seen.count <= LEGACY and (minor < 4 or id_ < 6)
        counts = [seen.count, *seen.returns[1:].tolist()]
        struct.pack_into("<6I", head, 107, *(counts[:6] if legacy else [0] * 6))
        struct.pack_into("<6d", head, 131, *scale, *offset)
        box = seen.steps * scale + offset if seen.count else np.zeros((2, 3))
        box = np.stack([box.max(axis=0), box.min(axis=0)])  # a scale may be negative
        struct.pack_into("<6d", head, 179, *box.T.ravel())
        at, extended, waves = late
        if minor >= 3 and (waves or self._no_waves):
            struct.pack_into("<Q", head, 227, waves)
        if minor >= 4:
            struct.pack_into("<QIQ15Q", head, 235, at if extended else 0, extended, *counts)
        if minor >= 5:
            struct.pack_into("<dd", head, 375, *(seen.times or (0, 0)))
        return bytes(head) + rest

    def _records(self, seen: Seen) -> list[bytes]:
        described = self.described.items()
        new = [las_records.with_range(raw, seen.ranges.get(name, {})) for name, raw in described]
        size = struct.pack("<H", STRUCT * len(new))
        extra = b"".join((self._old[:20], size, self._old[22:VLR], *new)) if new else b""
        return [extra if self._rewritten and whole is self._old else whole for whole in self._own]


def _description(name: str, schema: PointTable, old: bytes | None) -> bytes:
    """The description of a column: that of the source, if type and steps are the same."""
    type_, steps = schema.columns[name], schema.steps.get(name)
    if old and las_records.column_type(old) == type_ and same(las_records.column_steps(old), steps):
        return old
    return las_records.descriptor(name, type_, steps)


def _today() -> datetime.date:
    """The date in UTC, that of SOURCE_DATE_EPOCH if it is set."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        now = datetime.datetime.now(datetime.timezone.utc).timestamp() if not epoch else int(epoch)
        return datetime.datetime.fromtimestamp(now, datetime.timezone.utc).date()
    except (ValueError, OverflowError, OSError):
        raise WrongUseError(f"SOURCE_DATE_EPOCH must be seconds since 1970, got {epoch}") from None
