# SPDX-License-Identifier: Apache-2.0
"""Voxel grids: named ones from configs/grids/*.yaml, and one derived from the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util import config_files
from torchvox._util.errors import CloudFileError, WrongUseError, short
from torchvox._util.yaml import read_yaml

if TYPE_CHECKING:
    from torchvox.io.cloud import PointCloud

CELLS = 800  # cells of a derived grid along its longest horizontal side, at most about
CROWD = 2  # mean number of points in its voxels with points, at least; else voxels are larger
COVER = (0.1, 99.9)  # percentiles of the points along each axis that it covers
MARGIN = 0.1  # of the span between them, added to each side
MOST_VOXELS = 1 << 24  # on an axis, as in the ops


@dataclass(frozen=True)
class Grid:
    """A voxel grid: the arguments of voxelize beside the points.

    voxel_size: (x, y, z), in the unit of the coordinates.
    point_cloud_range: (x0, y0, z0, x1, y1, z1), in the unit of the coordinates.
    max_points: points stored per voxel, -1 for no limit.
    max_voxels: voxels per cloud, -1 for no limit.
    chosen: how the grid was chosen, in words.
    """

    name: str
    voxel_size: tuple[float, ...]
    point_cloud_range: tuple[float, ...]
    max_points: int = 10
    max_voxels: int = -1
    chosen: str = "given"

    def __post_init__(self) -> None:
        _check_voxel_size(self.voxel_size, self.name)
        bounds, rule = self.point_cloud_range, ""
        if len(bounds) != 6 or not all(map(math.isfinite, bounds)):
            rule = "be 6 numbers x0,y0,z0,x1,y1,z1"
        elif any(low >= high for low, high in zip(bounds[:3], bounds[3:], strict=True)):
            rule = "have x0 < x1, y0 < y1 and z0 < z1"
        if rule:
            got = short(list(bounds))
            raise WrongUseError(f"grid {self.name}: point_cloud_range must {rule}, got {got}")
        axes = zip("xyz", self.voxel_size, bounds[:3], bounds[3:], strict=True)
        for axis, size, low, high in axes:
            if (high - low) / size > MOST_VOXELS:
                rule = "an axis must have at most 2^24 voxels, which float32 can number"
                got = f"{(high - low) / size:.3g} on axis {axis}"
                raise WrongUseError(f"grid {self.name}: {rule}, got {got}")

    @property
    def bev_size(self) -> tuple[int, int]:
        """(nx, ny) pixels of a bird's-eye view at the grid's own horizontal resolution."""
        bounds, size = self.point_cloud_range, self.voxel_size
        nx, ny = (max(1, round((bounds[axis + 3] - bounds[axis]) / size[axis])) for axis in (0, 1))
        return nx, ny

    def moved(self, by: np.ndarray) -> Grid:
        """The grid with `by` [3] added to both corners of its range."""
        bounds = tuple(float(v) for v in np.array(self.point_cloud_range) + np.tile(by, 2))
        return replace(self, point_cloud_range=bounds)

    @property
    def limits(self) -> str:
        """The range in the form of the option --bounds."""
        return ",".join(f"{v:.12g}" for v in self.point_cloud_range)


def grid_names() -> list[str]:
    """The names that load_grid knows, sorted."""
    return config_files.names("grids")


def load_grid(name: str) -> Grid:
    """A grid by name, or from the path of a .yaml file with the same keys.

    Raises WrongUseError for an unknown name, CloudFileError for a file that does not describe a
    grid, MissingExtraError without PyYAML.
    """
    is_file = name.endswith((".yaml", ".yml"))
    source = Path(name) if is_file else config_files.folder("grids") / f"{name}.yaml"
    if is_file and not source.is_file():
        raise WrongUseError(f"grid file {name} does not exist")
    if not is_file and name not in grid_names():
        raise WrongUseError(f"grid {name!r} is unknown: choose {', '.join(grid_names())}")
    try:
        with source.open("rb") as file:
            content = read_yaml(file, "to read named grids")
    except OSError as error:
        raise CloudFileError(f"{name}: {error.strerror or error}") from error
    except ValueError as error:
        raise CloudFileError(f"{name} is not readable YAML: {error}") from None
    return _grid(name, content)


def grid_around(
    cloud: PointCloud, voxel_size: tuple[float, ...] | None = None, max_points: int = 10
) -> Grid:
    """A grid that fits a cloud, for clouds without a standard grid (aerial, indoor).

    The range holds 99.8 % of the points along each axis and a tenth of that span on either side,
    but not more than the points' own bounds, so that a lone far point cannot blow it up. Voxels are
    cubes of 1, 2 or 5 times a power of ten: about 800 along the longer horizontal side, or fewer,
    so that voxels with points hold two on average.
    Raises CloudFileError if no point is finite.
    """
    xyz = cloud.points[cloud.finite(), :3].astype(np.float64)
    if len(xyz) == 0:
        raise CloudFileError(f"{cloud.path or 'the cloud'} has no finite point to fit a grid to")
    # Values of points, no interpolation, since one of two neighbors may be far off.
    inner = np.percentile(xyz, COVER, axis=0, method="nearest")
    margin = MARGIN * (inner[1] - inner[0])
    low = np.maximum(xyz.min(axis=0), inner[0] - margin)
    high = np.minimum(xyz.max(axis=0), inner[1] + margin)
    if voxel_size is None:
        voxel_size = (_fitting_size(xyz, low, high),) * 3
    _check_voxel_size(voxel_size, "derived")
    size = np.asarray(voxel_size, np.float64)
    first = np.floor(low / size)
    last = np.maximum(np.floor(high / size) + 1, first + 1)
    bounds = [round(float(v), 6) for v in np.concatenate([first * size, last * size])]
    chosen = "derived from the points"
    return Grid("derived", tuple(voxel_size), tuple(bounds), max_points, chosen=chosen)


def _check_voxel_size(size: tuple[float, ...], name: str) -> None:
    if len(size) != 3 or not all(math.isfinite(v) and v > 0 for v in size):
        rule = f"voxel_size must be 3 positive numbers x,y,z, got {short(list(size))}"
        raise WrongUseError(f"grid {name}: {rule}")


def _fitting_size(xyz: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """The size of voxels for the points [N, 3] from low to high."""
    places = xyz[((xyz >= low) & (xyz <= high)).all(axis=1)] - low
    sides = high - low
    size = _round_size(max(sides[:2].max() / CELLS, 2 * sides[2] / MOST_VOXELS, 1e-3))
    while size < sides.max():
        x, y, z = (places // size).astype(np.int64).T
        occupied = np.unique((z * (y.max() + 1) + y) * (x.max() + 1) + x)
        if CROWD * len(occupied) <= len(places):
            break
        size = _round_size(2.2 * size)  # the next larger one
    return size


def _round_size(size: float) -> float:
    """The 1, 2 or 5 times a power of ten that is closest in ratio."""
    decade = math.floor(math.log10(size))
    choices = (float(f"{m}e{decade}") for m in (1, 2, 5, 10))
    return min(choices, key=lambda choice: abs(math.log(choice / size)))


def _grid(name: str, content: object) -> Grid:
    keys = {"voxel_size", "point_cloud_range", "max_points", "max_voxels"}
    if not isinstance(content, dict) or not {"voxel_size", "point_cloud_range"} <= content.keys():
        raise CloudFileError(f"grid {name} must give voxel_size and point_cloud_range")
    if unknown := content.keys() - keys:
        names = short(", ".join(sorted(map(str, unknown))))
        raise CloudFileError(f"grid {name} has unknown keys: {names}")
    try:
        size, bounds = (tuple(map(float, content[k])) for k in ("voxel_size", "point_cloud_range"))
        points, voxels = int(content.get("max_points", 10)), int(content.get("max_voxels", -1))
        return Grid(name, size, bounds, points, voxels, f"grid {name}")
    except WrongUseError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise CloudFileError(f"grid {name}: {short(error)}") from None
