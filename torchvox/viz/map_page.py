# SPDX-License-Identifier: Apache-2.0
"""One HTML file that shows the voxels of an occupancy map, offline; it needs no extra."""

from __future__ import annotations

import base64
import html
import json
import zlib
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import TorchvoxError
from torchvox.viz.viewer import filled

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_VOXELS = 1_000_000


def map_page(
    indices: np.ndarray,
    logodds: np.ndarray,
    voxel_size: float,
    origin: Sequence[float],
    caption: str,
    *,
    kind: str = "occupied",
    path: np.ndarray | None = None,
) -> bytes:
    """The page, in UTF-8. Above a million voxels it shows every k-th one and says so.

    indices: [n, 3] int, x, y, z of voxels. logodds: [n] float32, whole units of 1/1024.
    voxel_size, origin: of the map, in meters. caption: text above. kind: what the voxels are.
    path: [S, 3] float64, places of the sensor in the map's frame, in turn.
    Raises TorchvoxError without a voxel.
    """
    total = len(indices)
    if total == 0:
        raise TorchvoxError(f"there is no {kind} voxel to show")
    stride = -(-total // MAX_VOXELS)
    places = indices[::stride].astype(np.int64)
    units = np.rint(logodds[::stride] * 1024).astype("<i2")
    first, last = places.min(axis=0), places.max(axis=0)
    places -= first
    middle = (last - first + 1) / 2
    center = np.array(origin) + (first + middle) * voxel_size
    track = np.zeros((0, 3)) if path is None else path - center
    heights = np.percentile(places[:, 2], (1, 99))
    words = f"{total:,} {kind} voxels of {voxel_size:g} m"
    if stride > 1:
        words += f", of which the page has one in {stride}: {len(places):,}"
    facts = {
        "size": voxel_size,
        "origin": list(origin),
        "first": first.tolist(),
        "middle": middle.tolist(),
        "low": origin[2] + int(first[2]) * voxel_size,
        "top": int(last[2] - first[2]),
        "span": heights.tolist(),
        "units": [int(units.min()), int(units.max())],
        "extent": float((last - first + 1).max() * voxel_size),
        "words": words,
    }
    return filled(
        "map.html",
        caption=html.escape(caption),
        facts=json.dumps(facts),
        indices=_packed(places.astype("<i4")),
        units=_packed(units),
        path=_packed(track.astype("<f4")),
    )


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(array.tobytes())).decode()
