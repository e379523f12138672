# SPDX-License-Identifier: Apache-2.0
"""PCD files (ascii, binary, binary_compressed) through pypcd4."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchvox._errors import CloudFileError
from torchvox._extras import require
from torchvox.io.cloud import PointCloud, make_cloud

if TYPE_CHECKING:
    from pathlib import Path

HEADER_LINES, LINE_BYTES = 10, 1 << 18  # so many lines at most, as pypcd4 has it
MOST_VALUES = 1 << 16  # of a point; pypcd4 makes a name for each
LZF_EXPANSION = 88  # three bytes stand for 264 at most


def read_pcd(path: Path) -> PointCloud:
    """Read a PCD file; a packed `rgb` field becomes the columns red, green, blue (0-255)."""
    pypcd4 = require("pypcd4", "to read PCD files")
    try:
        with path.open("rb") as raw:
            _check_header(pypcd4.MetaData, raw, path.stat().st_size)
            raw.seek(0)
            file = pypcd4.PointCloud.from_fileobj(raw)
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CloudFileError(f"{path} is not a readable PCD file: {reason}") from error
    data, expected = np.atleast_1d(file.pc_data), file.metadata.points
    if len(data) != expected:
        raise CloudFileError(
            f"{path} is cut short: its header promises {expected} points, it holds {len(data)}"
        )
    names = [name for name in data.dtype.names or () if name.isidentifier()]  # others are padding
    if not {"x", "y", "z"} <= set(names):
        raise CloudFileError(f"{path} has no x, y, z fields (it has {', '.join(names) or 'none'})")
    columns: dict[str, np.ndarray] = {}
    for name in names:
        if name in ("rgb", "rgba") and data[name].dtype.itemsize == 4:
            columns.update(_unpack_rgb(data[name]))
        else:
            columns[name] = data[name]
    return make_cloud(columns, path)


def _check_header(metadata: Any, file: BinaryIO, size: int) -> None:
    """Refuse a header that claims more than its bytes can hold: pypcd4 would make room for it."""
    lines: list[str] = []
    while len(lines) < HEADER_LINES and not (lines and lines[-1].startswith("DATA")):
        line = file.readline(LINE_BYTES)
        if not line or len(line) == LINE_BYTES:
            raise ValueError("its header does not end")
        text = line.decode().strip()
        if text and not text.startswith("#"):
            lines.append(text)
    header = metadata.parse_header(lines)
    left, values = size - file.tell(), sum(header.count)
    row = sum(item * count for item, count in zip(header.size, header.count, strict=True))
    need = row * header.points
    if header.data.value == "ascii":
        need, left = 2 * values * header.points, left + 1  # a digit and a blank each
    elif header.data.value != "binary" and header.points:
        packed, whole = struct.unpack("<II", file.read(8))
        if packed > left - 8 or whole > LZF_EXPANSION * packed:
            raise ValueError(f"{left} bytes cannot hold the compressed {whole} it promises")
        left = whole
    if values > MOST_VALUES or need > left:
        raise ValueError(
            f"{left} bytes cannot hold the {header.points} points of {values} values that its "
            "header promises: it is cut short or damaged"
        )


def _unpack_rgb(packed: np.ndarray) -> dict[str, np.ndarray]:
    """PCL packs 0x00RRGGBB into the bits of a float32 or uint32."""
    bits = np.ascontiguousarray(packed).view(np.uint32)
    return {"red": bits >> 16 & 255, "green": bits >> 8 & 255, "blue": bits & 255}
