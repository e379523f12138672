# SPDX-License-Identifier: Apache-2.0
"""The page of an occupancy map."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import TorchvoxError
from torchvox.viz.page import Section, page

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
    words = f"{total:,} {kind} voxels of {voxel_size:g} m"
    if stride > 1:
        words += f", of which the page has one in {stride}: {len(places):,}"
    arrays = {"indices": places.astype("<i4"), "units": units, "path": track.astype("<f4")}
    facts = {
        "size": voxel_size,
        "middle": middle.tolist(),
        "extent": float((last - first + 1).max() * voxel_size),
        "edges": (1.5, 256),
        "origin": list(origin),
        "first": first.tolist(),
        "low": origin[2] + int(first[2]) * voxel_size,
        "top": int(last[2] - first[2]),
        "span": np.percentile(places[:, 2], (1, 99)).tolist(),
        "units": [int(units.min()), int(units.max())],
        "words": words,
    }
    return page(html.escape(caption), [Section("", arrays)], facts)
