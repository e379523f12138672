# SPDX-License-Identifier: Apache-2.0
"""What `torchvox map` writes: maps, points, pictures for ROS, pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchvox._errors import WrongUseError
from torchvox._extras import require
from torchvox.io.writers import write_whole
from torchvox.mapping import MapVoxels, OccupancyMap
from torchvox.mapping.files import VOXELS, write_points
from torchvox.ops.annotations import Select
from torchvox.viz.map_page import map_page
from torchvox.viz.plan import plan_image, write_gray_png, write_ros_yaml

MAPS = (".npz", ".bt", ".ot")
SUFFIXES = (*MAPS, *VOXELS, ".png", ".html")


def output_files(output: Path, page: bool, ros_yaml: bool) -> list[Path]:
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise WrongUseError(f"{output}: maps are written as {', '.join(SUFFIXES)}")
    if ros_yaml and suffix != ".png":
        raise WrongUseError(f"--ros-yaml needs a .png as --output, got {output}")
    if ros_yaml and not output.name.encode(errors="replace").decode() == output.name:
        raise WrongUseError(f"--ros-yaml needs a name in UTF-8, got {output!r}")
    if suffix in (".las", ".laz"):
        require("laspy", "to write LAS files")
    targets = [output]
    if page and suffix != ".html":
        targets.append(output.with_suffix(".html"))
    if ros_yaml:
        targets.append(output.with_suffix(".yaml"))
    return targets


def write_outputs(
    made: OccupancyMap,
    targets: list[Path],
    title: str,
    select: Select,
    height: tuple[float, ...] | None,
    path: np.ndarray | None,
) -> None:
    """Write a map as what the names say. title, path: of a page; height: of what is cut."""
    for target in targets:
        suffix = target.suffix.lower()
        if suffix in MAPS:
            made.save(target)
        elif suffix == ".png":
            yaml = next((path for path in targets if path.suffix == ".yaml"), None)
            _draw(made, target, yaml, height)
        elif suffix in VOXELS:
            write_points(made, target, _voxels(made, select, height))
        elif suffix == ".html":
            grid = made.voxel_size, made.origin
            voxels = _indices(_voxels(made, select, height))
            page = map_page(*voxels, *grid, title, kind=select, path=path)
            write_whole(target, lambda buffer: buffer.write(page))  # noqa: B023, at once


def _draw(
    made: OccupancyMap, target: Path, yaml: Path | None, height: tuple[float, ...] | None
) -> None:
    indices, logodds = _indices(_voxels(made, "observed", height))
    image = plan_image(indices, logodds.astype(np.float64) >= made.threshold)
    write_gray_png(target, image.pixels)
    if yaml is not None:
        x, y = (made.origin[i] + int(image.low[i]) * made.voxel_size for i in range(2))
        write_ros_yaml(yaml, target.name, made.voxel_size, (round(x, 9), round(y, 9)))


def _voxels(made: OccupancyMap, select: Select, height: tuple[float, ...] | None) -> MapVoxels:
    """Voxels of a map whose centers are in [Z0, Z1)."""
    found = made.extract(select)
    if height is None:
        return found
    z = (found.indices[:, 1] + 0.5) * made.voxel_size + made.origin[2]
    inside = (z >= height[0]) & (z < height[1])
    return MapVoxels._make([*[column[inside] for column in found[:-1]], found.count])


def _indices(voxels: MapVoxels) -> tuple[np.ndarray, np.ndarray]:
    """Indices [n, 3] int32, x, y, z, and log-odds [n]."""
    indices = voxels.indices[:, [3, 2, 1]].contiguous()
    return indices.cpu().numpy(), voxels.logodds.cpu().numpy()
