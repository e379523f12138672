# SPDX-License-Identifier: Apache-2.0
"""PointCloud, the form of clouds between files, ops and pictures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from torchvox._util.errors import expect

if TYPE_CHECKING:
    from pathlib import Path

    import torch

# A multiple of every common voxel size (0.05, 0.075, 0.1, 0.15, 0.16, 0.2, 0.25, 0.32, ...), so
# that neighboring tiles with different local origins still agree on their voxels.
ORIGIN_STEP = 1200.0
# Up to here float32 still resolves 1/1024 of a unit; float64 clouds beyond it are shifted.
FLOAT32_REACH = 8192.0


@dataclass
class PointCloud:
    """Points with named columns.

    points: [N, C] float32, C >= 3; columns 0-2 are x, y, z relative to `origin`.
    columns: C names, the first three "x", "y", "z".
    origin: [3] float64; world coordinates are origin + points[:, :3], to be added in float64.
    unit: unit of the coordinates, "m" unless the file says otherwise.
    path: the file it came from; None for a generated cloud.
    quantum: [3] float64 step of the file's coordinates (LAS), zero for others. The points then lie
        half of it above a round place, so that none is on a voxel face.
    crs: text of the coordinate reference system, or None.
    """

    points: np.ndarray
    columns: tuple[str, ...]
    origin: np.ndarray = field(default_factory=lambda: np.zeros(3))
    unit: str = "m"
    path: Path | None = None
    quantum: np.ndarray = field(default_factory=lambda: np.zeros(3))
    crs: str | None = None

    def __post_init__(self) -> None:
        names, shape = ",".join(self.columns), list(self.points.shape)
        rule = f"PointCloud: points must be [N, {len(self.columns)}] for the columns {names}"
        expect(shape[1:] == [len(self.columns)], rule, shape)
        good = tuple(self.columns[:3]) == ("x", "y", "z")
        expect(good, "PointCloud: columns must start with x, y, z", names)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def base(self) -> np.ndarray:
        """[3] float64: file coordinates minus base are coordinates of the points."""
        return self.origin + self.quantum / 2

    def column(self, name: str) -> np.ndarray | None:
        """One column [N] by name, or None when the cloud has no such column."""
        return self.points[:, self.columns.index(name)] if name in self.columns else None

    def finite(self) -> np.ndarray:
        """[N] bool: x, y and z are all finite."""
        return np.isfinite(self.points[:, :3]).all(axis=1)

    def tensor(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The points as a float32 tensor [N, C]; on the CPU it shares their memory."""
        import torch

        return torch.from_numpy(self.points).to(device)


def make_cloud(
    columns: dict[str, np.ndarray],
    path: Path,
    unit: str = "m",
    quantum: np.ndarray | None = None,
    origin: np.ndarray | None = None,
) -> PointCloud:
    """A cloud of named columns, with a local origin if float32 does not resolve the coordinates.

    columns: name -> [N]; x, y, z in any position, they are moved to the front.
    quantum: [3] the coordinates are integer multiples of it (LAS). Then the origin is shifted by
        half a quantum, so that no point lies exactly on a voxel face, whatever the rounding.
    origin: [3] the local origin before that shift, None for one near the points.
    """
    with np.errstate(invalid="ignore"):  # a signaling NaN
        xyz = np.stack([np.asarray(columns[axis], np.float64) for axis in "xyz"], axis=1)
    origin = local_origin(xyz, quantum, origin)
    names = ("x", "y", "z", *(name for name in columns if name not in ("x", "y", "z")))
    points = np.empty((len(xyz), len(names)), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        points[:, :3] = xyz - origin
        for i, name in enumerate(names[3:], start=3):
            points[:, i] = columns[name]
    quantum = np.zeros(3) if quantum is None else quantum
    return PointCloud(points, names, origin, unit, path, quantum)


def local_origin(
    xyz: np.ndarray, quantum: np.ndarray | None = None, origin: np.ndarray | None = None
) -> np.ndarray:
    """Offset [3] float64 that brings float64 coordinates [N, 3] into the reach of float32.

    Zero for coordinates within FLOAT32_REACH, otherwise whole multiples of ORIGIN_STEP, or the
    argument `origin`; minus half a quantum if the coordinates are quantized.
    """
    finite = xyz[np.isfinite(xyz).all(axis=1)]
    if len(finite) == 0:
        return np.zeros(3) if origin is None else origin
    low = finite.min(axis=0)
    if origin is None:
        reached = quantum is None and np.abs(finite).max() <= FLOAT32_REACH
        origin = np.zeros(3) if reached else _round_place(low)
    if quantum is not None:
        phase = np.mod(low - origin, quantum)
        whole = phase > quantum * (1 - 1e-3)  # on the origin's steps, except for rounding
        origin = origin + np.where(whole, 0.0, phase) - quantum / 2
    return origin


def origin_of_range(bounds: tuple[float, ...]) -> np.ndarray:
    """The origin [3] float64 for all clouds in a range (x0, y0, z0, x1, y1, z1) of their files'
    coordinates: zero within the reach of float32, else near the lower corner of the range."""
    near = max(map(abs, bounds)) <= FLOAT32_REACH
    return np.zeros(3) if near else _round_place(np.array(bounds[:3], np.float64))


def _round_place(low: np.ndarray) -> np.ndarray:
    return np.floor(low / ORIGIN_STEP) * ORIGIN_STEP
