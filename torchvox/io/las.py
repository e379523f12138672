# SPDX-License-Identifier: Apache-2.0
"""LAS and LAZ files through laspy; coordinates leave float64 only after a local shift."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from torchvox._errors import CloudFileError, MissingExtraError
from torchvox._extras import require
from torchvox.io.cloud import PointCloud, make_cloud
from torchvox.io.laz import check_laz

if TYPE_CHECKING:
    from pathlib import Path

    import laspy

EXTRA_COLUMNS = ("intensity", "red", "green", "blue", "classification", "return_number")
LINEAR_UNIT_KEY = 3076  # GeoTIFF ProjLinearUnitsGeoKey
LINEAR_UNITS = {9001: "m", 9002: "ft", 9003: "US ft"}


def read_las(path: Path) -> PointCloud:
    """Read a LAS or LAZ file.

    Coordinates are integers times a scale, often millions of units from zero, where float32 would
    round them by centimeters. They are shifted in float64 by an origin that is a whole multiple of
    1200 units less half a scale step, so that no point sits on a voxel face.
    """
    laspy = require("laspy", "to read LAS files")
    if path.suffix.lower() == ".laz":
        require("lazrs", "to read LAZ files")
    _check_sizes(path)
    try:
        # Nothing here needs the extended records, which may be large.
        with laspy.open(path, read_evlrs=False) as reader, path.open("rb") as raw:
            header = reader.header
            _check_header(header, path.stat().st_size)
            if header.are_points_compressed and header.point_count:
                parallel = check_laz(raw, header)
                backends = laspy.LazBackend
                reader.laz_backend = (backends.LazrsParallel if parallel else backends.Lazrs,)
            points = reader.read_points(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            columns = {axis: np.asarray(points[axis], np.float64) for axis in "xyz"}
        held = set(points.point_format.dimension_names)
        columns |= {name: np.asarray(points[name]) for name in EXTRA_COLUMNS if name in held}
        expected, held_points = header.point_count, len(columns["x"])
        if held_points != expected:
            raise ValueError(f"its header promises {expected} points, it holds {held_points}")
        return make_cloud(columns, path, _unit(header), np.asarray(header.scales))
    except (OSError, MissingExtraError):
        raise
    except BaseException as error:  # a damaged file can fail anywhere inside the parser
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # what lazrs raises when it panics is no Exception
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CloudFileError(f"{path} is not a readable LAS file: {reason}") from error


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


def _check_header(header: laspy.LasHeader, size: int) -> None:
    points, width = header.point_count, header.point_format.size
    if not points:
        return
    if not header.are_points_compressed and points * width > size - header.offset_to_point_data:
        raise ValueError(
            f"{size} bytes cannot hold the {points} points that its header promises: it is cut "
            "short or damaged"
        )
    scales, offsets = np.asarray(header.scales), np.asarray(header.offsets)
    if not (np.isfinite(scales).all() and scales.all() and np.isfinite(offsets).all()):
        raise ValueError(f"its scales {scales} and offsets {offsets} give no coordinates")


def _unit(header: laspy.LasHeader) -> str:
    """Unit of the coordinates from the GeoTIFF keys; "units" when the file does not say."""
    for record in header.vlrs:
        for key in getattr(record, "geo_keys", ()):
            if key.id == LINEAR_UNIT_KEY:
                return LINEAR_UNITS.get(key.value_offset, "units")
    return "units"
