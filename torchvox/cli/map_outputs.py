# SPDX-License-Identifier: Apache-2.0
"""What `torchvox map` writes: maps, points, pictures for ROS, pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchvox._util.errors import WrongUseError
from torchvox._util.extras import require
from torchvox.io.writers import write_whole
from torchvox.mapping import MapVoxels, OccupancyMap
from torchvox.mapping.files import MAP_SUFFIXES, VOXEL_SUFFIXES
from torchvox.ops.annotations import Select
from torchvox.viz.map_page import map_page
from torchvox.viz.plan import plan_image, write_gray_png, write_ros_yaml

SUFFIXES = (*MAP_SUFFIXES, *VOXEL_SUFFIXES, ".png", ".html")
Height = tuple[float, ...] | None  # lowest, highest


class MapOutputs:
    """The files of a map. page: also an .html; ros_yaml: also a .yaml for a .png.
    Raises WrongUseError for suffixes that do not fit."""

    def __init__(self, output: Path, page: bool, ros_yaml: bool) -> None:
        suffix = output.suffix.lower()
        if suffix not in SUFFIXES:
            raise WrongUseError(f"{output}: maps are written as {', '.join(SUFFIXES)}")
        if ros_yaml and suffix != ".png":
            raise WrongUseError(f"--ros-yaml needs a .png as --output, got {output}")
        if ros_yaml and output.name.encode(errors="replace").decode() != output.name:
            raise WrongUseError(f"--ros-yaml needs a name in UTF-8, got {output!r}")
        if suffix in (".las", ".laz"):
            require("laspy", "to write LAS files")
        self.targets = [output]
        if page and suffix != ".html":
            self.targets.append(output.with_suffix(".html"))
        self.yaml = output.with_suffix(".yaml") if ros_yaml else None
        self.targets += [self.yaml] if self.yaml else []

    def write(
        self,
        map_: OccupancyMap,
        title: str,
        select: Select,
        height: Height,
        path: np.ndarray | None,
    ) -> None:
        """Write a map to all files. title, path of the sensor: of a page; height: of voxels."""
        for target in self.targets:
            suffix = target.suffix.lower()
            if suffix in MAP_SUFFIXES:
                map_.save(target)
            elif suffix == ".png":
                self._draw(map_, target, height)
            elif suffix in VOXEL_SUFFIXES:
                map_.save_voxels(target, _voxels(map_, select, height))
            elif suffix == ".html":
                indices, logodds = _indices(_voxels(map_, select, height))
                page = map_page(indices, logodds, *map_.grid, title, kind=select, path=path)
                write_whole(target, lambda buffer: buffer.write(page))  # noqa: B023, at once

    def _draw(self, map_: OccupancyMap, target: Path, height: Height) -> None:
        indices, logodds = _indices(_voxels(map_, "observed", height))
        image = plan_image(indices, logodds.astype(np.float64) >= map_.threshold)
        write_gray_png(target, image.pixels)
        if self.yaml is not None:
            x, y = (map_.origin[i] + int(image.low[i]) * map_.voxel_size for i in range(2))
            write_ros_yaml(self.yaml, target.name, map_.voxel_size, (round(x, 9), round(y, 9)))


def _voxels(map_: OccupancyMap, select: Select, height: Height) -> MapVoxels:
    """Voxels of a map whose centers are in [Z0, Z1)."""
    voxels = map_.extract(select)
    if height is None:
        return voxels
    z = (voxels.indices[:, 1] + 0.5) * map_.voxel_size + map_.origin[2]
    inside = (z >= height[0]) & (z < height[1])
    return MapVoxels._make([*[column[inside] for column in voxels[:-1]], voxels.count])


def _indices(voxels: MapVoxels) -> tuple[np.ndarray, np.ndarray]:
    """Indices [n, 3] int32, x, y, z, and log-odds [n]."""
    indices = voxels.indices[:, [3, 2, 1]].contiguous()
    return indices.cpu().numpy(), voxels.logodds.cpu().numpy()
