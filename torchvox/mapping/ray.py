# SPDX-License-Identifier: Apache-2.0
"""Maps in parts, as stages of Ray Data or of a plain `map`: every worker reads all scans and maps
its own part of space. The merged parts equal the map of the whole, bit for bit.

    rows = part_rows((-400, -400, -20, 400, 400, 60), (8, 8, 1), voxel_size=0.1)
    stage = MapPart("parts", paths, poses, {"voxel_size": 0.1}, {"max_range": 80.0}, "kitti")
    whole = merge_parts(ray.data.from_items(rows).map(stage).take_all())

A stage holds no torch object and pickles before CUDA starts; give GPU stages `num_gpus`.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from torchvox._util.errors import TorchvoxError, WrongUseError, expect, short
from torchvox.filter.stages import Row, digest_of, raise_row_errors, try_row
from torchvox.io import open_points
from torchvox.mapping.map import OccupancyMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EDGE = 8  # voxels of a region
REACH = 1 << 20  # regions of a map, from its origin to either side


def part_rows(
    box: Sequence[float],
    parts: Sequence[int],
    voxel_size: float,
    origin: Sequence[float] = (0.0, 0.0, 0.0),
) -> list[Row]:
    """One row per part: its number, the number of parts, and the point_cloud_range for
    `OccupancyMap.integrate`.

    box: x0, y0, z0, x1, y1, z1 in meters, where most of the map lies. It is cut on faces of regions
        into as many parts on each axis as parts says; the outer ones reach to the end of the map,
        so that nothing lies outside of all. voxel_size, origin: of the map.
    Raises WrongUseError for more parts on an axis than there are regions.
    """
    good = len(box) == 6 and len(parts) == len(origin) == 3 and voxel_size > 0
    rule = "part_rows: box, parts and origin must be 6, 3 and 3 numbers, voxel_size above 0"
    expect(good, rule, (box, parts, origin, voxel_size))
    cells = []
    for axis, count in enumerate(parts):
        low, high = ((box[i] - origin[axis]) / (EDGE * voxel_size) for i in (axis, axis + 3))
        first, length = int(np.floor(low)), int(np.ceil(high) - np.floor(low))
        if not 1 <= count <= length:
            raise WrongUseError(
                f"{'xyz'[axis]} of the box must be cut into 1 to {length} parts, as many as it has "
                f"regions of {EDGE} voxels, got {count}"
            )
        cuts = [first + length * i // count for i in range(1, count)]
        faces = EDGE * np.array([-REACH, *cuts, REACH])
        # Half a voxel inside the faces: no rounding adds the voxel beside them.
        ends = np.stack([faces[:-1] + 0.5, faces[1:] - 0.5], axis=1)
        cells.append(origin[axis] + voxel_size * ends)
    boxes = [np.transpose(cell).ravel().tolist() for cell in product(*cells)]
    count = len(boxes)
    return [{"part": i, "parts": count, "point_cloud_range": b} for i, b in enumerate(boxes)]


class MapPart:
    """A row's part of the map of all scans -> a map file in `folder`.

    scans: files of points, each in the frame of the sensor. poses: [S, 3, 4] or [S, 4, 4] float64,
    as of `read_poses`. options: of `OccupancyMap`. rays: options of its `integrate`. layout:
    columns of files that do not name them.

    The row gets `output`, or `error`: a sentence. The name of the file depends on the part, the
    files of the scans and all options; a file that exists is not written again.
    Raises WrongUseError for options that need the whole map.
    """

    def __init__(
        self,
        folder: str | Path,
        scans: Iterable[str | Path],
        poses: npt.ArrayLike,
        options: dict[str, Any],
        rays: dict[str, Any] | None = None,
        layout: str | None = None,
    ) -> None:
        self.folder, self.scans = str(folder), [str(path) for path in scans]
        self.poses = np.asarray(poses, np.float64)
        self.options, self.rays, self.layout = options, rays or {}, layout
        if len(self.poses) != len(self.scans):
            raise WrongUseError(f"{len(self.scans)} scans need a pose each, got {len(self.poses)}")
        if "stop_at_occupied" in self.rays.get("flags", ()):
            raise WrongUseError("a ray that stops at occupied voxels needs the whole map: no parts")
        if "point_cloud_range" in self.rays:
            raise WrongUseError("rays have the point_cloud_range of the part: give none")

    def __call__(self, row: Row) -> Row:
        def work() -> Row:
            box = [float(bound) for bound in row["point_cloud_range"]]
            target = Path(self.folder) / f"{row['part']}.{self._digest(box)}.npz"
            if not target.exists():
                self._map(box).save(target)
            return {"output": str(target)}

        return try_row(row, work, {"output": ""})

    def _map(self, box: list[float]) -> OccupancyMap:
        part, rays = OccupancyMap(**self.options), {**self.rays, "point_cloud_range": box}
        for path, pose in zip(self.scans, self.poses, strict=True):
            points = torch.from_numpy(open_points(path, self.layout).coordinates())
            part.integrate(points.to(part.status.device), pose=torch.from_numpy(pose), **rays)
        return part

    def _digest(self, box: list[float]) -> str:
        stats = [Path(path).stat() for path in self.scans]
        files = [
            (path, s.st_size, s.st_mtime_ns) for path, s in zip(self.scans, stats, strict=True)
        ]
        poses = self.poses.tolist()
        return digest_of(files, poses, self.options, self.rays, self.layout, box)


def merge_parts(rows: Iterable[Row], **options: Any) -> OccupancyMap:
    """The map of the rows of `MapPart`, which is that of all scans at once, in any order.

    options: of `OccupancyMap.load`, and its store.
    Raises TorchvoxError when a row has an error, and unless each part has one row.
    """
    rows = raise_row_errors(rows)
    parts = sorted(int(row["part"]) for row in rows)
    count = int(rows[0].get("parts", len(rows))) if rows else 0
    if parts != list(range(count)):
        raise TorchvoxError(f"each of {count} parts must have one row, got those of {short(parts)}")
    if not rows:
        raise WrongUseError("there is no part to merge")
    whole = OccupancyMap.load(rows[0]["output"], **options)
    for row in rows[1:]:
        whole.merge(OccupancyMap.load(row["output"], device="cpu"))
    return whole
