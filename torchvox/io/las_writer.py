# SPDX-License-Identifier: Apache-2.0
"""The writer of LAS and LAZ files, in chunks; las_header makes the bytes before the points."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._util.errors import CloudFileError, short
from torchvox._util.extras import require
from torchvox.io.las import WAVES
from torchvox.io.las_header import WAVE_DATA, HeaderBytes, Seen
from torchvox.io.las_records import ANGLE_STEPS, EVLR, TYPES, LasSource, no_data, records
from torchvox.io.table import PointReader, PointTable, PointWriter, same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import laspy

WITHOUT_WAVES = {4: 1, 5: 3, 9: 6, 10: 8}
STEP = 0.001  # of coordinates that have none


class LasWriter(PointWriter):
    """A writer of a LAS file, or of a LAZ file by its suffix.

    like: the source of columns, lattice and header.
    scale, offset: [3] the lattice, instead of that of `like`.
    """

    def __init__(
        self,
        file: BinaryIO,
        like: PointTable | PointReader,
        path: Path,
        scale: np.ndarray | None = None,
        offset: np.ndarray | None = None,
    ) -> None:
        self._laspy = require("laspy", "to write LAS files")
        super().__init__(file, like, path)
        self._compressor: Any = None
        lazrs: Any = path.suffix.lower() == ".laz" and require("lazrs", "to write LAZ files")
        source = self.schema.source
        self._source = source if isinstance(source, LasSource) else None
        self._lattice(like, scale, offset)
        self._point_format()
        if lazrs and self._format.id in (4, 5):
            waves = f"the waveforms of point format {self._format.id} that lazrs writes"
            raise self.error(f"LASzip does not read {waves}: write .las, or drop the waveforms")
        form = self._format.id, self._format.num_extra_bytes
        vlr = lazrs and lazrs.LazVlr.new_for_compression(*form)
        self._seen = Seen()
        self._channels: set[int] = set()
        laszip = bytes(vlr.record_data()) if vlr else b""
        self._header = HeaderBytes(self.schema, self._format, self._no_waves, laszip)
        self._write_header((0, 0, 0))
        if vlr:
            self._compressor = lazrs.ParLasZipCompressor(file, vlr)

    def write_points(self, table: PointTable) -> None:
        seen = self._seen
        if seen.count + len(table) > self._header.most:
            raise self.error(f"its LAS version holds {self._header.most} points")
        points = self._laspy.PackedPointRecord.zeros(len(table), self._format)
        stored, xyz = points.array, self._on_lattice(table)
        for i, axis in enumerate("XYZ"):
            stored[axis] = xyz[:, i]
        names, extra = set(self._format.dimension_names), set(self._format.extra_dimension_names)
        for name in names & table.attributes.keys():  # others are dropped waveforms
            if name in extra:
                self._put(stored, name, table.attributes[name])
            else:
                self._put(points, name, self._standard(table, name))
        if self._compressor is not None and self._format.id > 8:
            self._channels |= set(np.unique(np.asarray(points["scanner_channel"])).tolist())
            if len(self._channels) > 1:
                rule = "lazrs writes waveforms of several scanner channels wrong"
                raise self.error(f"{rule}: write .las, or drop the waveforms")
        steps = np.stack([xyz.min(axis=0), xyz.max(axis=0)]).astype(np.int64)
        if seen.count:
            steps[0] = np.minimum(steps[0], seen.steps[0])
            steps[1] = np.maximum(steps[1], seen.steps[1])
        seen.steps = steps
        seen.returns = seen.returns + np.bincount(np.asarray(points["return_number"]), minlength=16)
        time = stored["gps_time"] if "gps_time" in names else np.zeros(0)
        if len(time := time[np.isfinite(time)]):
            latest, earliest = seen.times or (-np.inf, np.inf)
            seen.times = max(latest, float(time.max())), min(earliest, float(time.min()))
        seen.count += len(table)
        if self._compressor is None:
            self.file.write(stored.tobytes())
        else:
            self._packed(self._compressor.compress_many, stored.view(np.uint8))

    def close(self) -> None:
        if self._compressor is not None:
            self._packed(self._compressor.done)
        self.file.seek(0, os.SEEK_END)
        at, number, waves = self.file.tell(), 0, 0
        if self._source:
            for key, whole in records(self._source.late, self._source.late_number, EVLR):
                if not self._header.dropped(key):
                    waves = self.file.tell() if key == WAVE_DATA else waves
                    self.file.write(whole.data)
                    number += 1
        self._write_header((at, number, waves))

    def _write_header(self, late: tuple[int, int, int]) -> None:
        self.file.seek(0)
        self.file.write(self._header.written(self._seen, self.scale, self.offset, late))

    def _packed(self, step: Callable[..., object], *values: object) -> None:
        try:
            step(*values)
        except Exception as error:  # lazrs has its own type of error for a full disk
            raise CloudFileError(f"{self.path} is not written: {short(error)}") from error

    def _standard(self, table: PointTable, name: str) -> np.ndarray:
        """A column of the point format in its stored form."""
        steps = ANGLE_STEPS if name == "scan_angle" else None
        if same(table.steps.get(name), steps):
            return table.attributes[name]
        values = table.values(name)
        if not steps:
            return values
        stored = np.rint(values / steps[0][0])
        if not (np.abs(stored) < 2**15).all():
            got = f"{values.min()} to {values.max()}: convert or drop it"
            raise self.error(f"scan_angle must be degrees from -180 to 180, got {got}")
        return stored

    def _put(
        self, record: np.ndarray | laspy.PackedPointRecord, name: str, values: np.ndarray
    ) -> None:
        try:
            with np.errstate(invalid="ignore"):
                try:
                    record[name][:] = values
                except TypeError:  # fields of a few bits, which take only integers
                    record[name][:] = values.astype(np.int64)
            stored = np.asarray(record[name])
            good = np.array_equal(stored, values, equal_nan=values.dtype.kind == "f")
        except OverflowError:  # more bits than a flag has
            good = False
        if not good:
            low, high = values.min(), values.max()
            share = f" (0 to 1: torchvox convert --policy {short(name)}=scale)"
            advice = f"convert or drop it{share * bool(0 <= low <= high <= 1)}"
            what = f"{short(name)}, {values.dtype} from {low} to {high}"
            raise self.error(f"LAS has no room for {what}: {advice}")
        if name not in self._header.described:
            return
        none = no_data(self._header.described[name])
        ranges = self._seen.ranges.setdefault(name, {})
        for i, column in enumerate(values.reshape(len(values), -1).T):
            column = column[column == column]  # NaN is no value
            if none is not None:
                column = column[column != none[i]]
            if len(column):
                low, high = column.min().item(), column.max().item()
                before = ranges.get(i, (low, high))
                ranges[i] = min(low, before[0]), max(high, before[1])

    def _lattice(
        self, like: PointTable | PointReader, scale: np.ndarray | None, offset: np.ndarray | None
    ) -> None:
        scale = self.schema.scale if scale is None else scale
        offset = self.schema.offset if offset is None else offset
        if offset is None:
            offset = np.zeros(3) if like.box is None else np.floor(like.box[0])
        self.scale = np.broadcast_to(STEP if scale is None else scale, 3).astype(np.float64)
        self.offset = np.broadcast_to(offset, 3).astype(np.float64)
        if not (np.isfinite([self.scale, self.offset]).all() and self.scale.all()):
            got = f"{self.scale.tolist()} and {self.offset.tolist()}"
            raise self.error(f"scales must be finite and not 0, offsets finite, got {got}")

    def _on_lattice(self, table: PointTable) -> np.ndarray:
        """The coordinates in steps of the lattice, [N, 3] int32."""
        pairs = (table.scale, self.scale), (table.offset, self.offset)
        if all(other is not None and np.array_equal(other, own) for other, own in pairs):
            return table.xyz
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.rint((table.world() - self.offset) / self.scale)
        if not (np.abs(steps) < 2**31).all():
            lattice = f"the scale {self.scale.tolist()} and the offset {self.offset.tolist()}"
            raise self.error(f"coordinates are not finite or need more than 32 bits at {lattice}")
        return steps.astype(np.int32)

    def _point_format(self) -> None:
        """Set the point format: that of the source, else the smallest of version 1.4 that holds the
        columns."""
        columns, source = self.schema.columns, self._source
        number = 8 if "nir" in columns else 7 if "red" in columns else 6
        if source:
            number = source.point_format.id
            if not columns.keys() >= set(WAVES):
                number = WITHOUT_WAVES.get(number, number)
        self._no_waves = source is not None and number != source.point_format.id
        format_ = self._format = self._laspy.PointFormat(number)
        standard = {*format_.dimension_names, *(WAVES if self._no_waves else ())}
        extra = {d.name: d for d in source.point_format.extra_dimensions} if source else {}
        for name, type_ in columns.items():
            if name in standard:
                continue
            if name in extra and extra[name].dtype == type_:
                format_.dimensions.append(extra[name])
                continue
            fits = type_.base.str[1:] in TYPES and (type_.shape or (1,))[0] in (1, 2, 3)
            if not fits or len(name.encode()) > 32 or name in ("X", "Y", "Z"):
                rule = f"1 to 3 values of {', '.join(TYPES)} with names of up to 32 bytes"
                raise self.error(f"LAS holds columns of {rule}, not {short(name)}, {type_}")
            format_.add_extra_dimension(self._laspy.ExtraBytesParams(name, type_))
        # Bytes without a description come after the described columns.
        format_.dimensions.sort(key=lambda d: d.name == "ExtraBytes" and not d.is_standard)
