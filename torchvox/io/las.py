# SPDX-License-Identifier: Apache-2.0
"""LAS and LAZ files through laspy; coordinates leave float64 only after a local shift."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from torchvox._errors import CloudFileError
from torchvox._extras import require
from torchvox.io.cloud import PointCloud, make_cloud

if TYPE_CHECKING:
    from pathlib import Path

EXTRA_COLUMNS = ("intensity", "red", "green", "blue", "classification", "return_number")
LINEAR_UNIT_KEY = 3076  # GeoTIFF ProjLinearUnitsGeoKey
LINEAR_UNITS = {9001: "m", 9002: "ft", 9003: "US ft"}


def read_las(path: Path) -> PointCloud:
    """Read a LAS or LAZ file.

    Coordinates are integers times a scale, often millions of units from zero, where float32 would
    round them by centimetres. They are shifted in float64 by an origin that is a whole multiple of
    1200 units less half a scale step, so that no point sits on a voxel face.
    """
    laspy = require("laspy", "to read LAS files")
    if path.suffix.lower() == ".laz":
        require("lazrs", "to read LAZ files")
    _check_sizes(path)
    try:
        file = laspy.read(path)
        with np.errstate(over="ignore", invalid="ignore"):
            columns = {axis: np.asarray(file[axis], np.float64) for axis in "xyz"}
        held = set(file.point_format.dimension_names)
        columns |= {name: np.asarray(file[name]) for name in EXTRA_COLUMNS if name in held}
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CloudFileError(f"{path} is not a readable LAS file: {reason}") from error
    expected, held_points = file.header.point_count, len(columns["x"])
    if held_points != expected:
        raise CloudFileError(
            f"{path} is cut short: its header promises {expected} points, it holds {held_points}"
        )
    return make_cloud(columns, path, _unit(file.header), np.asarray(file.header.scales))


def _check_sizes(path: Path) -> None:
    """Refuse a header whose own numbers do not fit the file: laspy would loop over them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(375).ljust(375, b"\0")
    if header[:4] != b"LASF":
        raise CloudFileError(f"{path} is not a LAS file: it does not begin with LASF")
    header_size, data_start, records = struct.unpack_from("<HII", header, 94)
    late_records = struct.unpack_from("<I", header, 243)[0] if header[25] >= 4 else 0
    if data_start > size or header_size + 54 * records > data_start or 60 * late_records > size:
        raise CloudFileError(f"{path} is cut short or damaged: its header does not fit its size")


def _unit(header) -> str:
    """Unit of the coordinates from the GeoTIFF keys; "units" when the file does not say."""
    for record in header.vlrs:
        for key in getattr(record, "geo_keys", ()):
            if key.id == LINEAR_UNIT_KEY:
                return LINEAR_UNITS.get(key.value_offset, "units")
    return "units"
