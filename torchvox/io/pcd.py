# SPDX-License-Identifier: Apache-2.0
"""PCD files (ascii, binary, binary_compressed) through pypcd4, whole in memory."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._errors import CloudFileError, WrongUseError, short
from torchvox._extras import require
from torchvox.io.table import COLORS, PointTable, TableReader, WholeWriter, flat, named, stacked

if TYPE_CHECKING:
    from pathlib import Path

NEEDED = ("FIELDS", "SIZE", "TYPE", "WIDTH", "HEIGHT", "POINTS")  # of a header
HEADER_LINES, LINE_BYTES = 10, 1 << 18  # so many lines at most, as pypcd4 has it
MOST_VALUES = 1 << 16  # of a point; pypcd4 makes a name for each
LZF_EXPANSION = 88  # three bytes stand for 264 at most
PACKED = {"rgb": COLORS, "rgba": (*COLORS, "alpha")}  # 0xAARRGGBB in the bits of 4 bytes
PADDING = "#$%&~~"  # pypcd4 gives the fields named _ such names
TYPES = ["f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]


def open_pcd(path: Path) -> TableReader:
    """Open a PCD file; a packed `rgb` becomes the columns red, green, blue (0-255).

    A field of COUNT k is one column [N, k]; padding is left out.
    """
    pypcd4 = require("pypcd4", "to read PCD files")
    try:
        with path.open("rb") as raw:
            header = _check_header(pypcd4.MetaData, raw, path.stat().st_size)
            body = raw.read()
        if header.data.value == "ascii":  # one blank between values
            lines = [line.split() for line in body.splitlines()]
            body = b"\n".join(b" ".join(line) for line in lines if line)
        text = header.compose_header().encode()
        file = pypcd4.PointCloud.from_fileobj(io.BytesIO(text + body))
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CloudFileError(f"{path} is not a readable PCD file: {reason}") from error
    data, expected = np.atleast_1d(file.pc_data), header.points
    if len(data) != expected:
        raise CloudFileError(
            f"{path} is cut short: its header promises {expected} points, it holds {len(data)}"
        )
    columns: dict[str, np.ndarray] = {}
    at, names = 0, data.dtype.names or ()
    for name, count in zip(header.fields, header.count, strict=True):
        values = [data[field] for field in names[at : at + count]]
        at += count
        if name.startswith(PADDING):
            continue
        if name in PACKED and count == 1 and values[0].dtype.itemsize == 4:
            bits = np.ascontiguousarray(values[0]).view(np.uint32)
            for channel, shift in zip(PACKED[name], (16, 8, 0, 24), strict=False):
                columns[channel] = (bits >> shift).astype(np.uint8)
        else:
            columns[name] = values[0] if count == 1 else np.stack(values, axis=1)
    if not {"x", "y", "z"} <= columns.keys() or any(columns[axis].ndim > 1 for axis in "xyz"):
        held = ", ".join(columns) or "none"
        raise CloudFileError(f"{path} has no x, y, z fields (it has {short(held)})")
    xyz = stacked(columns)
    attributes = {name: a for name, a in columns.items() if name not in ("x", "y", "z")}
    reader = TableReader(PointTable(xyz, attributes, source=header, path=path))
    reader.plain = tuple(n for n in attributes if n.isidentifier() and n != "alpha")
    return reader


def _check_header(metadata: Any, file: BinaryIO, size: int) -> Any:
    """pypcd4's header, in its own spelling, with the file behind it.

    Raises ValueError when it claims more than its bytes can hold: pypcd4 would make room for it.
    """
    lines: list[str] = []
    while len(lines) < HEADER_LINES and not (lines and lines[-1].startswith("DATA")):
        line = file.readline(LINE_BYTES)
        if not line or len(line) == LINE_BYTES:
            raise ValueError("its header does not end")
        text = " ".join(line.decode().split())
        if text and not text.startswith("#"):
            lines.append(text)
    fields = next((line.split()[1:] for line in lines if line.startswith("FIELDS")), [])
    lines = [line if not line.startswith("VERSION") else "VERSION 0.7" for line in lines]
    if not any(line.startswith("COUNT") for line in lines):
        lines.append("COUNT" + " 1" * len(fields))
    found = {line.split()[0] for line in lines}
    if missing := [name for name in NEEDED if name not in found]:
        raise ValueError(f"its header has no {', '.join(missing)}")
    header = metadata.parse_header(lines)
    if len({len(header.fields), len(header.size), len(header.type), len(header.count)}) != 1:
        raise ValueError("its FIELDS, SIZE, TYPE and COUNT are not as many")
    left, values = size - file.tell(), sum(header.count)
    row = sum(item * count for item, count in zip(header.size, header.count, strict=True))
    need = row * header.points
    if header.data.value == "ascii":
        need, left = 2 * values * header.points, left + 1  # a digit and a blank each
    elif header.data.value != "binary" and header.points:
        at = file.tell()
        packed, whole = struct.unpack("<II", file.read(8))
        file.seek(at)
        if packed > left - 8 or whole > LZF_EXPANSION * packed:
            raise ValueError(f"{left} bytes cannot hold the compressed {whole} it promises")
        left = whole
    if values > MOST_VALUES or need > left:
        raise ValueError(
            f"{left} bytes cannot hold the {header.points} points of {values} values that its "
            "header promises: it is cut short or damaged"
        )
    if header.width * header.height != header.points:
        raise ValueError(
            f"its {header.width} x {header.height} places are not its {header.points} points"
        )
    return header


class PcdWriter(WholeWriter):
    """A binary PCD file of height 1; colors of 8 bits are packed as `rgb`, as PCL has them."""

    def save(self, table: PointTable) -> None:
        pypcd4: Any = require("pypcd4", "to write PCD files")
        columns: dict[str, np.ndarray] = {}
        own = named(table)
        packed = PACKED["rgba" if "alpha" in own else "rgb"]
        pack = all(name in own and own[name].dtype == np.uint8 for name in packed)
        for name, values in own.items():
            if not pack or name not in packed:
                columns[name] = values
            elif name == packed[0]:
                shifts = zip(packed, (16, 8, 0, 24), strict=False)
                bits = sum(own[part].astype(np.uint32) << shift for part, shift in shifts)
                columns["rgba" if len(packed) > 3 else "rgb"] = np.asarray(bits, np.uint32)
        for name, values in columns.items():
            if values.dtype.str[1:] not in TYPES or not name.isidentifier():
                raise WrongUseError(f"{self.path}: PCD has no field {short(name)}, {values.dtype}")
        source = self.schema.source
        viewpoint = source.viewpoint if hasattr(source, "viewpoint") else None
        header = pypcd4.MetaData(
            fields=tuple(columns),
            size=tuple(values.dtype.itemsize for values in columns.values()),
            type=tuple(values.dtype.kind.upper() for values in columns.values()),
            count=tuple(int(np.prod(values.shape[1:])) for values in columns.values()),
            points=len(table),
            width=len(table),
            data="binary",
            **({"viewpoint": viewpoint} if viewpoint else {}),
        )
        rows = np.zeros(len(table), header.build_dtype())
        parts = flat(columns).values()
        for field, part in zip(rows.dtype.names or (), parts, strict=True):
            rows[field] = part
        pypcd4.PointCloud(header, rows).save(self.file, pypcd4.Encoding.BINARY)
