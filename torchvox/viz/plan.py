# SPDX-License-Identifier: Apache-2.0
"""A map from above as a gray picture for navigation, in the convention of ROS."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torchvox._util.errors import TorchvoxError
from torchvox.io.writers import write_text, write_whole

if TYPE_CHECKING:
    from pathlib import Path

FREE, UNKNOWN, OCCUPIED = 254, 205, 0  # of ROS's map_server
MOST_PIXELS = 1 << 28


class PlanImage(NamedTuple):
    """pixels [H, W] uint8, north up: row 0 at the largest y, column 0 at the smallest x.
    low: [2] int64, the voxel x, y of the pixel at the lower left."""

    pixels: np.ndarray
    low: np.ndarray


def plan_image(indices: np.ndarray, occupied: np.ndarray) -> PlanImage:
    """One pixel per column of voxels: occupied if any voxel is, free if all observed ones are.

    indices: [n, 3] int, x, y, z of the observed voxels. occupied: [n] bool.
    Raises TorchvoxError without voxels, and for more than 2^28 pixels.
    """
    if len(indices) == 0:
        raise TorchvoxError("there is no observed voxel to draw")
    columns = indices[:, :2].astype(np.int64)
    low, high = columns.min(axis=0), columns.max(axis=0)
    width, height = (int(n) for n in high - low + 1)
    if width * height > MOST_PIXELS:
        raise TorchvoxError(f"a picture of {width:,} x {height:,} voxels is too large to draw")
    pixels = np.full((height, width), UNKNOWN, np.uint8)
    row, column = high[1] - columns[:, 1], columns[:, 0] - low[0]
    pixels[row, column] = FREE
    pixels[row[occupied], column[occupied]] = OCCUPIED
    return PlanImage(pixels, low)


def write_gray_png(path: str | Path, pixels: np.ndarray) -> None:
    """Write [H, W] uint8 as a gray .png, atomically; the same pixels give the same bytes."""
    height, width = pixels.shape
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # a row begins with its filter: 0, none

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")
    write_whole(path, lambda file: file.write(b"\x89PNG\r\n\x1a\n" + head + body))


def write_ros_yaml(
    path: str | Path, image: str, resolution: float, corner: tuple[float, float]
) -> None:
    """Write the YAML file that ROS's map_server reads with a picture, atomically.

    image: name of the picture. resolution: meters per pixel. corner: x, y in meters of the lower
    left corner of the picture. The limits keep 205 unknown, which a free_thresh of 0.25 would not.
    """
    x, y = corner
    quoted = "'" + image.replace("'", "''") + "'" if image.isprintable() else json.dumps(image)
    write_text(
        path,
        f"image: {quoted}\nmode: trinary\nresolution: {resolution!r}\n"
        f"origin: [{x!r}, {y!r}, 0.0]\nnegate: 0\noccupied_thresh: 0.65\nfree_thresh: 0.196\n",
    )
