# SPDX-License-Identifier: Apache-2.0
"""PCD files (ascii, binary, binary_compressed) through pypcd4."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torchvox._errors import CloudFileError
from torchvox._extras import require
from torchvox.io.cloud import PointCloud, make_cloud

if TYPE_CHECKING:
    from pathlib import Path


def read_pcd(path: Path) -> PointCloud:
    """Read a PCD file; a packed `rgb` field becomes the columns red, green, blue (0-255)."""
    pypcd4 = require("pypcd4", "to read PCD files")
    try:
        file = pypcd4.PointCloud.from_path(path)
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


def _unpack_rgb(packed: np.ndarray) -> dict[str, np.ndarray]:
    """PCL packs 0x00RRGGBB into the bits of a float32 or uint32."""
    bits = np.ascontiguousarray(packed).view(np.uint32)
    return {"red": bits >> 16 & 255, "green": bits >> 8 & 255, "blue": bits & 255}
